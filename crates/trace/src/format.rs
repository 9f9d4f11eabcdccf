//! The formats of traces.

use std::path::Path;
use std::str::FromStr;

use super::vscsi::VscsiVersion;
use super::{blkparse, csv, iolog, msr};

/// The supported formats. The modules of these names describe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Columns with a heading.
    Csv,
    /// The traces of the ARC paper.
    Lis,
    /// MSR Cambridge.
    Msr,
    /// The output of blkparse.
    Blkparse,
    /// The output of fio.
    Iolog,
    /// CloudPhysics, binary.
    Vscsi,
}

/// The names of the formats.
pub(super) const WORDS: &str = "csv, lis, msr, blkparse, iolog, vscsi";

impl Format {
    /// All formats.
    pub const ALL: &'static [Format] =
        &[Format::Csv, Format::Lis, Format::Msr, Format::Blkparse, Format::Iolog, Format::Vscsi];

    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Lis => "lis",
            Format::Msr => "msr",
            Format::Blkparse => "blkparse",
            Format::Iolog => "iolog",
            Format::Vscsi => "vscsi",
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Format::ALL.iter().find(|format| format.name() == text).copied();
        found.ok_or_else(|| format!("choose one of {WORDS}"))
    }
}

/// Returns the format of a file that begins with `head`. The content decides; the name is needed
/// only if all fields are numbers.
pub(super) fn tell(head: &[u8], path: &Path) -> Option<Format> {
    if head.contains(&0) {
        return VscsiVersion::tell(head).map(|_| Format::Vscsi);
    }
    let text = String::from_utf8_lossy(head);
    let first = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    let named = |end: &str| {
        let name = name.as_deref().unwrap_or_default();
        name.strip_suffix(".zst").unwrap_or(name).ends_with(end)
    };
    let numbers = first.split_ascii_whitespace().all(|field| field.parse::<u64>().is_ok());
    if iolog::is_heading(first) {
        Some(Format::Iolog)
    } else if csv::is_heading(first) {
        Some(Format::Csv)
    } else if msr::is_line(first) {
        Some(Format::Msr)
    } else if blkparse::is_line(first) {
        Some(Format::Blkparse)
    } else if numbers && (named(".lis") || first.split_ascii_whitespace().count() == 4) {
        Some(Format::Lis)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_content() {
        let vscsi = {
            let mut record = vec![0; 64];
            record[15] = 1;
            record[47] = 1;
            record
        };
        let cases: [(&[u8], &str, Option<Format>); 10] = [
            (b"ts_us,op,offset,size\n0,R,0,1\n", "x", Some(Format::Csv)),
            (b"\n12 8 0 0\n13 8 0 1\n", "x", Some(Format::Lis)),
            (b"12 8\n", "P1.LIS.zst", Some(Format::Lis)),
            (b"12 8\n", "x", None),
            (b"128166372003061629,usr,0,Read,7014609920,24576,41286\n", "x", Some(Format::Msr)),
            (b"  8,0 3 1 0.000000000 697 Q W 0 + 8 [x]\n", "x", Some(Format::Blkparse)),
            (b"fio version 3 iolog\n", "x", Some(Format::Iolog)),
            (b"fio version 4 iolog\n", "x", None),
            (&vscsi, "x", Some(Format::Vscsi)),
            (&[0; 64], "x.csv", None),
        ];
        for (head, name, expected) in cases {
            assert_eq!(tell(head, Path::new(name)), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn words_are_read() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(*format));
            assert!(WORDS.split(", ").any(|word| word == format.name()));
        }
        assert!("CSV".parse::<Format>().is_err());
    }
}
