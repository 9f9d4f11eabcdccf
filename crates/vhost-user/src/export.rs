//! A published volume: its socket, and the client that uses it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use forebay_device::peer_process;
use forebay_engine::{Client, ExportError, ExportErrorKind};
use forebay_export::clients::listed;
use forebay_export::errors::busy;
use forebay_host::unix_socket::{ListenError, UnixSocket};
use parking_lot::Mutex;

use crate::session::Session;

/// See the module.
pub(crate) struct SocketExport {
    pub(crate) volume: String,
    listener: UnixSocket,
    client: Mutex<Weak<Session>>,
    ended: AtomicBool,
}

impl SocketExport {
    /// Starts to listen.
    ///
    /// # Errors
    /// The socket cannot be used; nothing has changed then.
    pub(crate) fn begin(volume: &str, path: &Path) -> Result<Arc<Self>, ExportError> {
        let listener = UnixSocket::bind(path).map_err(unusable)?;
        Ok(Arc::new(SocketExport {
            volume: volume.to_owned(),
            listener,
            client: Mutex::default(),
            ended: AtomicBool::new(false),
        }))
    }

    /// Returns where the socket is.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Returns the socket at which clients connect.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        self.listener.fd()
    }

    /// Creates the path again if another program has removed it.
    pub(crate) fn restore_path(&self) {
        self.listener.restore(|| Ok(()));
    }

    /// Records the client. A socket has one client at a time.
    pub(crate) fn admit(&self, socket: Arc<OwnedFd>) -> Arc<Session> {
        let session = Session::new(self.volume.clone(), socket);
        *self.client.lock() = Arc::downgrade(&session);
        if self.is_ended() {
            session.dismiss();
        }
        session
    }

    /// Returns whether [`SocketExport::end`] has been called.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Returns the client, if there is one.
    pub(crate) fn client(&self) -> Option<Arc<Session>> {
        self.client.lock().upgrade()
    }

    /// Returns the client, if there is one, as reports show it.
    pub(crate) fn peer(&self) -> Option<Client> {
        let session = self.client()?;
        Some(Client::Local { pid: peer_process(session.socket()) })
    }

    /// Checks that no client is connected.
    ///
    /// # Errors
    /// A client is connected.
    pub(crate) fn check_unused(&self) -> Result<(), ExportError> {
        match self.peer() {
            Some(client) => Err(busy(&self.volume, self.path(), &listed(&[client]))),
            None => Ok(()),
        }
    }

    /// Ends the export: removes the path, and disconnects the client when its requests in progress
    /// are answered.
    pub(crate) fn end(&self) {
        // Set the flag first: then a client that is admitted meanwhile is dismissed either here or
        // by the admission.
        self.ended.store(true, Ordering::SeqCst);
        self.listener.close();
        if let Some(session) = self.client() {
            session.dismiss();
        }
    }
}

/// Converts an error of a socket.
fn unusable(error: ListenError) -> ExportError {
    let message = format!("the socket for a virtual machine: {error}");
    let (kind, cause) = match error {
        ListenError::InUse(_) => (ExportErrorKind::Taken, None),
        ListenError::System { cause, .. } => (ExportErrorKind::Failed, Some(cause)),
        _ => (ExportErrorKind::Failed, None),
    };
    ExportError { kind, message, cause }
}
