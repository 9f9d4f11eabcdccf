//! `forebay man`: the manual pages, from the same declarations as the parser.
//!
//! The library renders most of a page from the declarations. The parts that it would run together
//! into one paragraph are written here: the synopsis, and the tables that help prints below the
//! options.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;
use forebay_admin::{ApiError, SETTINGS};
use forebay_core::why::Why;

use crate::cli::top::{KEYS, REVERSE};
use crate::exit::{EXIT_CODES, VerbResult};
use crate::output::print_bytes;
use crate::paths::io_error;

/// Prints the main page, or writes all pages into a directory.
pub(crate) fn run(dir: Option<&Path>, command: Command) -> VerbResult {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(dir) = dir else { return print_bytes(&page(&command)?) };
    for command in command.get_subcommands().chain([&command]) {
        let path = dir.join(Man::new(command.clone()).get_filename());
        std::fs::write(&path, page(command)?)
            .map_err(|error| io_error("cannot write the pages into", dir, &error))?;
    }
    Ok(())
}

/// Renders the page of the program or of one of its verbs.
fn page(command: &Command) -> Result<Vec<u8>, ApiError> {
    let man = Man::new(command.clone())
        .source(format!("forebay {}", env!("CARGO_PKG_VERSION")))
        .manual("Forebay")
        // Without a date the formatter would print the source in its place.
        .date(" ");
    let mut page = Vec::new();
    let mut own = String::new();
    synopsis(&mut own, command);
    let rendered = (|| {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        page.extend_from_slice(own.as_bytes());
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.has_subcommands() { man.render_subcommands_section(&mut page) } else { Ok(()) }
    })();
    rendered.map_err(|error: std::io::Error| ApiError::failed(error.to_string()))?;
    let mut rest = String::new();
    match command.get_name() {
        "set" => settings(&mut rest),
        "show" => reasons(&mut rest),
        "top" => keys(&mut rest),
        _ => {}
    }
    exit_status(&mut rest);
    rest.push_str(".SH SEE ALSO\n");
    let others = if command.has_subcommands() { "nbd\\-client" } else { "forebay" };
    let section = if command.has_subcommands() { 8 } else { 1 };
    let _ = writeln!(rest, "\\fB{others}\\fR({section})");
    page.extend_from_slice(rest.as_bytes());
    Ok(page)
}

/// Escapes text for the formatter.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // At the start of a line these would be requests.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Writes a term and its meaning.
fn term(out: &mut String, term: &str, meaning: &str) {
    let _ = writeln!(out, ".TP\n{term}\n{}", plain(meaning));
}

/// Writes the command with all of its options; an option is not broken across lines.
fn synopsis(out: &mut String, command: &Command) {
    let name = plain(command.get_bin_name().unwrap_or_else(|| command.get_name()));
    // Continuation lines are indented to after the name.
    let _ = writeln!(out, ".SH SYNOPSIS\n.HP\n\\fB{}\\fR", name.replace(' ', "\\ "));
    let shown = |arg: &&Arg| {
        let everywhere = ["help", "version"].contains(&arg.get_id().as_str());
        !arg.is_hide_set() && !everywhere
    };
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(shown).partition(|arg| arg.is_positional());
    for arg in options.iter().filter(|arg| arg.is_required_set()) {
        let _ = writeln!(out, "{}{}", piece(arg), again(arg));
    }
    for arg in options.iter().filter(|arg| !arg.is_required_set()) {
        let _ = writeln!(out, "[{}]{}", piece(arg), again(arg));
    }
    for arg in positional {
        let (piece, again) = (piece(arg), again(arg));
        let _ = if arg.is_required_set() {
            writeln!(out, "{piece}{again}")
        } else {
            writeln!(out, "[{piece}]{again}")
        };
    }
    if command.has_subcommands() {
        out.push_str("\\fICOMMAND\\fR\n[\\fIARGUMENT\\fR...]\n");
    }
}

/// Formats an argument as on a command line.
fn piece(arg: &Arg) -> String {
    let mut text = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("\\fB\\-\\-{}\\fR", plain(long)),
        (None, Some(short)) => format!("\\fB\\-{short}\\fR"),
        (None, None) => String::new(),
    };
    let values = arg.get_num_args().unwrap_or_default();
    if values.takes_values() || arg.is_positional() {
        let gap = if text.is_empty() { "" } else { "\\ " };
        let id = arg.get_id().as_str().to_uppercase();
        let name = arg.get_value_names().and_then(|names| names.first());
        let name = plain(name.map_or(id.as_str(), |name| name.as_str()));
        let _ = write!(text, "{gap}\\fI{name}\\fR");
    }
    text
}

/// Returns the suffix of a repeatable argument.
fn again(arg: &Arg) -> &'static str {
    let values = arg.get_num_args().unwrap_or_default();
    let repeatable = matches!(arg.get_action(), clap::ArgAction::Append) || values.max_values() > 1;
    if repeatable { "..." } else { "" }
}

fn settings(out: &mut String) {
    out.push_str(".SH SETTINGS\n");
    for setting in SETTINGS {
        term(out, &format!("\\fB{}\\fR", plain(setting.name)), setting.help);
        let values = format!("{}; default {}.", setting.kind.range(), setting.default());
        let _ = writeln!(out, ".br\n{}", plain(&values));
    }
    out.push_str(
        ".PP\nA size may end in K, M, G, T or P (powers of 1024), a time in ms, s, m, h or d.\n",
    );
}

fn reasons(out: &mut String) {
    out.push_str(".SH REASONS\nAs why.GROUP.REASON in \\-\\-json.\n");
    let mut last = "";
    for (group, name, help) in Why::meanings() {
        if group != last {
            let _ = writeln!(out, ".SS {}", plain(group));
            last = group;
        }
        term(out, &format!("\\fB{}\\fR", plain(name)), help);
    }
}

fn keys(out: &mut String) {
    out.push_str(".SH KEYS\n");
    for (keys, effect) in KEYS {
        term(out, &format!("\\fB{}\\fR", plain(keys)), effect);
    }
    let _ = writeln!(out, ".PP\n{}", plain(REVERSE));
}

fn exit_status(out: &mut String) {
    out.push_str(".SH EXIT STATUS\n");
    for (code, meaning) in EXIT_CODES {
        term(out, &format!("\\fB{code}\\fR"), meaning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn text(verb: &str) -> String {
        let mut command = cli::command();
        command.build();
        let command = if verb.is_empty() { Some(&command) } else { command.find_subcommand(verb) };
        let page = page(command.expect("a verb")).expect("it renders");
        String::from_utf8(page).expect("text")
    }

    #[test]
    fn every_setting_and_every_reason_is_a_term_of_its_own() {
        let set = text("set");
        for setting in SETTINGS {
            let lines = format!(".TP\n\\fB{}\\fR\n", setting.name);
            assert!(set.contains(&lines), "{lines} is not in {set}");
        }
        let show = text("show");
        for (_, name, _) in Why::meanings() {
            assert!(show.contains(&format!(".TP\n\\fB{name}\\fR\n")), "{name}");
        }
    }

    #[test]
    fn a_synopsis_has_every_option_with_its_value_and_no_other() {
        let create = text("create");
        let synopsis = create.split(".SH ").find(|section| section.starts_with("SYNOPSIS"));
        let lines: Vec<&str> = synopsis.expect("there").lines().collect();
        for line in [
            "\\fB\\-\\-origin\\fR\\ \\fIDEVICE\\fR",
            "[\\fB\\-\\-mode\\fR\\ \\fIMODE\\fR]",
            "[\\fB\\-\\-set\\fR\\ \\fIKEY=VALUE\\fR]...",
            "[\\fB\\-\\-force\\fR]",
            "\\fINAME\\fR",
        ] {
            assert!(lines.contains(&line), "{line} is not in {lines:?}");
        }
        assert!(!create.contains("help\\fR]\n") && !create.contains(".SH EXTRA"), "{create}");
        assert!(text("set").contains("\\fIKEY=VALUE\\fR...\n"));
        assert!(text("").contains("\\fICOMMAND\\fR\n"));
    }

    #[test]
    fn text_cannot_be_taken_for_a_request() {
        assert_eq!(plain(".TH a\\b -c"), "\\&.TH a\\eb \\-c");
        for verb in cli::command().get_subcommands() {
            let page = text(verb.get_name());
            assert!(page.contains(".SH EXIT STATUS"), "{}", verb.get_name());
        }
    }
}
