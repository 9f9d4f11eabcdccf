//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime` without a heading
//! (Narayanan, Donnelly and Rowstron, "Write off-loading", FAST 2008). Times are in units of 100 ns
//! since 1601, offset and size in bytes. Host and disk together identify the device.

use forebay_core::Op;

use super::text::{LineFormat, Names, field, number, shown};
use super::{Parsed, request};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Msr {
    devices: Names,
}

/// Whether a line is in this format.
pub(super) fn is_line(line: &str) -> bool {
    Msr::default().line(line).is_ok() && line.split(',').count() == 7
}

impl LineFormat for Msr {
    fn line(&mut self, line: &str) -> Parsed {
        let mut fields = line.split(',');
        let time = number(field(&mut fields, "Timestamp")?, "time")?;
        let host = field(&mut fields, "Hostname")?;
        let disk = field(&mut fields, "DiskNumber")?;
        let kind = field(&mut fields, "Type")?;
        let op = match kind.to_ascii_lowercase().as_str() {
            "read" => Op::Read,
            "write" => Op::Write,
            _ => return Err(format!("'{}' is no type; Read or Write, please", shown(kind))),
        };
        let offset = number(field(&mut fields, "Offset")?, "offset")?;
        let size = number(field(&mut fields, "Size")?, "size")?;
        let device = self.devices.number(&format!("{host} {disk}"))?;
        let nanos = time.checked_mul(100).ok_or("the time is beyond the year 2185")?;
        request(Some(nanos), op, offset, size, device)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Nanos;

    use super::*;
    use crate::text::tests::{parse, refused};

    #[test]
    fn hosts_and_disks_are_devices() {
        let text = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
                    128166372003061630,usr,1,Write,512,512,1\n\
                    128166372003061630,usr,0,Write,0,512,1\n";
        let found = parse(Msr::default(), text).expect("reads");
        let devices: Vec<u32> = found.iter().map(|one| one.device).collect();
        assert_eq!(devices, [0, 1, 0]);
        assert_eq!((found[0].op, found[0].offset, found[0].len), (Op::Read, 7_014_609_920, 24576));
        let Some((Nanos(first), Nanos(second))) = found[0].time.zip(found[1].time) else {
            panic!("no times");
        };
        assert_eq!(second - first, 100);
        assert!(is_line("128166372003061629,usr,0,Read,7014609920,24576,41286"));
        assert!(!is_line("1,usr,0,Read,7014609920,24576"));
    }

    #[test]
    fn malformed_input_is_reported() {
        for (text, word) in [
            ("1,a,0,Flush,0,1,1\n", "Flush"),
            ("1,a,0,Read,0\n", "Size"),
            ("18446744073709551615,a,0,Read,0,1,1\n", "2185"),
        ] {
            let why = refused(Msr::default(), text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
