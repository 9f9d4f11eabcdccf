//! The locks by which QEMU and its tools prevent two writers of one image, and libvirt prevents two
//! guests with one disk. They lock bytes of the file, independent of reads and writes of these
//! bytes; each program takes its own locks, and then checks for conflicting ones.
//!
//! QEMU (`block/file-posix.c`) locks one byte for each permission that it uses, and another byte
//! for each permission that it does not share. All its locks are shared locks, so that several
//! programs can use one permission; it finds a conflict by testing whether an exclusive lock of the
//! other byte would be possible. libvirt (`virtlockd`) locks the first byte.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::description::{Range, is_locked, lock_range};

/// First byte of the lock range for permissions in use.
const USED: i64 = 100;
/// First byte of the lock range for permissions that are not shared.
const UNSHARED: i64 = 200;

/// Numbers of QEMU's permissions (`BLK_PERM_...`).
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const WRITE_UNCHANGED: i64 = 2;
const RESIZE: i64 = 3;

/// The byte that libvirt locks.
const LIBVIRT: Range = Range { start: 0, len: 1 };

fn byte(first: i64, permission: i64) -> Range {
    Range { start: first + permission, len: 1 }
}

/// Takes the locks of a writer that excludes other writers, or of a reader. As for a guest's disk,
/// tools that accept changes during reading (`qemu-img info --force-share`) can still read the
/// image of a writer.
///
/// # Errors
/// [`Errno::WOULDBLOCK`] if a guest or a tool uses the image; otherwise the error of the system.
pub(super) fn lock(fd: &OwnedFd, exclusive: bool) -> Result<(), Errno> {
    let (used, unshared): (&[i64], &[i64]) = match exclusive {
        true => {
            (&[CONSISTENT_READ, WRITE, WRITE_UNCHANGED, RESIZE], &[WRITE, WRITE_UNCHANGED, RESIZE])
        }
        false => (&[CONSISTENT_READ], &[WRITE, RESIZE]),
    };
    lock_range(fd, LIBVIRT, exclusive)?;
    for permission in used {
        lock_range(fd, byte(USED, *permission), false)?;
    }
    for permission in unshared {
        lock_range(fd, byte(UNSHARED, *permission), false)?;
    }
    // Conflicts are checked after locking, so that of two programs that open the image at the same
    // time, at least one sees the other's locks.
    let conflicting = used.iter().map(|it| byte(UNSHARED, *it));
    for range in conflicting.chain(unshared.iter().map(|it| byte(USED, *it))) {
        if is_locked(fd, range)? {
            return Err(Errno::WOULDBLOCK);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn opened(path: &std::path::Path) -> OwnedFd {
        File::options().read(true).write(true).open(path).expect("there").into()
    }

    #[test]
    fn locks_of_guests_and_tools_are_respected_in_every_combination() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 4096]).expect("a file");
        // The locks of QEMU for a guest's disk, of a tool that reads, of one that reads with
        // --force-share, and of virtlockd.
        let guest: &[i64] = &[100, 101, 103, 201, 203];
        let reader: &[i64] = &[100, 201, 203];
        for (theirs, bytes, writer, ours_reads) in [
            ("nothing", &[][..], true, true),
            ("a guest", guest, false, false),
            ("a tool that reads", reader, false, true),
            ("a tool that accepts changes", &[100], true, true),
        ] {
            for (exclusive, expected) in [(true, writer), (false, ours_reads)] {
                let (other, own) = (opened(&path), opened(&path));
                for byte in bytes {
                    lock_range(&other, Range { start: *byte, len: 1 }, false).expect("free");
                }
                let locked = lock(&own, exclusive);
                assert_eq!(locked.is_ok(), expected, "{theirs}, exclusive: {exclusive}");
            }
        }
        for (exclusive, theirs_exclusive, expected) in
            [(true, true, false), (true, false, false), (false, true, false), (false, false, true)]
        {
            let (other, own) = (opened(&path), opened(&path));
            lock_range(&other, LIBVIRT, theirs_exclusive).expect("free");
            assert_eq!(lock(&own, exclusive).is_ok(), expected, "libvirt");
        }
    }
}
