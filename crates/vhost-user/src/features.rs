//! Features that the back end offers, of the device and of the protocol.

/// Features of the device, bits of `GET_FEATURES`.
pub mod device {
    /// The largest segment is limited.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The number of segments is limited.
    pub const SEG_MAX: u64 = 1 << 2;
    /// Writes are refused.
    pub const RO: u64 = 1 << 5;
    /// The logical block size is announced.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Flushes are served.
    pub const FLUSH: u64 = 1 << 9;
    /// The preferred request size is announced.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The guest can switch the write cache off and on.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// The device can have several queues.
    pub const MQ: u64 = 1 << 12;
    /// Discards are served.
    pub const DISCARD: u64 = 1 << 13;
    /// Write-zeroes requests are served.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Descriptors can be in separate tables.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are requested by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Features of the protocol are negotiated; not passed to the guest.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The device follows version 1 of the specification.
    pub const VERSION_1: u64 = 1 << 32;

    /// Returns the features that are offered.
    pub fn offered(read_only: bool) -> u64 {
        let always = SIZE_MAX
            | SEG_MAX
            | BLK_SIZE
            | FLUSH
            | TOPOLOGY
            | CONFIG_WCE
            | MQ
            | INDIRECT_DESC
            | EVENT_IDX
            | PROTOCOL_FEATURES
            | VERSION_1;
        always | if read_only { RO } else { DISCARD | WRITE_ZEROES }
    }
}

/// Features of the protocol, bits of `GET_PROTOCOL_FEATURES`.
pub mod protocol {
    /// The device can have several queues.
    pub const MQ: u64 = 1 << 0;
    /// Messages can ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The configuration space is read and written by messages.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in progress are recorded in shared memory.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The client adds and removes regions of memory individually.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    /// The offered features of the protocol.
    pub const OFFERED: u64 = MQ | REPLY_ACK | CONFIG | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS;
}
