//! The interface by which the daemon manages front ends of any protocol.
//!
//! A front end claims its addresses when it is created. It then serves on every lane, reports the
//! URIs of a volume, disconnects the clients of a stopped volume, and drains when the daemon ends.
//! A front end for kernel devices also publishes and withdraws volumes.
//!
//! When the daemon is replaced by another program, a front end hands its clients over instead: as
//! descriptors, which the next program inherits, each with a label that identifies it.

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use forebay_core::{FrontEndKind, NbdReach};
use forebay_device::ring::Ring;
use forebay_lane::Lane;
use forebay_settings::Settings;

use crate::api::Exports;

/// A protocol through which clients reach volumes, on all lanes. Dropping it releases its
/// addresses.
pub trait FrontEnd: Send + Sync {
    /// Returns the kind of the front end in the setting `export`; `None` if volumes do not choose
    /// it.
    fn kind(&self) -> Option<FrontEndKind> {
        None
    }

    /// Returns the addresses that serve every volume, in the notation of operators; empty if each
    /// volume has its own.
    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the URIs of a volume with this value of the setting `nbd`, one for each address that
    /// its clients may use.
    fn describe(&self, _volume: &str, _nbd: NbdReach) -> Vec<String> {
        Vec::new()
    }

    /// Starts serving `exports` on the calling lane.
    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd>;

    /// Returns whether the lanes need [`Ring::wide`].
    fn needs_wide_ring(&self) -> bool {
        false
    }

    /// Checks whether [`FrontEnd::publish`] is possible at all on this machine.
    ///
    /// # Errors
    /// The reason why this machine cannot have the front end.
    fn check(&self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Exports a volume that the lanes serve, if an export takes more than a name. Has no effect if
    /// the volume is exported already as its settings say. Called off the lanes, and waits for
    /// them.
    ///
    /// # Errors
    /// The volume is not exported, and everything that was set up is removed.
    fn publish(&self, _volume: &str, _settings: &Settings) -> Result<(), ExportError> {
        Ok(())
    }

    /// Stops a published volume from accepting clients that its next settings exclude.
    /// [`FrontEnd::publish`] reverts or completes this. Called off the lanes while they serve the
    /// volume.
    ///
    /// # Errors
    /// [`ExportErrorKind::InUse`] if the volume has such clients; nothing has changed then.
    fn narrow(&self, _volume: &str, _next: &Settings) -> Result<(), ExportError> {
        Ok(())
    }

    /// Returns whether the volume is published, or a former daemon has left parts of its export.
    fn holds(&self, volume: &str) -> bool {
        self.device(volume).is_some()
    }

    /// Ends the export that [`FrontEnd::publish`] began; no effect on a volume that is not
    /// exported. Called off the lanes while they serve the volume. With `force` clients that still
    /// use it get errors.
    ///
    /// # Errors
    /// [`ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    fn withdraw(&self, _volume: &str, _force: bool) -> Result<(), ExportError> {
        Ok(())
    }

    /// Ends the export that [`FrontEnd::publish`] began, because the daemon ends: like
    /// [`FrontEnd::withdraw`] with force, unless the next daemon can continue with it, unnoticed by
    /// clients. Called off the lanes while they serve the volume.
    ///
    /// # Errors
    /// Something is left behind that the next daemon cannot take over.
    fn leave(&self, volume: &str) -> Result<(), ExportError> {
        self.withdraw(volume, true)
    }

    /// Checks that users of a volume will notice only a pause when the next program of this process
    /// takes over. Called off the lanes.
    ///
    /// # Errors
    /// Users would get errors, or the next program could not take over.
    fn check_hand_over(&self, _volume: &str) -> Result<(), ExportError> {
        Ok(())
    }

    /// Returns the clients that have a volume open by connections of their own; the users of its
    /// block device are not among them. Called off the lanes, and waits for nothing.
    fn clients(&self, _volume: &str) -> Vec<Client> {
        Vec::new()
    }

    /// Returns the block device of a published volume, if it has one.
    fn device(&self, _volume: &str) -> Option<ExportedDevice> {
        None
    }

    /// Returns the volumes whose devices were removed by another program, so that their numbers
    /// belong to other devices or to none. Removes links to these devices. [`FrontEnd::publish`]
    /// makes new devices. Called off the lanes, and waits for nothing.
    fn lost(&self) -> Vec<String> {
        Vec::new()
    }

    /// Recreates paths of unix sockets that another program has removed. Called off the lanes,
    /// every second.
    fn restore_paths(&self) {}

    /// Releases the addresses so that another process can claim them. Called after all lanes have
    /// drained.
    fn release(&self);

    /// Returns the volume of a client or an export that this front end hands over; `None` if it
    /// belongs to no volume.
    fn user_of<'a>(&self, _item: &'a HandedOver) -> Option<&'a str> {
        None
    }

    /// Returns the items with which the next program keeps the addresses, besides those that the
    /// lanes have handed over. They belong to this program until the next one is executed:
    /// [`FrontEnd::release`] still releases them. Called after all lanes have handed over.
    fn hand_over(&self) -> Vec<HandedOver> {
        self.release();
        Vec::new()
    }
}

/// A front end on one lane.
pub trait LaneFrontEnd {
    /// Disconnects a volume's clients after their requests in flight have been answered.
    fn dismiss(&self, volume: &str);

    /// Stops accepting clients on every lane. Ends when this lane's requests in flight have been
    /// answered and its clients have disconnected; the time is bounded.
    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Stops serving on this lane, and returns the clients, connected, for the next program. Ends
    /// when this lane's requests in flight have been answered; the time is bounded. Clients that
    /// cannot be handed over are disconnected.
    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>>;
}

/// Part of the state that a front end hands over to the next program.
#[derive(Debug, Default)]
pub struct HandedOver {
    /// Words that describe the part. Only the front end interprets them, possibly in another
    /// version.
    pub label: Vec<String>,
    /// Identity of the volume of [`FrontEnd::user_of`], which differs for another volume of the
    /// same name. The next program continues only with this one. The daemon sets it, unless the
    /// front end has inherited the part itself.
    pub identity: Option<String>,
    /// A descriptor that stays open.
    pub descriptor: Option<OwnedFd>,
    /// Bytes that belong to the part.
    pub data: Vec<u8>,
}

impl HandedOver {
    /// Returns the words after the first one if the first one is `word`.
    pub fn labelled(&self, word: &str) -> Option<&[String]> {
        let (first, rest) = self.label.split_first()?;
        (first == word).then_some(rest)
    }
}

/// Keeps descriptors open beyond the end of this process, whatever the cause, for the next daemon:
/// the service manager.
pub trait DescriptorStore: Send + Sync {
    /// Keeps a descriptor open, labelled as for [`HandedOver`]. Returns whether it does.
    fn keep(&self, label: &[&str], descriptor: BorrowedFd<'_>) -> bool;

    /// Closes the kept descriptors with this label.
    fn forget(&self, label: &[&str]);
}

/// A client that has a volume open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// The client has connected by a unix socket.
    Local {
        /// The client's process; `None` if this namespace does not show it.
        pid: Option<NonZeroU32>,
    },
    /// The client has connected by TCP.
    Remote {
        /// The client's address; `None` if the connection has just ended.
        address: Option<SocketAddr>,
    },
}

/// A block device of the kernel that exports a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedDevice {
    /// Path of the device.
    pub path: PathBuf,
    /// A link to the device with the volume's name.
    pub link: Option<PathBuf>,
}

/// The kind of an [`ExportError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportErrorKind {
    /// The export has clients or other users, which the message names. Force disconnects them.
    InUse,
    /// Another daemon uses a resource that the front end needs.
    Taken,
    /// The daemon has not the privileges.
    NotPermitted,
    /// The machine lacks something.
    Unavailable,
    /// Anything else.
    Failed,
}

/// Why a volume is not exported, or its export is not removed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ExportError {
    /// The kind of error.
    pub kind: ExportErrorKind,
    /// A sentence for the operator, with the remedy.
    pub message: String,
    /// The error of the system.
    #[source]
    pub cause: Option<std::io::Error>,
}
