//! The settings table as help, Markdown and JSON.

use std::fmt::Write as _;

use serde_json::Value;

use crate::table::{SETTINGS, Setting, Settings};

/// Wraps a text to lines of at most `width` characters; longer words stay whole.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the table as aligned text, for help: names on the left, lines of at most 80 characters.
pub fn help_text() -> String {
    let width = SETTINGS.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let mut text = String::from("Settings:\n");
    for setting in SETTINGS {
        let values = format!("{}; default {}", setting.kind.range(), setting.default());
        let lines = [wrapped(setting.help, 76 - width), wrapped(&values, 76 - width)].concat();
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { setting.name } else { "" };
            let _ = writeln!(text, "  {name:width$}  {line}");
        }
    }
    text
}

/// Returns the table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut text = String::from("| setting | values | default | meaning |\n|---|---|---|---|\n");
    for setting in SETTINGS {
        let (name, help) = (setting.name, setting.help);
        let (range, default) = (setting.kind.range(), setting.default());
        let _ = writeln!(text, "| `{name}` | {range} | `{default}` | {help} |");
    }
    text
}

/// Returns the table as JSON, for the API.
pub fn json() -> Value {
    let setting = |setting: &Setting| {
        serde_json::json!({
            "name": setting.name,
            "kind": setting.kind,
            "default": (setting.json)(&Settings::default(), &setting.kind),
            "help": setting.help,
        })
    };
    serde_json::json!({ "knobs": SETTINGS.iter().map(setting).collect::<Vec<_>>() })
}
