//! The text that blkparse prints by default: `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`:
//! device, processor, number, seconds, process, action, kind, first sector, sectors.
//!
//! A request passes through several actions. One of them counts as the request: queued (`Q`), or,
//! in a trace from which those were filtered, issued (`D`) or completed (`C`), whichever comes
//! first. Lines that do not begin with a device (the summary at the end) are skipped.

use forebay_core::Op;

use super::text::{LineFormat, Names, field, number, shown};
use super::{Parsed, request, sectors};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Blkparse {
    devices: Names,
    /// The action that counts as the request.
    action: Option<char>,
}

/// Whether a line is in this format.
pub(super) fn is_line(line: &str) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let device = fields.next().is_some_and(is_device);
    let numbers = (&mut fields).take(2).all(|field| field.parse::<u64>().is_ok());
    device && numbers && fields.next().is_some_and(|time| seconds(time).is_ok())
}

/// `8,0`.
fn is_device(text: &str) -> bool {
    text.split_once(',')
        .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok())
}

/// Seconds with nine digits after the point, as nanoseconds.
fn seconds(text: &str) -> Result<u64, String> {
    let bad = || format!("'{}' is no time in seconds", shown(text));
    let (whole, fraction) = text.split_once('.').ok_or_else(bad)?;
    if fraction.len() > 9 {
        return Err(bad());
    }
    let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| bad())?;
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let nanos = whole.checked_mul(1_000_000_000).and_then(|nanos| nanos.checked_add(fraction));
    nanos.ok_or_else(bad)
}

impl LineFormat for Blkparse {
    fn line(&mut self, line: &str) -> Parsed {
        let mut fields = line.split_ascii_whitespace();
        let device = field(&mut fields, "device")?;
        if !is_device(device) {
            return Ok(None);
        }
        let time = seconds(fields.nth(2).ok_or("the field 'time' is missing")?)?;
        let action = fields.nth(1).ok_or("the field 'action' is missing")?;
        let Some(action @ ('Q' | 'D' | 'C')) = action.chars().next().filter(|_| action.len() == 1)
        else {
            return Ok(None);
        };
        // R, W and D name the operation; other letters are hints. A line with none of these has no
        // data.
        let kind = field(&mut fields, "kind")?;
        let op = if kind.contains('D') {
            Op::Discard
        } else if kind.contains('R') {
            Op::Read
        } else if kind.contains('W') {
            Op::Write
        } else {
            return Ok(None);
        };
        let Some(first) = fields.next().filter(|first| !first.starts_with('[')) else {
            // A flush has no place.
            return Ok(None);
        };
        let first = number(first, "sector")?;
        if fields.next() != Some("+") {
            return Err("there is no '+' after the sector".to_owned());
        }
        let count = number(field(&mut fields, "sectors")?, "number of sectors")?;
        if *self.action.get_or_insert(action) != action {
            return Ok(None);
        }
        let device = self.devices.number(device)?;
        request(Some(time), op, sectors(first)?, sectors(count)?, device)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Nanos;

    use super::*;
    use crate::text::tests::{parse, refused};

    const TEXT: &str = "\
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002197   697  P   N [kjournald]
  8,16   3        0     0.000101915     0  m   N cfq697 insert_request
  8,0    3        4     0.000131915   697  D   W 223490 + 8 [kjournald]
  8,16   1        1     0.5           123  Q   R 0 + 16 [cat]
  8,16   1        2     1.000000001   123  Q  RA 16 + 16 [cat]
  8,0    1        3     1.100000000   123  Q FWS [jbd2]
  8,0    1        3     1.100000000   123  Q FWS 8 + 0 [jbd2]
  8,0    1        4     1.200000000   123  Q  DS 4096 + 2048 [fstrim]
  8,0    3        5     1.300000000     0  C   W 223490 + 8 [0]
CPU0 (8,0):
 Reads Queued:           0,        0KiB  Writes Queued:           1,        4KiB
Total (8,0):
";

    #[test]
    fn each_request_counts_once() {
        let found = parse(Blkparse::default(), TEXT).expect("reads");
        let found: Vec<_> =
            found.iter().map(|one| (one.time, one.op, one.offset, one.len, one.device)).collect();
        let time = |nanos| Some(Nanos(nanos));
        let expected = [
            (time(0), Op::Write, 223_490 * 512, 4096, 0),
            (time(500_000_000), Op::Read, 0, 8192, 1),
            (time(1_000_000_001), Op::Read, 8192, 8192, 1),
            (time(1_200_000_000), Op::Discard, 4096 * 512, 1 << 20, 0),
        ];
        assert_eq!(found, expected);
        assert!(TEXT.lines().take(11).all(is_line));
        assert!(!TEXT.lines().skip(11).any(is_line));
    }

    #[test]
    fn issued_requests_count_where_queued_ones_are_missing() {
        let issued = "8,0 3 4 0.0 697 D W 0 + 8 [a]\n8,0 3 4 0.1 697 C W 0 + 8 [a]\n\
                      8,0 3 4 0.2 697 D R 8 + 8 [a]\n";
        assert_eq!(parse(Blkparse::default(), issued).expect("reads").len(), 2);
    }

    #[test]
    fn malformed_input_is_reported() {
        for (text, word) in [
            ("8,0 3 4 x 697 Q W 0 + 8\n", "time"),
            ("8,0 3 4 0.0\n", "action"),
            ("8,0 3 4 0.0 697 Q W 0 - 8\n", "'+'"),
            ("8,0 3 4 0.0 697 Q W 0 + x\n", "'x'"),
            ("8,0 3 4 0.0 697 Q W 0 +\n", "sectors"),
            ("8,0 3 4 0.0 697 Q W 99999999999999999 + 8\n", "2^64"),
        ] {
            let why = refused(Blkparse::default(), text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
