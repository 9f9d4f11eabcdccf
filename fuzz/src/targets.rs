//! The targets. `scripts/fuzz` reads their names from the files.

pub(crate) mod admin_request;
pub(crate) mod checkpoint;
pub(crate) mod declaration;
pub(crate) mod fuse_request;
pub(crate) mod hostile_image;
pub(crate) mod nbd_client;
pub(crate) mod nbd_handshake;
pub(crate) mod nbd_transmission;
pub(crate) mod partitions;
pub(crate) mod record;
pub(crate) mod recover_image;
pub(crate) mod superblock;
pub(crate) mod text;
pub(crate) mod ublk_request;
pub(crate) mod vhost_user;
pub(crate) mod volume_table;

use crate::mutation;

/// Changes the first `size` bytes of `data`, which has room for `max_size`, as `seed` decides;
/// returns the new size.
pub(crate) type Mutate = fn(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize;

/// A target.
pub(crate) struct Target {
    /// Name of the target.
    pub(crate) name: &'static str,
    /// Takes one input and panics if something is wrong.
    pub(crate) run: fn(&[u8]),
    /// Makes the next input.
    #[cfg_attr(not(any(fuzzing, test)), expect(dead_code, reason = "inputs come from files"))]
    pub(crate) mutate: Mutate,
}

/// All targets.
pub(crate) const TARGETS: [Target; 16] = [
    Target { name: "admin_request", run: admin_request::run, mutate: plain },
    Target { name: "checkpoint", run: checkpoint::run, mutate: checkpoint::mutate },
    Target { name: "declaration", run: declaration::run, mutate: plain },
    Target { name: "fuse_request", run: fuse_request::run, mutate: fuse_request::mutate },
    Target { name: "hostile_image", run: hostile_image::run, mutate: plain },
    Target { name: "nbd_client", run: nbd_client::run, mutate: plain },
    Target { name: "nbd_handshake", run: nbd_handshake::run, mutate: nbd_handshake::mutate },
    Target {
        name: "nbd_transmission",
        run: nbd_transmission::run,
        mutate: nbd_transmission::mutate,
    },
    Target { name: "partitions", run: partitions::run, mutate: plain },
    Target { name: "record", run: record::run, mutate: record::mutate },
    Target { name: "recover_image", run: recover_image::run, mutate: recover_image::mutate },
    Target { name: "superblock", run: superblock::run, mutate: superblock::mutate },
    Target { name: "text", run: text::run, mutate: plain },
    Target { name: "ublk_request", run: ublk_request::run, mutate: ublk_request::mutate },
    Target { name: "vhost_user", run: vhost_user::run, mutate: vhost_user::mutate },
    Target { name: "volume_table", run: volume_table::run, mutate: volume_table::mutate },
];

/// Mutates as libFuzzer chooses.
fn plain(data: &mut [u8], size: usize, max_size: usize, _: u32) -> usize {
    mutation::change(data, size, max_size)
}
