//! Cache devices that claim to be large: commands that only read them allocate no memory for the
//! claim.

#![allow(clippy::disallowed_methods, reason = "this is about a process, outside the data path")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{TempDir, outcome};
use forebay_core::{BlockSize, RecordNumber};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{Geometry, Superblock, Uuid, volume};

/// A sparse file of 8 TiB with nothing but superblocks and volume tables.
fn claim(path: &Path) {
    let cache = Uuid::from_u128(7);
    let geometry = Geometry::plan(8 << 40, BlockSize::DEFAULT, 512, None).expect("a plan");
    let file = File::create(path).expect("writable");
    file.set_len(geometry.device_bytes).expect("sparse");
    let table = volume::encode(&[], &cache, geometry.block).expect("empty");
    for area in geometry.volume_areas {
        file.write_all_at(&table.bytes, area).expect("writable");
    }
    let superblock = Superblock {
        cache,
        generation: 1,
        compat: 0,
        incompat: 0,
        ro_compat: 0,
        geometry,
        volume_table: table.reference(0),
        checkpoint: None,
        clean_shutdown: false,
        next_volume_id: 1,
        last_record: RecordNumber(0),
        accepted: None,
    };
    for copy in [COPY_A, COPY_B] {
        file.write_all_at(&superblock.encode(copy), copy).expect("writable");
    }
}

/// Memory of address space that a program may take, in bytes.
const ADDRESSES: &str = "--as=4294967296";

#[test]
fn a_cache_that_claims_much_is_refused_within_the_limit() {
    let dir = TempDir::new("hostile");
    let path = dir.at("cache");
    claim(&path);
    let path = path.to_str().expect("text");
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("prlimit");
        let output =
            command.arg(ADDRESSES).arg(env!("CARGO_BIN_EXE_forebay")).args(arguments).output();
        output.expect("it runs")
    };
    for arguments in [&["check", path, "--memory-limit", "512M"][..], &["check", "--quick", path]] {
        let (code, said) = outcome(&limited(arguments));
        assert_eq!(code, Some(3), "{arguments:?}: {said}");
        assert!(said.contains("--memory-limit") && said.contains(path), "{said}");
    }
    let dumped = limited(&["dump", path]);
    assert_eq!(outcome(&dumped).0, Some(0), "{dumped:?}");
    assert!(String::from_utf8_lossy(&dumped.stdout).contains("device size"), "{dumped:?}");
}
