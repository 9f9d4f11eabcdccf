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

    /// Returns the socket that clients reach now.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        self.listener.fd()
    }

    /// Makes the path again if something else has removed it.
    pub(crate) fn restore_path(&self) {
        self.listener.restore(|| Ok(()));
    }

    /// Notes a client. There is one at a time.
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

    /// Returns the client as an operator sees it, if there is one.
    pub(crate) fn peer(&self) -> Option<Client> {
        let session = self.client()?;
        Some(Client::Local { pid: peer_process(session.socket()) })
    }

    /// Makes sure that there is no client.
    ///
    /// # Errors
    /// There is one.
    pub(crate) fn check_unused(&self) -> Result<(), ExportError> {
        match self.peer() {
            Some(client) => Err(busy(&self.volume, self.path(), &listed(&[client]))),
            None => Ok(()),
        }
    }

    /// Ends it: the path is gone, and the client is disconnected when its requests in progress are
    /// answered.
    pub(crate) fn end(&self) {
        // First: a client that is admitted meanwhile is dismissed by whichever of the two comes
        // later.
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
