//! Extents of a file on the block device of its file system.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::ioctl::{Opcode, Updater, ioctl};

/// `FS_IOC_FIEMAP`.
const FIEMAP: Opcode = 0xc020_660b;
/// `FIEMAP_FLAG_SYNC`: write the file to the device first, so that every extent has a location.
const SYNC: u32 = 1;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 1;
/// Flags of extents whose bytes are not at the reported location: unknown or delayed allocation,
/// encoded, inline, in the tail of another file, or never written.
const ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400 | 0x800;
/// Extents per query.
const BATCH: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; BATCH],
}

/// Returns the ranges of the block device below a file's file system that hold the file, in the
/// order of the file. They are valid only if the file system has one device, that of the file's
/// `st_dev`.
///
/// # Errors
/// The file system does not report them (`EOPNOTSUPP`), or the file cannot be written to the
/// device.
pub fn file_extents(file: impl AsFd) -> io::Result<Vec<Range<u64>>> {
    let (mut places, mut start) = (Vec::new(), 0);
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: SYNC,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); BATCH],
        };
        // SAFETY: the command takes this structure, and writes at most `count` extents behind its
        // head.
        unsafe { ioctl(&file, Updater::<FIEMAP, Map>::new(&mut map)) }?;
        let found = map.extents.get(..map.mapped as usize).unwrap_or_default();
        let Some(last) = found.last() else { return Ok(places) };
        for extent in found.iter().filter(|extent| extent.flags & ELSEWHERE == 0) {
            if let Some(end) = extent.physical.checked_add(extent.length) {
                places.push(extent.physical..end);
            }
        }
        let next = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || next <= start {
            return Ok(places);
        }
        start = next;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!((size_of::<FiemapExtent>(), size_of::<Map>()), (56, 32 + BATCH * 56));
    }

    #[test]
    fn written_ranges_have_extents_and_holes_have_none() {
        let mut file = tempfile::tempfile().expect("a file");
        let nothing = match file_extents(&file) {
            Ok(places) => places,
            // Some file systems do not report extents.
            Err(error) if error.raw_os_error() == Some(95) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(nothing, []);
        file.set_len(64 << 20).expect("long");
        assert_eq!(file_extents(&file).expect("told"), []);
        file.write_all(&vec![7; 1 << 20]).expect("written");
        let bytes = |places: &[Range<u64>]| places.iter().map(|it| it.end - it.start).sum::<u64>();
        assert_eq!(bytes(&file_extents(&file).expect("told")), 1 << 20);
    }
}
