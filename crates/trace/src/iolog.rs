//! Logs that fio writes with `write_iolog`, version 2 and version 3 (fio(1), "Trace file format").
//!
//! Version 2 has lines `filename action offset length`, and gives times only by `wait`, in
//! microseconds; in version 3, each line begins with the microseconds since the start. Offsets and
//! lengths are in bytes; each file is a device.

use forebay_core::Op;

use super::text::{LineFormat, Names, number, shown};
use super::{Parsed, request};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Iolog {
    version: Option<IologVersion>,
    devices: Names,
    /// Sum of the waits so far, in microseconds.
    waited: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IologVersion {
    Two,
    Three,
}

fn version(line: &str) -> Option<IologVersion> {
    match line {
        "fio version 2 iolog" => Some(IologVersion::Two),
        "fio version 3 iolog" => Some(IologVersion::Three),
        _ => None,
    }
}

/// Returns whether a line is the first line of such a file.
pub(super) fn is_heading(line: &str) -> bool {
    version(line).is_some()
}

/// Splits a line into the part before its last word, and that word.
fn last(line: &str) -> Option<(&str, &str)> {
    let (rest, word) = line.trim_end().rsplit_once(char::is_whitespace)?;
    Some((rest.trim_end(), word))
}

impl Iolog {
    /// Parses `filename action offset length`. The name may contain blanks, so the line is parsed
    /// from its end.
    fn action(&mut self, line: &str, time: Option<u64>) -> Parsed {
        let (before, word) = last(line).ok_or("there is only one word")?;
        if matches!(word, "add" | "open" | "close") {
            return Ok(None);
        }
        let too_short = "this is no 'filename action offset length'";
        let (before, offset) = last(before).ok_or(too_short)?;
        let (name, action) = last(before).ok_or(too_short)?;
        let (offset, len) = (number(offset, "offset")?, number(word, "length")?);
        let op = match action {
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Discard,
            "wait" => {
                self.waited = Some(self.waited.unwrap_or(0).saturating_add(offset));
                return Ok(None);
            }
            "sync" | "datasync" | "sync_file_range" => return Ok(None),
            _ => return Err(format!("'{}' is no action that fio knows", shown(action))),
        };
        let nanos = time.or(self.waited).map(|micros| micros.saturating_mul(1000));
        let device = self.devices.number(name)?;
        request(nanos, op, offset, len, device)
    }
}

impl LineFormat for Iolog {
    fn line(&mut self, line: &str) -> Parsed {
        match (self.version, version(line)) {
            // fio appends to logs, so a file may contain several.
            (_, Some(version)) => {
                self.version = Some(version);
                Ok(None)
            }
            (None, None) => Err("the first line is not 'fio version 2 iolog', nor 3".to_owned()),
            (Some(IologVersion::Two), None) => self.action(line, None),
            (Some(IologVersion::Three), None) => {
                let (time, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
                self.action(rest.trim_start(), Some(number(time, "time in microseconds")?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Nanos;

    use super::*;
    use crate::text::tests::{parse, refused};

    #[test]
    fn version_3_has_times() {
        let text = "fio version 3 iolog\n17 /tmp/a b add\n135 /tmp/a b open\n139 /tmp/a b read 0 4096\n\
                    156 /tmp/a b sync 0 0\n165 /dev/x trim 49152 8192\n172 /tmp/a b close\n";
        let found = parse(Iolog::default(), text).expect("reads");
        let found: Vec<_> =
            found.iter().map(|one| (one.time, one.op, one.offset, one.len, one.device)).collect();
        let expected = [
            (Some(Nanos(139_000)), Op::Read, 0, 4096, 0),
            (Some(Nanos(165_000)), Op::Discard, 49152, 8192, 1),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn version_2_has_waits() {
        let text = "fio version 2 iolog\na add\na open\na write 512 512\na wait 300 0\na read 0 1\n\
                    a wait 200 0\na read 0 1\na datasync 0 0\na close\n";
        let found = parse(Iolog::default(), text).expect("reads");
        let times: Vec<_> = found.iter().map(|one| one.time).collect();
        assert_eq!(times, [None, Some(Nanos(300_000)), Some(Nanos(500_000))]);
        assert_eq!(found[0].op, Op::Write);
    }

    #[test]
    fn malformed_input_is_reported() {
        for (text, word) in [
            ("a read 0 1\n", "version 2"),
            ("fio version 2 iolog\na\n", "one word"),
            ("fio version 2 iolog\na read 1\n", "filename action"),
            ("fio version 2 iolog\na jump 0 1\n", "jump"),
            ("fio version 2 iolog\na read x 1\n", "'x'"),
            ("fio version 3 iolog\na read 0 1\n", "microseconds"),
        ] {
            let why = refused(Iolog::default(), text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
