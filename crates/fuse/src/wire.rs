//! Numbers and structures of the protocol between the kernel and a FUSE server, in native byte
//! order: the part of Linux's `fuse.h` that a single file needs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version of replies.
pub const MAJOR: u32 = 7;
/// See [`MAJOR`].
pub const MINOR: u32 = 38;
/// The oldest supported version, that of Linux 5.4.
pub const OLDEST_MINOR: u32 = 31;

/// The only node.
pub const ROOT: u64 = 1;

/// Numbers of requests.
pub mod opcode {
    /// Finds a name in a directory.
    pub const LOOKUP: u32 = 1;
    /// Releases references to a node; has no reply.
    pub const FORGET: u32 = 2;
    /// Asks for attributes.
    pub const GETATTR: u32 = 3;
    /// Changes attributes.
    pub const SETATTR: u32 = 4;
    /// Opens a file.
    pub const OPEN: u32 = 14;
    /// Reads.
    pub const READ: u32 = 15;
    /// Writes.
    pub const WRITE: u32 = 16;
    /// Asks for the size of the file system.
    pub const STATFS: u32 = 17;
    /// Closes a file.
    pub const RELEASE: u32 = 18;
    /// Makes writes durable.
    pub const FSYNC: u32 = 20;
    /// Reports errors of earlier writes when a descriptor is closed.
    pub const FLUSH: u32 = 25;
    /// Negotiates.
    pub const INIT: u32 = 26;
    /// Cancels a request.
    pub const INTERRUPT: u32 = 36;
    /// Ends the connection.
    pub const DESTROY: u32 = 38;
    /// Answers a request of the server; has no reply.
    pub const NOTIFY_REPLY: u32 = 41;
    /// [`FORGET`] for several nodes; has no reply.
    pub const BATCH_FORGET: u32 = 42;
    /// Changes how a range is stored.
    pub const FALLOCATE: u32 = 43;
}

/// Flags of [`InitIn`] and [`InitOut`].
pub mod init_flag {
    /// Reads may be sent together.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes may be larger than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Direct I/O may be sent without waiting.
    pub const ASYNC_DIO: u32 = 1 << 15;
    /// [`super::InitOut::max_pages`] is valid.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// The message has a second field of flags.
    pub const MORE: u32 = 1 << 30;
}

/// `FUSE_OVER_IO_URING`, among the flags behind [`init_flag::MORE`].
pub const OVER_IO_URING: u32 = 1 << (41 - 32);

/// Flags of [`OpenOut`].
pub mod open_flag {
    /// The page cache is not used.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Closing sends no [`super::opcode::FLUSH`].
    pub const NOFLUSH: u32 = 1 << 5;
    /// Writes need not wait for each other.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `FATTR_SIZE`: the size is to be changed.
pub const SETATTR_SIZE: u32 = 1 << 3;

/// Flags of [`FallocateIn::mode`].
pub mod fallocate_mode {
    /// The size of the file stays unchanged.
    pub const KEEP_SIZE: u32 = 1;
    /// The range reads as zeroes and need not be allocated.
    pub const PUNCH_HOLE: u32 = 2;
    /// The range reads as zeroes and stays allocated.
    pub const ZERO_RANGE: u32 = 16;
}

/// The first bytes of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the request, with this header.
    pub len: u32,
    /// See [`opcode`].
    pub opcode: u32,
    /// Returned in the reply.
    pub unique: u64,
    /// The node.
    pub node: u64,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The caller.
    pub pid: u32,
    /// Units of 8 bytes of extensions at the end.
    pub extensions: u16,
    /// Unused.
    pub padding: u16,
}

/// The first bytes of every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the reply, with this header.
    pub len: u32,
    /// 0, or a negative error number.
    pub error: i32,
    /// The number of the request.
    pub unique: u64,
}

/// [`opcode::INIT`]: the fields that every version has.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    /// The kernel's version.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// See [`init_flag`]; with [`init_flag::MORE`] 32 more flags follow.
    pub flags: u32,
}

/// Reply to [`opcode::INIT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    /// The version of the protocol from now on.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// See [`init_flag`].
    pub flags: u32,
    /// Most background requests in flight.
    pub max_background: u16,
    /// From this number on the file system counts as congested.
    pub congestion_threshold: u16,
    /// Most bytes of a write.
    pub max_write: u32,
    /// Nanoseconds.
    pub time_granularity: u32,
    /// Most pages of a request.
    pub max_pages: u16,
    /// Unused.
    pub map_alignment: u16,
    /// More flags.
    pub flags2: u32,
    /// Unused.
    pub unused: [u32; 7],
}

/// [`opcode::SETATTR`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetAttrIn {
    /// The attributes to be changed, like [`SETATTR_SIZE`].
    pub valid: u32,
    /// Unused.
    pub padding: u32,
    /// Unused.
    pub handle: u64,
    /// The new size.
    pub size: u64,
    /// Other attributes.
    pub rest: [u64; 8],
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attr {
    /// The node.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Sectors of 512 bytes.
    pub blocks: u64,
    /// Times, in seconds: access, change of the content, change of the attributes.
    pub times: [u64; 3],
    /// Fractions of these times, in nanoseconds.
    pub fractions: [u32; 3],
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Unused.
    pub rdev: u32,
    /// Preferred bytes of a request.
    pub block_size: u32,
    /// Unused.
    pub flags: u32,
}

/// Reply to [`opcode::GETATTR`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttrOut {
    /// Seconds for which the attributes may be cached.
    pub valid: u64,
    /// Nanoseconds more.
    pub valid_fraction: u32,
    /// Unused.
    pub padding: u32,
    /// The attributes.
    pub attr: Attr,
}

/// [`opcode::OPEN`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenIn {
    /// Flags of open(2).
    pub flags: u32,
    /// Flags of FUSE.
    pub open_flags: u32,
}

/// Reply to [`opcode::OPEN`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenOut {
    /// Number that the kernel repeats in requests of the open file.
    pub handle: u64,
    /// See [`open_flag`].
    pub open_flags: u32,
    /// Unused.
    pub padding: u32,
}

/// [`opcode::READ`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadIn {
    /// The open file.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Flags of FUSE.
    pub read_flags: u32,
    /// Unused.
    pub lock_owner: u64,
    /// Flags of open(2).
    pub flags: u32,
    /// Unused.
    pub padding: u32,
}

/// [`opcode::WRITE`]; the data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteIn {
    /// The open file.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Flags of FUSE.
    pub write_flags: u32,
    /// Unused.
    pub lock_owner: u64,
    /// Flags of open(2).
    pub flags: u32,
    /// Unused.
    pub padding: u32,
}

/// Reply to [`opcode::WRITE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteOut {
    /// Bytes written.
    pub size: u32,
    /// Unused.
    pub padding: u32,
}

/// Reply to [`opcode::STATFS`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatFsOut {
    /// Numbers of blocks: all, free, and available to users.
    pub blocks: [u64; 3],
    /// Files.
    pub files: u64,
    /// Files that can be made.
    pub free_files: u64,
    /// Preferred bytes of a request.
    pub block_size: u32,
    /// Bytes of a name.
    pub name_len: u32,
    /// Bytes of a block.
    pub fragment_size: u32,
    /// Unused.
    pub padding: u32,
    /// Unused.
    pub spare: [u32; 6],
}

/// [`opcode::FALLOCATE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FallocateIn {
    /// The open file.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// See [`fallocate_mode`].
    pub mode: u32,
    /// Unused.
    pub padding: u32,
}

/// Bytes of [`InHeader`].
pub const IN_HEADER: usize = size_of::<InHeader>();
/// Bytes of [`OutHeader`].
pub const OUT_HEADER: usize = size_of::<OutHeader>();
/// Bytes of a write before its data.
pub const WRITE_HEADER: usize = IN_HEADER + size_of::<WriteIn>();

const _: () = assert!(
    IN_HEADER == 40
        && OUT_HEADER == 16
        && size_of::<InitOut>() == 64
        && size_of::<SetAttrIn>() == 88
        && size_of::<AttrOut>() == 104
        && size_of::<ReadIn>() == 40
        && size_of::<WriteIn>() == 40
        && size_of::<StatFsOut>() == 80
        && size_of::<FallocateIn>() == 32
);
