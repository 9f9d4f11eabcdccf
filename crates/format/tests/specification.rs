//! `docs/format.md` is the specification: it must contain every constant and name of the code.

use forebay_core::{BlockSize, Durability, Mode, ReplacementKind};
use forebay_format::checkpoint::{self, CHUNK_BYTES, MAX_CHECK_BITS};
use forebay_format::layout::{
    DEFAULT_SEGMENT_BYTES, FormatError, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, MIN_SEGMENTS,
    SEGMENTS_ALIGNMENT, VOLUME_AREA_BYTES, VOLUME_AREAS_OFFSET, WANTED_SEGMENTS,
};
use forebay_format::record::{self, HEADER_BYTES, MAX_FREE, MAX_MARKS, entry_bytes};
use forebay_format::superblock::{self, COPY_B, MAX_LEFT_OUT, MAX_TORN, VERSION};
use forebay_format::volume::{self, MAX_NAME, MAX_ORIGIN, MAX_SETTINGS, MAX_VOLUMES};
use forebay_format::{Geometry, MAX_BLOCKS, MAX_COUNT, MAX_NARROW_GENERATION, max_entries};

fn specification() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).expect("docs/format.md is there");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Values with their numbers in the volume table, in the order of these numbers.
fn codes<T: Copy + ToString>(all: &[T], code: impl Fn(T) -> u8) -> String {
    let mut codes: Vec<_> = all.iter().map(|value| (code(*value), value.to_string())).collect();
    codes.sort_unstable();
    let codes: Vec<_> = codes.into_iter().map(|(code, name)| format!("{code} {name}")).collect();
    codes.join(", ")
}

fn smallest_device(block: u64) -> u64 {
    let block = BlockSize::new(block).expect("a block size");
    match Geometry::plan(0, block, 512, None) {
        Err(FormatError::TooSmall { needed, .. }) => needed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_constant_is_in_the_specification() {
    let text = specification();
    let ascii = |magic: &[u8]| format!("`{}`", String::from_utf8_lossy(magic));
    let entries = |bytes| max_entries(BlockSize::new(bytes).expect("a block size"));
    let sayings = [
        format!("| magic | {} |", ascii(&superblock::MAGIC)),
        format!("| magic | {} |", ascii(&volume::MAGIC)),
        format!("| magic | {} |", ascii(&record::MAGIC.to_le_bytes())),
        format!("| magic | {} |", ascii(&checkpoint::MAGIC)),
        format!("| version | {VERSION} |"),
        format!("sequences) is below {MAX_COUNT} "),
        format!("{COPY_B} superblock, copy B {HEADER_BYTES}"),
        format!("{VOLUME_AREAS_OFFSET} volume-table area 0 {VOLUME_AREA_BYTES}"),
        format!("a multiple of {SEGMENTS_ALIGNMENT}"),
        format!("from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES} bytes"),
        format!("formatting uses {DEFAULT_SEGMENT_BYTES}"),
        format!("until there are {WANTED_SEGMENTS} segments"),
        format!("at least {MIN_SEGMENTS} segments"),
        format!("from {} to {} |", BlockSize::MIN, BlockSize::MAX),
        format!("number of volumes, at most {MAX_VOLUMES}"),
        format!("| name_len | 1 to {MAX_NAME} |"),
        format!("| origin_len | 1 to {MAX_ORIGIN} |"),
        format!("number of settings, at most {MAX_SETTINGS}"),
        format!("at most {MAX_MARKS} in a record"),
        format!("at most {MAX_FREE} segments"),
        format!("at most {MAX_LEFT_OUT} ranges"),
        format!("at most {MAX_TORN} cells"),
        format!(
            "{} bytes for blocks of up to 32 KiB, {} for 1 MiB",
            entry_bytes(64),
            entry_bytes(2048)
        ),
        format!(
            "at most {}, {}, {}, {}, {} or {} entries",
            entries(32 << 10),
            entries(64 << 10),
            entries(128 << 10),
            entries(256 << 10),
            entries(512 << 10),
            entries(1 << 20)
        ),
        format!("| chunk_bytes | {CHUNK_BYTES} |"),
        format!("0 to {MAX_CHECK_BITS} |"),
        format!("below 2^{} |", MAX_BLOCKS.ilog2()),
        format!("openings from 2^{} on need", MAX_NARROW_GENERATION.ilog2()),
        format!(
            "{} with blocks of 4 KiB, {} with blocks of 1 MiB",
            smallest_device(4 << 10),
            smallest_device(1 << 20)
        ),
    ];
    for saying in sayings {
        assert!(text.contains(&saying), "docs/format.md does not say: {saying}");
    }
}

/// `UPDATE_HELP=1` writes these rows of the specification.
#[test]
fn the_numbers_of_choices_are_in_the_specification() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).expect("docs/format.md is there");
    let withdrawn = ReplacementKind::WITHDRAWN.iter();
    let withdrawn = withdrawn.map(|(code, old, new)| format!("; {code} was {old}, read as {new}"));
    let policies = codes(ReplacementKind::ALL, ReplacementKind::code);
    let policies = withdrawn.fold(policies, |all, one| all + &one);
    let rows = [
        ("| mode | ", codes(Mode::ALL, Mode::code)),
        ("| durability | ", codes(Durability::ALL, Durability::code)),
        ("| policy | replacement: ", policies),
    ];
    let written = text.split_inclusive('\n').map(|line| {
        let row = rows.iter().find_map(|(field, codes)| {
            let (start, _) = line.split_once(field)?;
            Some(format!("{start}{field}{codes} |\n"))
        });
        row.unwrap_or_else(|| line.to_owned())
    });
    let written: String = written.collect();
    if std::env::var_os("UPDATE_HELP").is_some() {
        std::fs::write(path, &written).expect("docs/format.md is writable");
    } else {
        assert_eq!(text, written, "run this test with UPDATE_HELP=1");
    }
    for (field, _) in rows {
        assert_eq!(text.matches(field).count(), 1, "{field}");
    }
}

/// The offsets in each table of fields with known sizes add up.
#[test]
fn the_tables_have_no_gaps() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).expect("docs/format.md is there");
    let (mut expected, mut rows) = (None, 0);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if line.starts_with("| offset") {
            expected = Some(0);
        } else if let [_, offset, size, _, _, _] = cells[..]
            && let Some(end) = expected
            && let Ok(offset) = offset.parse::<u64>()
        {
            assert_eq!(offset, end, "{line}");
            expected = size.parse::<u64>().ok().map(|size| offset + size);
            rows += 1;
        }
    }
    assert!(rows > 90, "only {rows} fields were found");
}
