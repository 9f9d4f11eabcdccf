//! The numbers of the protocol.

/// First eight bytes of the server's greeting.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic number of the second part of the greeting and of each option of a client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts every request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts every request once extended headers were agreed on.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Starts a chunk once extended headers were agreed on.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Flags of the greeting and of the client's answer to it.
pub mod handshake_flag {
    /// Options are answered, and unknown ones are refused without harm.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The 124 zeroes after the answer to `EXPORT_NAME` may be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options that a client may send.
pub mod option {
    /// Choose an export and start; has no error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List all exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers, which have lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
    /// The client is a block device that outlives its connections. The data are eight bytes that
    /// identify the device, and one byte that is 1 if it has a volatile write cache. Such a client
    /// repeats unanswered requests but does not keep answered ones, and cannot notice what a crash
    /// of the daemon has lost. Each write must therefore survive the daemon before it is answered.
    /// Without a write cache each write is durable when it is answered, and there is nothing to
    /// flush. Not part of the protocol and only for the daemon itself: other servers refuse it.
    pub const OUTLIVING: u32 = 0x666f_7265;
}

/// Kinds of replies to options.
pub mod option_reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in all kinds that report an error.
    pub const ERROR: u32 = 1 << 31;
    /// The option is not supported.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option's data are invalid.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// Only `STARTTLS` and `ABORT` are possible before TLS is used.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The option is longer than this server reads.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
    /// The option is refused because extended headers are in use.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The name under which the export is listed.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Features of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The client should treat the export as a disk whose head has to move.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Requests of the transmission phase.
pub mod command {
    /// Data to the client.
    pub const READ: u16 = 0;
    /// Data from the client.
    pub const WRITE: u16 = 1;
    /// The client disconnects.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The range is no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    /// The range shall read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Query the allocation of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// The effect is durable when the reply comes.
    pub const FUA: u16 = 1;
    /// Zeroes shall not become a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read is answered in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeroes slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload (extended headers only).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Kinds of chunks of a structured reply.
pub mod chunk {
    /// No content.
    pub const NONE: u16 = 0;
    /// An offset and the data there.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and a number of zeroes there.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The same with extended headers.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error for the whole request.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Set in the kinds of all chunks that report an error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// Flag of the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
}

/// Status of an extent in `forebay:state`.
pub mod state {
    /// The name of the context.
    pub const NAME: &str = "forebay:state";
    /// The number that this server assigns to the context.
    pub const ID: u32 = 2;
    /// There is a copy in the cache or in RAM.
    pub const CACHED: u32 = 1;
    /// The copy is newer than the origin.
    pub const DIRTY: u32 = 1 << 1;
}

/// Status of an extent in `base:allocation`.
pub mod allocation {
    /// The name of the context.
    pub const NAME: &str = "base:allocation";
    /// The number that this server assigns to the context.
    pub const ID: u32 = 1;
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}
