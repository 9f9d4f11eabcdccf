use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;
use crate::api::DeviceErrorKind;
use crate::file::kind_of;

fn kind(path: &Path, access: Access, size: Option<u64>) -> Result<u64, OpenErrorKind> {
    open(path, access, size).map(|opened| opened.size).map_err(|error| {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        error.kind
    })
}

#[test]
fn only_files_and_block_devices_are_opened() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    let _socket = UnixListener::bind(at("socket")).expect("bound");
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RUSR | Mode::WUSR).expect("pipe");
    symlink(at("nowhere"), at("dangling")).expect("link");
    symlink(at("loop"), at("loop")).expect("link");
    std::fs::write(at("empty"), b"").expect("file");
    std::fs::write(at("tiny"), [0; 511]).expect("file");
    for access in [Access::Exclusive, Access::Shared, Access::Unlocked] {
        for (path, expected) in [
            (folder.path().to_owned(), OpenErrorKind::WrongType),
            (at("socket"), OpenErrorKind::WrongType),
            (at("pipe"), OpenErrorKind::WrongType),
            ("/dev/null".into(), OpenErrorKind::WrongType),
            (at("missing"), OpenErrorKind::NotFound),
            (at("missing/too"), OpenErrorKind::NotFound),
            (at("empty/below"), OpenErrorKind::NotFound),
            (at("dangling"), OpenErrorKind::NotFound),
            (at("loop"), OpenErrorKind::Io),
            (at("empty"), OpenErrorKind::BadSize),
            (at("tiny"), OpenErrorKind::BadSize),
        ] {
            assert_eq!(kind(&path, access, None), Err(expected), "{}", path.display());
        }
    }
}

#[test]
fn links_of_users_lead_to_their_own_files_only() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    let owned = |name: &str, user| {
        std::os::unix::fs::lchown(at(name), Some(user), Some(user)).expect("root may");
    };
    std::fs::create_dir_all(at("dir/below")).expect("folder");
    std::fs::write(at("dir/file"), [0; 4096]).expect("file");
    symlink("../file", at("dir/below/up")).expect("link");
    symlink(at("dir"), at("way")).expect("link");
    for (file, link, user, expected) in [
        (0, "dir/below/up", 0, Ok(4096)),
        (0, "dir/below/up", 1234, Err(OpenErrorKind::Denied)),
        (1234, "dir/below/up", 1234, Ok(4096)),
        (1235, "dir/below/up", 1234, Err(OpenErrorKind::Denied)),
        (0, "way", 1234, Err(OpenErrorKind::Denied)),
        (1234, "way", 0, Ok(4096)),
    ] {
        owned("dir/file", file);
        ["dir/below/up", "way"]
            .iter()
            .for_each(|name| owned(name, if *name == link { user } else { 0 }));
        let path = if link == "way" { at("way/file") } else { at("way/below/../below/up") };
        let found = kind(&path, Access::Exclusive, None);
        assert_eq!(found, expected, "a file of {file} by the link {link} of {user}");
    }
    owned("way", 1234);
    assert_eq!(kind(&at("way/new"), Access::Exclusive, Some(4096)), Err(OpenErrorKind::Denied));
    assert!(!at("dir/new").exists());
    let other = std::fs::File::open(at("dir")).expect("there");
    let other = rustix::fs::fstat(&other).expect("open");
    assert_eq!(links::way(&at("dir/file"), &other), Ok(links::Way::Elsewhere));
    // A kernel link to an open file; its text is not a path.
    let file = std::fs::File::open(at("dir/file")).expect("there");
    std::fs::remove_file(at("dir/file")).expect("ours");
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    assert_eq!(kind(Path::new(&link), Access::Shared, None), Ok(4096));
}

#[test]
fn files_are_created_once_and_their_size_is_checked() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("new");
    for bad in [0, 512, 4097, u64::MAX, 1 << 63] {
        assert_eq!(kind(&path, Access::Exclusive, Some(bad)), Err(OpenErrorKind::BadSize));
    }
    for access in [Access::Shared, Access::Unlocked] {
        assert_eq!(kind(&path, access, Some(8192)), Err(OpenErrorKind::NotFound));
    }
    assert!(!path.exists());
    for _ in 0..2 {
        assert_eq!(kind(&path, Access::Exclusive, Some(8192)), Ok(8192));
    }
    assert_eq!(kind(&path, Access::Shared, Some(8192)), Ok(8192));
    for other in [4096, 12288] {
        assert_eq!(kind(&path, Access::Exclusive, Some(other)), Err(OpenErrorKind::BadSize));
    }
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 8192);
    std::fs::write(&path, vec![0; 8192 + 100]).expect("longer");
    assert_eq!(kind(&path, Access::Exclusive, None), Ok(8192), "whole blocks only");
}

#[test]
fn a_writer_excludes_all_other_users() {
    use Access::{Exclusive, ReadOnly, Shared, Unlocked};
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 4096]).expect("file");
    for (first, second, together) in [
        (Exclusive, Exclusive, false),
        (Exclusive, Shared, false),
        (Exclusive, Unlocked, true),
        (Shared, Exclusive, false),
        (Shared, Shared, true),
        (Shared, Unlocked, true),
        (Unlocked, Exclusive, true),
        (Exclusive, ReadOnly, false),
        (ReadOnly, Exclusive, false),
        (ReadOnly, ReadOnly, false),
        (ReadOnly, Shared, false),
        (ReadOnly, Unlocked, true),
    ] {
        let held = open(&path, first, None).expect("free");
        let expected = if together { Ok(4096) } else { Err(OpenErrorKind::InUse) };
        assert_eq!(kind(&path, second, None), expected, "{first:?}, then {second:?}");
        drop(held);
    }
}

#[test]
fn links_lead_to_the_same_identity() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        std::fs::write(at(name), [0; 4096]).expect("file");
    }
    symlink(at("a"), at("soft")).expect("link");
    std::fs::hard_link(at("a"), at("hard")).expect("link");
    let one = identity(&at("a")).expect("there");
    for same in ["soft", "hard", "./a"] {
        assert_eq!(identity(&at(same)).expect("there"), one);
    }
    assert_ne!(identity(&at("b")).expect("there"), one);
    assert_eq!(identity(&at("c")).expect_err("missing").kind, OpenErrorKind::NotFound);
}

#[test]
fn a_mounted_block_device_is_refused() {
    // The machine may have a block device below `/`; if so, it must not be opened.
    let root = rustix::fs::stat("/").expect("there").st_dev;
    let Some(own) = forebay_host::sysfs::directory(root) else { return };
    let Some(name) = own.file_name() else { return };
    let path = Path::new("/dev").join(name);
    if path.exists() {
        let refused = kind(&path, Access::Exclusive, None).expect_err("mounted");
        assert!(matches!(refused, OpenErrorKind::InUse | OpenErrorKind::Denied));
    }
}

#[test]
fn errors_of_writes_to_protected_devices_are_told_apart() {
    for (errno, expected) in [
        (Errno::ROFS, DeviceErrorKind::ReadOnly),
        (Errno::PERM, DeviceErrorKind::ReadOnly),
        (Errno::IO, DeviceErrorKind::Io),
        (Errno::ACCESS, DeviceErrorKind::Io),
    ] {
        assert_eq!(kind_of(&io::Error::from(errno)), expected, "{errno}");
    }
}

#[test]
fn a_read_only_file_can_be_opened_only_for_reading() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 8192]).expect("file");
    let opened = open(&path, Access::ReadOnly, None).expect("readable");
    assert_eq!(opened.sectors, Sectors::told(512, 4096, 4096, 0), "whatever is below");
    drop(opened);
    if rustix::process::geteuid().is_root() {
        // Permissions do not keep root from writing.
        return;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
    std::fs::set_permissions(&path, mode).expect("ours");
    let refused = open(&path, Access::Exclusive, None).expect_err("no permission");
    assert_eq!(refused.kind, OpenErrorKind::ReadOnly);
    assert!(refused.cause.contains("chmod"), "{refused}");
    open(&path, Access::ReadOnly, None).expect("readable");
}
