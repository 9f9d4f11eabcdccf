//! Whole small matrices of requests and their answers.

use super::*;
use crate::request::RequestId;

const FILE: FileFacts = FileFacts {
    size: 1 << 20,
    sector: 512,
    read_only: false,
    block: 4096,
    uid: 5,
    gid: 6,
    outlives: false,
    io_uring: false,
};
const READ_ONLY: FileFacts = FileFacts { read_only: true, ..FILE };

fn of(request: FuseRequest, file: &FileFacts) -> Action {
    decide(&Message { id: RequestId(1), node: ROOT, request }, file)
}

fn refused(action: Action) -> Option<Errno> {
    match action {
        Action::Reply(Err(errno)) => Some(errno),
        _ => None,
    }
}

fn volume(action: Action) -> Option<VolumeRequest> {
    match action {
        Action::Volume(request) => Some(request),
        _ => None,
    }
}

fn init(major: u32, minor: u32, flags: u32) -> Action {
    of(FuseRequest::Init { major, minor, max_readahead: 65536, flags, more: u32::MAX }, &FILE)
}

#[test]
fn requests_come_through_io_uring_if_both_sides_want_it() {
    let file = FileFacts { io_uring: true, ..FILE };
    let agreed = |file: &FileFacts, more| {
        let init =
            FuseRequest::Init { major: 7, minor: 44, max_readahead: 0, flags: 1 << 30, more };
        let Action::Reply(Ok(Content::Init(out))) = of(init, file) else { panic!("refused") };
        (out.flags, out.flags2)
    };
    assert_eq!(agreed(&file, u32::MAX), (1 << 30, 1 << 9));
    assert_eq!(agreed(&file, !(1 << 9)), (0, 0));
    assert_eq!(agreed(&FILE, u32::MAX), (0, 0));
}

#[test]
fn negotiation_agrees_on_what_both_sides_know() {
    for (major, minor) in [(7, 31), (7, 44), (8, 0)] {
        let Action::Reply(Ok(Content::Init(out))) = init(major, minor, u32::MAX) else {
            panic!("{major}.{minor} is refused");
        };
        assert_eq!((out.major, out.minor, out.max_write), (MAJOR, MINOR, MAX_TRANSFER));
        assert_eq!(out.flags, 1 | 1 << 5 | 1 << 15 | 1 << 22);
        assert_eq!(u32::from(out.max_pages) * PAGE, MAX_TRANSFER);
    }
    let Action::Reply(Ok(Content::Init(out))) = init(7, 40, 1 << 15 | 1 << 16) else {
        panic!("refused");
    };
    assert_eq!(out.flags, 1 << 15);
    for (major, minor) in [(7, 30), (6, 99), (0, 0)] {
        assert_eq!(refused(init(major, minor, 0)), Some(Errno::PROTO), "{major}.{minor}");
    }
}

#[test]
fn reads_are_widened_to_sectors_and_cut_at_the_end() {
    let end = FILE.size;
    for (offset, len, expected) in [
        (0, 512, Some((0, 512, 0, 512))),
        (4096, 8192, Some((4096, 8192, 0, 8192))),
        (1, 1, Some((0, 512, 1, 1))),
        (511, 2, Some((0, 1024, 511, 2))),
        (1000, 1000, Some((512, 1536, 488, 1000))),
        (end - 512, 4096, Some((end - 512, 512, 0, 512))),
        (end - 1, 4096, Some((end - 512, 512, 511, 1))),
        (end, 512, None),
        (u64::MAX, u32::MAX / 65536, None),
        (5, 0, None),
    ] {
        let found = match of(FuseRequest::Read { offset, len }, &FILE) {
            Action::Read { request, skip, len } => {
                assert_eq!(request.op, Op::Read);
                Some((request.offset, request.len, skip, len))
            }
            Action::Reply(Ok(Content::Nothing)) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "{len} bytes at {offset}");
    }
    let too_long = FuseRequest::Read { offset: 0, len: MAX_TRANSFER + 1 };
    assert_eq!(refused(of(too_long, &FILE)), Some(Errno::INVAL));
}

#[test]
fn changes_are_whole_sectors_inside_a_file_that_may_be_written() {
    for (offset, len, expected) in [
        (0, 512, None),
        (FILE.size - 512, 512, None),
        (1, 512, Some(Errno::INVAL)),
        (0, 511, Some(Errno::INVAL)),
        (FILE.size, 512, Some(Errno::NOSPC)),
        (FILE.size - 512, 1024, Some(Errno::NOSPC)),
        (u64::MAX - 511, 512, Some(Errno::NOSPC)),
    ] {
        let write = FuseRequest::Write { offset, len, durable: true };
        assert_eq!(refused(of(write, &FILE)), expected, "write of {len} at {offset}");
        assert_eq!(refused(of(write, &READ_ONLY)), Some(Errno::ROFS));
        for mode in [2, 3, 16, 17] {
            let change = FuseRequest::Fallocate { offset, len: len.into(), mode };
            assert_eq!(refused(of(change, &FILE)), expected, "{mode} of {len} at {offset}");
            assert_eq!(refused(of(change, &READ_ONLY)), Some(Errno::ROFS));
        }
    }
    let write = FuseRequest::Write { offset: 512, len: 1024, durable: true };
    let (op, punch) = (Op::Write, false);
    let expected =
        VolumeRequest { op, offset: 512, len: 1024, survives: Survives::PowerLoss, punch };
    assert_eq!(volume(of(write, &FILE)), Some(expected));
    let kept = FileFacts { outlives: true, ..FILE };
    for (file, survives) in [(FILE, Survives::Nothing), (kept, Survives::Daemon)] {
        let write = FuseRequest::Write { offset: 512, len: 1024, durable: false };
        let zeroes = FuseRequest::Fallocate { offset: 512, len: 1024, mode: 16 };
        for change in [write, zeroes] {
            assert_eq!(volume(of(change, &file)).map(|it| it.survives), Some(survives));
        }
    }
    let long = FuseRequest::Write { offset: 0, len: MAX_TRANSFER + 512, durable: false };
    assert_eq!(refused(of(long, &FILE)), Some(Errno::INVAL));
    let empty = of(FuseRequest::Write { offset: 0, len: 0, durable: false }, &FILE);
    assert!(matches!(empty, Action::Reply(Ok(Content::Written(WriteOut { size: 0, .. })))));
}

#[test]
fn holes_and_zeroes_are_told_apart_and_other_modes_refused() {
    for (mode, punch) in [(2, Some(true)), (3, Some(true)), (16, Some(false)), (17, Some(false))] {
        let found = volume(of(FuseRequest::Fallocate { offset: 0, len: 4096, mode }, &FILE));
        assert_eq!(found.map(|request| request.punch), punch, "{mode}");
        assert_eq!(found.map(|request| request.op), Some(Op::WriteZeroes));
    }
    for mode in [0, 1, 8, 18, 32, 64, u32::MAX] {
        let change = FuseRequest::Fallocate { offset: 0, len: 4096, mode };
        assert_eq!(refused(of(change, &FILE)), Some(Errno::OPNOTSUPP), "{mode}");
    }
    let empty = of(FuseRequest::Fallocate { offset: 0, len: 0, mode: 3 }, &FILE);
    assert!(matches!(empty, Action::Reply(Ok(Content::Nothing))));
}

#[test]
fn a_sync_is_a_flush_and_a_close_is_not() {
    assert_eq!(volume(of(FuseRequest::Fsync, &FILE)).map(|request| request.op), Some(Op::Flush));
    for request in [FuseRequest::Flush, FuseRequest::Release, FuseRequest::Destroy] {
        assert!(matches!(of(request, &FILE), Action::Reply(Ok(Content::Nothing))));
    }
}

#[test]
fn the_file_has_its_size_and_cannot_get_another() {
    for (file, mode) in [(FILE, 0o100_600), (READ_ONLY, 0o100_400)] {
        for request in [FuseRequest::GetAttr, FuseRequest::SetAttr { size: Some(FILE.size) }] {
            let Action::Reply(Ok(Content::Attr(out))) = of(request, &file) else {
                panic!("refused");
            };
            assert_eq!((out.attr.size, out.attr.mode), (1 << 20, mode));
            assert_eq!((out.attr.uid, out.attr.gid, out.attr.blocks), (5, 6, 2048));
        }
    }
    for size in [None, Some(0), Some(FILE.size + 512)] {
        assert_eq!(refused(of(FuseRequest::SetAttr { size }, &FILE)), Some(Errno::PERM));
    }
}

#[test]
fn a_file_is_opened_for_the_accesses_that_it_allows() {
    for (file, writes, expected) in [
        (FILE, false, None),
        (FILE, true, None),
        (READ_ONLY, false, None),
        (READ_ONLY, true, Some(Errno::ROFS)),
    ] {
        assert_eq!(refused(of(FuseRequest::Open { writes }, &file)), expected);
    }
}

#[test]
fn requests_for_other_nodes_are_refused_and_notices_ignored() {
    assert_eq!(refused(of(FuseRequest::Unknown, &FILE)), Some(Errno::NOSYS));
    assert_eq!(refused(of(FuseRequest::Lookup, &FILE)), Some(Errno::NOTDIR));
    assert!(matches!(of(FuseRequest::Notice, &FILE), Action::Ignore));
    let elsewhere = |request| decide(&Message { id: RequestId(1), node: 2, request }, &FILE);
    for request in
        [FuseRequest::GetAttr, FuseRequest::StatFs, FuseRequest::Read { offset: 0, len: 512 }]
    {
        assert_eq!(refused(elsewhere(request)), Some(Errno::STALE));
    }
    assert_eq!(refused(elsewhere(FuseRequest::Unknown)), Some(Errno::NOSYS));
    assert!(matches!(elsewhere(FuseRequest::Notice), Action::Ignore));
}

#[test]
fn every_error_of_a_volume_has_a_number() {
    for (error, expected) in [
        (IoError::Invalid, Errno::INVAL),
        (IoError::NoSpace, Errno::NOSPC),
        (IoError::Io, Errno::IO),
        (IoError::ShuttingDown, Errno::IO),
        (IoError::NotSupported, Errno::OPNOTSUPP),
    ] {
        assert_eq!(errno(error), expected);
    }
}
