//! Texts and numbers in files of `/proc` and `/sys`, and the names in their directories.

use std::fs;
use std::io::Read;
use std::path::Path;

/// The longest text that is read, in bytes.
const MAX_TEXT: u64 = 64 << 10;

/// Returns the trimmed text of a file, unless it is empty.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_matches(|char: char| char.is_whitespace() || char == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the number in a file.
pub fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// Returns the names in a directory in order; empty if the directory does not exist.
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    all.sort_unstable();
    all
}

/// Returns the numbers of all names in a directory that are `prefix` and a number, in order.
pub fn numbers(dir: impl AsRef<Path>, prefix: &str) -> Vec<u32> {
    let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
    let mut all: Vec<u32> = names(dir).iter().filter_map(number).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_are_read_without_blanks_around_them() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        for (bytes, expected) in
            [("a b\n", Some("a b")), (" 7\0", Some("7")), ("\n", None), ("", None)]
        {
            fs::write(&path, bytes).expect("writable");
            assert_eq!(text(&path).as_deref(), expected);
            assert_eq!(number(&path), expected.and_then(|text| text.parse().ok()));
        }
        assert_eq!(text(folder.path().join("absent")), None);
    }

    #[test]
    fn names_with_a_prefix_are_ordered_by_number() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["nbd10", "nbd2", "nbd", "nbd1p1", "sda", "7"] {
            fs::write(folder.path().join(name), "").expect("writable");
        }
        assert_eq!(numbers(folder.path(), "nbd"), [2, 10]);
        assert_eq!(numbers(folder.path(), ""), [7]);
        assert_eq!(names(folder.path().join("absent")), [""; 0]);
    }
}
