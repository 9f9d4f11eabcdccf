//! The state of an export that all lanes share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_device::{DeviceError, DeviceErrorKind, NbdUri};
use forebay_nbd_wire::handshake::Export;
use forebay_nbd_wire::transmission_flag;
use parking_lot::Mutex;

use crate::connect::NegotiatedConnection;
use crate::handshake::{Agreement, ConnectError, unfit};
use crate::port::{Mail, Port};
use crate::requests::Abilities;
use crate::samples::Samples;

/// The connections of the lanes.
#[derive(Default)]
pub(crate) struct Ports {
    pub(crate) open: Vec<Arc<Port>>,
    /// Number of queues that lanes have open.
    pub(crate) queues: usize,
}

/// See the module.
pub(crate) struct Remote {
    pub(crate) uri: NbdUri,
    pub(crate) name: Arc<str>,
    pub(crate) size: u64,
    pub(crate) logical_block: u64,
    pub(crate) writable: bool,
    pub(crate) agreed: Agreement,
    pub(crate) abilities: Abilities,
    pub(crate) samples: Samples,
    pub(crate) ports: Mutex<Ports>,
    /// Unused connections, made when the device was opened or left by a queue.
    spare: Mutex<Vec<NegotiatedConnection>>,
    /// Number of syncs that have failed, and so have reported that changes may be lost.
    pub(crate) failures: AtomicU64,
    /// The reason why the server's export differs from the one that was opened. Once set, it stays.
    pub(crate) gone: OnceLock<Arc<str>>,
    /// The size that the server reports now, if it differs from the former one.
    pub(crate) size_now: OnceLock<u64>,
    /// The device was dropped.
    pub(crate) closed: AtomicBool,
}

impl Remote {
    pub(crate) fn new(
        uri: NbdUri,
        connection: NegotiatedConnection,
        logical_block: u64,
        writable: bool,
    ) -> Self {
        let agreed = connection.agreed;
        let export = agreed.export;
        let size = export.size - export.size % logical_block;
        Remote {
            name: uri.to_string().into(),
            uri,
            size,
            logical_block,
            writable,
            agreed,
            abilities: Abilities::of(&export, logical_block),
            samples: Samples::plan(size),
            ports: Mutex::default(),
            spare: Mutex::new(vec![connection]),
            failures: AtomicU64::new(0),
            gone: OnceLock::new(),
            size_now: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns whether the server guarantees that several connections see the same data, so that
    /// each lane may have its own.
    pub(crate) fn is_parallel(&self) -> bool {
        self.agreed.export.has(transmission_flag::CAN_MULTI_CONN)
    }

    pub(crate) fn take_spare(&self) -> Option<NegotiatedConnection> {
        self.spare.lock().pop()
    }

    pub(crate) fn put_spare(&self, connection: NegotiatedConnection) {
        self.spare.lock().push(connection);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Makes every link check whether its connection is still needed.
    pub(crate) fn look(&self) {
        let ports = self.ports.lock().open.clone();
        for port in ports {
            // A closed port belongs to a link that has ended.
            let _ = port.post(Mail::Look);
        }
    }

    /// Checks that a new connection leads to the export that was opened.
    pub(crate) fn check(&self, now: &Agreement) -> Result<(), ConnectError> {
        let gone = |cause: String| {
            let cause = self.gone.get_or_init(|| cause.into());
            Err(ConnectError::Refused(cause.to_string()))
        };
        let (size, opened) = (now.export.size, self.agreed.export.size);
        if size != opened {
            self.size_now.get_or_init(|| size);
            return gone(format!(
                "the server came back with another size, {size} bytes instead of {opened}; stop the volume and start it again if that is intended"
            ));
        }
        if let Some(why) = unfit(&now.export).filter(|_| self.writable) {
            return Err(ConnectError::Refused(why.to_owned()));
        }
        let preferred = self.agreed.export.preferred;
        let export = Export { preferred, ..now.export };
        if (export, now.chunks) != (self.agreed.export, self.agreed.chunks) {
            return gone(
                "the server came back with other abilities; stop the volume and start it again"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Records that the export has other content, and returns the reason.
    pub(crate) fn is_another(&self) -> Arc<str> {
        let cause = "the server came back with other content: pages that this volume has not written to have changed; stop the volume, and start it again if the export is the right one";
        self.gone.get_or_init(|| cause.into()).clone()
    }

    pub(crate) fn error(
        &self,
        kind: DeviceErrorKind,
        what: &'static str,
        offset: u64,
        cause: impl Into<Arc<str>>,
    ) -> DeviceError {
        DeviceError { kind, device: self.name.clone(), what, offset, cause: cause.into() }
    }
}
