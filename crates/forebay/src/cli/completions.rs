//! `forebay completions`: a completion script for a shell.
//!
//! The library generates it from the declarations of the command line. It knows neither the
//! existing volumes nor the two sides of `KEY=VALUE`; for bash, zsh and fish that is added here.

use std::fmt::Write as _;

use clap::{Arg, Command};
use clap_complete::Shell;
use forebay_admin::{ApiError, SETTINGS};

use crate::exit::VerbResult;
use crate::output::print_text;

/// Returns the verbs whose first argument is an existing volume.
fn about_a_volume(command: &Command) -> Vec<&str> {
    let is_volume =
        |arg: &Arg| arg.get_help().is_some_and(|help| help.to_string().starts_with("The volume"));
    let verbs = command.get_subcommands().filter(|verb| verb.get_positionals().any(is_volume));
    verbs.map(Command::get_name).collect()
}

/// Prints the script.
pub(crate) fn run(shell: Shell, command: &mut Command) -> VerbResult {
    print_text(&script(shell, command)?)
}

fn script(shell: Shell, command: &mut Command) -> Result<String, ApiError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "forebay", &mut script);
    let script = String::from_utf8(script).map_err(|error| ApiError::failed(error.to_string()))?;
    Ok(match shell {
        Shell::Bash => script + &bash(&about_a_volume(command)),
        Shell::Zsh => zsh(&script),
        Shell::Fish => script + &fish(&about_a_volume(command)),
        _ => script,
    })
}

/// Returns a function around the generated one. bash splits `KEY=VALUE` into three words.
fn bash(volumes: &[&str]) -> String {
    let mut values = String::new();
    let mut keys = String::new();
    for setting in SETTINGS {
        let _ = write!(keys, " {}=", setting.name);
        let words = setting.kind.listed();
        if !words.is_empty() {
            let _ =
                writeln!(values, "            {}) words='{}' ;;", setting.name, words.join(" "));
        }
    }
    format!(
        r#"
_forebay_values() {{
    _forebay "$@"
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local verb= place=0 settings= key= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            --socket | --timeout) ((i++)) ;;
            -*) ;;
            *) if [[ $verb ]]; then ((place++)); else verb=${{COMP_WORDS[i]}}; fi ;;
        esac
    done
    if [[ $cur == -* ]]; then
        return
    fi
    case $verb in
        {volumes})
            if ((place == 0)); then
                COMPREPLY=($(compgen -W "$(forebay --timeout 1 list --names 2>/dev/null)" -- "$cur"))
                return
            fi
            ;;
    esac
    [[ $verb == set ]] && settings=1
    [[ $verb == create && " ${{COMP_WORDS[*]:COMP_CWORD-3:3}} " == *" --set "* ]] && settings=1
    if [[ ! $settings ]]; then
        return
    fi
    if [[ $cur == "=" ]]; then
        key=$prev cur=
    elif [[ $prev == "=" ]]; then
        key=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if [[ $key ]]; then
        case $key in
{values}        esac
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    elif [[ $verb == set || $prev == --set ]]; then
        COMPREPLY=($(compgen -W '{keys}' -- "$cur"))
        compopt -o nospace 2>/dev/null
    fi
}}
complete -F _forebay_values -o bashdefault -o default forebay
"#,
        volumes = volumes.join(" | "),
        keys = keys.trim_start(),
    )
}

/// Adds two functions, and names them where the library has put the default one.
fn zsh(script: &str) -> String {
    let mut values = String::new();
    for setting in SETTINGS {
        let words = setting.kind.listed();
        let action =
            if words.is_empty() { " ".to_owned() } else { format!("({})", words.join(" ")) };
        let _ = write!(values, " \\\n        '{}:{}:{action}'", setting.name, setting.kind.word());
    }
    let functions = format!(
        r#"
(( $+functions[_forebay_volumes] )) || _forebay_volumes() {{
    local -a names
    names=(${{(f)"$(forebay --timeout 1 list --names 2>/dev/null)"}})
    compadd -a names
}}

(( $+functions[_forebay_settings] )) || _forebay_settings() {{
    _values setting{values}
}}
"#
    );
    let script = script
        .replace(":name -- The volume:_default", ":name -- The volume:_forebay_volumes")
        .replace(
            r":name -- The volume \[default\: all\]:_default",
            r":name -- The volume \[default\: all\]:_forebay_volumes",
        )
        .replace("new values:_default", "new values:_forebay_settings")
        .replace(":KEY=VALUE:_default", ":KEY=VALUE:_forebay_settings");
    match script.split_once("autoload -U is-at-least\n") {
        Some((head, rest)) => format!("{head}autoload -U is-at-least\n{functions}{rest}"),
        None => script + &functions,
    }
}

fn fish(volumes: &[&str]) -> String {
    let mut settings = Vec::new();
    for setting in SETTINGS {
        let words = setting.kind.listed();
        if words.is_empty() {
            settings.push(format!("{}=", setting.name));
        }
        settings.extend(words.iter().map(|word| format!("{}={word}", setting.name)));
    }
    let settings = settings.join(" ");
    let mut lines = String::new();
    for verb in volumes {
        let _ = writeln!(
            lines,
            "complete -c forebay -n \"__fish_forebay_using_subcommand {verb}\" -f -a \"(forebay --timeout 1 list --names 2>/dev/null)\""
        );
    }
    let _ = writeln!(
        lines,
        "complete -c forebay -n \"__fish_forebay_using_subcommand set\" -f -a \"{settings}\"\n\
         complete -c forebay -n \"__fish_forebay_using_subcommand create\" -l set -x -a \"{settings}\""
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zsh_script_completes_volumes_and_settings() {
        let mut command = crate::cli::command();
        let script = script(Shell::Zsh, &mut command).expect("text");
        let count = |text: &str| script.matches(text).count();
        let verbs = about_a_volume(&command);
        assert!(verbs.contains(&"evict") && !verbs.contains(&"create"), "{verbs:?}");
        assert_eq!(count(":_forebay_volumes' \\"), verbs.len());
        assert_eq!(count("new values:_forebay_settings"), 1);
        assert_eq!(count(":KEY=VALUE:_forebay_settings"), 1);
        assert_eq!(count("_forebay_volumes() {"), 1);
    }

    #[test]
    fn every_setting_is_in_the_scripts_that_can_offer_it() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell, &mut crate::cli::command()).expect("text");
            for setting in SETTINGS {
                assert!(script.contains(setting.name), "{shell}: {}", setting.name);
            }
            assert!(script.contains("forebay --timeout 1 list --names"), "{shell}");
        }
    }
}
