//! Comma separated values with a heading: `ts_us,op,offset,size`, as in traces that are converted
//! for libCacheSim.
//!
//! The heading names the columns. Their order is free, and other columns are ignored. `offset` and
//! `size` are required, in bytes. `ts_us` is in microseconds, with or without a fraction; `op` is
//! `R`, `W` or `D`, or the word; a trace without it consists of reads. `device` is any name. Lines
//! that begin with `#` are comments.

use forebay_core::Op;

use super::text::{LineFormat, Names, field, number, shown};
use super::{Parsed, request};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Csv {
    columns: Option<Columns>,
    devices: Names,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Columns {
    time: Option<usize>,
    op: Option<usize>,
    offset: usize,
    size: usize,
    device: Option<usize>,
}

/// Returns whether a line is such a heading.
pub(super) fn is_heading(line: &str) -> bool {
    columns(line).is_ok()
}

fn columns(line: &str) -> Result<Columns, String> {
    let names: Vec<String> = line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    let place = |wanted: &str| names.iter().position(|name| name == wanted);
    let needed =
        |wanted: &str| place(wanted).ok_or_else(|| format!("the heading has no column '{wanted}'"));
    Ok(Columns {
        time: place("ts_us"),
        op: place("op"),
        offset: needed("offset")?,
        size: needed("size")?,
        device: place("device"),
    })
}

/// Microseconds as nanoseconds; finer digits are cut off.
fn time(text: &str) -> Result<u64, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    let nanos = number(whole, "time")?.checked_mul(1000);
    let nanos = nanos.and_then(|nanos| nanos.checked_add(number(&fraction, "time").ok()?));
    nanos.ok_or_else(|| format!("'{}' is no time in microseconds", shown(text)))
}

fn op(text: &str) -> Result<Op, String> {
    match text.to_ascii_lowercase().as_str() {
        "r" | "read" => Ok(Op::Read),
        "w" | "write" => Ok(Op::Write),
        "d" | "discard" | "trim" => Ok(Op::Discard),
        _ => Err(format!("'{}' is no operation; R, W or D, please", shown(text))),
    }
}

impl LineFormat for Csv {
    fn line(&mut self, line: &str) -> Parsed {
        if line.starts_with('#') {
            return Ok(None);
        }
        let Some(columns) = self.columns else {
            self.columns = Some(columns(line)?);
            return Ok(None);
        };
        let at = |place: usize, what| field(&mut line.split(',').skip(place), what);
        let time = columns.time.map(|place| time(at(place, "ts_us")?)).transpose()?;
        let op = columns.op.map_or(Ok(Op::Read), |place| op(at(place, "op")?))?;
        let offset = number(at(columns.offset, "offset")?, "offset")?;
        let size = number(at(columns.size, "size")?, "size")?;
        let device =
            columns.device.map_or(Ok(0), |place| self.devices.number(at(place, "device")?))?;
        request(time, op, offset, size, device)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Nanos;

    use super::*;
    use crate::Request;
    use crate::text::tests::{parse, refused};

    #[test]
    fn columns_are_found_by_name() {
        let text = "device,size,OFFSET,op,ts_us,more\nsda,512,4096,r,1.5,x\nsdb,1,0,Trim,2,\n\
                    sda,0,0,R,3,\nsda,8,9,write,4,";
        let found = parse(Csv::default(), text).expect("reads");
        let one = |time, op, offset, len, device| Request {
            time: Some(Nanos(time)),
            op,
            offset,
            len,
            device,
        };
        let expected = [
            one(1500, Op::Read, 4096, 512, 0),
            one(2000, Op::Discard, 0, 1, 1),
            one(4000, Op::Write, 9, 8, 0),
        ];
        assert_eq!(found, expected);
        let found = parse(Csv::default(), "offset,size\n# x,y\n1,2\n#\n").expect("reads");
        assert_eq!((found[0].op, found[0].time, found[0].len), (Op::Read, None, 2));
    }

    #[test]
    fn malformed_input_is_reported() {
        for (text, word) in [
            ("a,b\n1,2\n", "offset"),
            ("offset,size\n1\n", "size"),
            ("offset,size\n-1,2\n", "-1"),
            ("offset,size\n18446744073709551615,2\n", "2^64"),
            ("offset,size\n18446744073709551616,2\n", "offset"),
            ("op,offset,size\nX,1,2\n", "operation"),
            ("ts_us,offset,size\n1.x,1,2\n", "time"),
            ("ts_us,offset,size\n18446744073709551615,1,2\n", "time"),
        ] {
            let why = refused(Csv::default(), text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
