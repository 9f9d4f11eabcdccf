//! Traces in text form: reads lines and their fields.

use std::io::{BufRead, Read};

use crate::error::{TraceResult, unreadable};

use super::{Parsed, Request};

/// Longer lines are not read.
const LONGEST: u64 = 1 << 16;

/// A format of text traces, which consist of lines.
pub(super) trait LineFormat {
    /// Parses a line that is not empty, without leading and trailing blanks.
    fn line(&mut self, line: &str) -> Parsed;
}

/// The requests in the lines of a file.
pub(super) fn lines<F: LineFormat + Send + 'static>(
    name: String,
    source: impl BufRead + Send + 'static,
    format: F,
) -> Box<dyn Iterator<Item = TraceResult<Request>> + Send> {
    Box::new(LineReader { name, source, format, number: 0, buffer: Vec::new() })
}

struct LineReader<S, F> {
    name: String,
    source: S,
    format: F,
    /// Number of the last line that was read; the first line is 1.
    number: u64,
    buffer: Vec<u8>,
}

impl<S: BufRead, F: LineFormat> Iterator for LineReader<S, F> {
    type Item = TraceResult<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.buffer.clear();
            self.number += 1;
            let failed = |what: &str| {
                Some(Err(unreadable(format!("{}, line {}: {what}", self.name, self.number))))
            };
            match self.source.by_ref().take(LONGEST).read_until(b'\n', &mut self.buffer) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return failed(&error.to_string()),
            }
            if self.buffer.len() as u64 == LONGEST {
                return failed("the line is too long; this is no trace in that format");
            }
            let Ok(line) = std::str::from_utf8(&self.buffer) else {
                return failed("this is no text");
            };
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match self.format.line(line) {
                Ok(Some(request)) => return Some(Ok(request)),
                Ok(None) => {}
                Err(what) => return failed(&what),
            }
        }
    }
}

/// Returns the next field, which is required.
pub(super) fn field<'a>(
    fields: &mut impl Iterator<Item = &'a str>,
    what: &str,
) -> Result<&'a str, String> {
    fields.next().map(str::trim).ok_or_else(|| format!("the field '{what}' is missing"))
}

/// A whole number.
pub(super) fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{}' is no {what}: a whole number, please", shown(text)))
}

/// Returns text from a file, shortened for a message, and with characters that are harmless to a
/// terminal.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Numbers devices in the order of their first appearance.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// The number of a name.
    pub(super) fn number(&mut self, name: &str) -> Result<u32, String> {
        // There are few devices, and usually it is the one found last.
        let known = self.0.iter().rposition(|other| other == name);
        let place = known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        if place > usize::from(u16::MAX) {
            return Err("there are more than 65,536 devices".to_owned());
        }
        Ok(place as u32)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the results of a format for a text.
    pub(crate) fn parse<F: LineFormat + Send + 'static>(
        format: F,
        text: &'static str,
    ) -> TraceResult<Vec<Request>> {
        lines("trace".to_owned(), text.as_bytes(), format).collect()
    }

    /// Returns the error for a trace that cannot be read.
    pub(crate) fn refused<F: LineFormat + Send + 'static>(format: F, text: &'static str) -> String {
        let found: TraceResult<Vec<Request>> =
            lines("trace".to_owned(), text.as_bytes(), format).collect();
        found.expect_err("is wrong").to_string()
    }

    struct Nothing;

    impl LineFormat for Nothing {
        fn line(&mut self, _line: &str) -> Parsed {
            Ok(None)
        }
    }

    #[test]
    fn files_that_are_no_text_are_refused() {
        let long = vec![b'x'; 1 << 17];
        for content in [&b"a\n\xff\xfe\n"[..], &long] {
            let content = content.to_vec();
            let mut all = lines("trace".to_owned(), std::io::Cursor::new(content), Nothing);
            assert!(all.next().is_some_and(|found| found.is_err()));
        }
    }

    #[test]
    fn names_have_numbers() {
        let mut names = Names::default();
        let numbers = ["a", "b", "a", "c", "b"].map(|name| names.number(name).expect("few"));
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        assert_eq!(shown("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
    }
}
