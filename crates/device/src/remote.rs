//! Names of devices on other machines. Crates above this one open them.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Device;
use crate::nbd_uri::{NbdUri, NbdUriError};
use crate::open::{Access, OpenError};
use crate::rbd_name::{RbdName, RbdNameError};

/// Opens a device on another machine.
pub type Connect<'a> = &'a dyn Fn(&RemoteName, Access) -> Result<Arc<dyn Device>, OpenError>;

/// A device on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RemoteName {
    /// An export of an NBD server.
    Nbd(NbdUri),
    /// An image of a Ceph cluster.
    Rbd(RbdName),
}

/// Why a text is not such a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteNameError {
    /// An invalid URI of NBD.
    #[error(transparent)]
    Nbd(#[from] NbdUriError),
    /// An invalid name of an image.
    #[error(transparent)]
    Rbd(#[from] RbdNameError),
}

impl RemoteName {
    /// Returns whether a text has the form of such a name.
    pub fn is_one(text: &str) -> bool {
        NbdUri::is_one(text) || RbdName::is_one(text)
    }

    /// Returns the same device with absolute paths.
    ///
    /// # Errors
    /// The process has no working directory, or a path is too long.
    pub(crate) fn absolute(&self) -> io::Result<Self> {
        Ok(match self {
            RemoteName::Nbd(uri) => RemoteName::Nbd(uri.absolute()?),
            RemoteName::Rbd(name) => RemoteName::Rbd(name.absolute()?),
        })
    }

    /// Returns whether both names lead to the same device, as far as names can show.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (RemoteName::Nbd(one), RemoteName::Nbd(other)) => one.same_export(other),
            (RemoteName::Rbd(one), RemoteName::Rbd(other)) => one.same_image(other),
            (RemoteName::Nbd(_), RemoteName::Rbd(_)) | (RemoteName::Rbd(_), RemoteName::Nbd(_)) => {
                false
            }
        }
    }

    /// Returns the time for which to retry if the other machine cannot be reached at first.
    pub fn patience(&self) -> Duration {
        match self {
            RemoteName::Nbd(uri) => uri.reconnect,
            RemoteName::Rbd(name) => name.timeout,
        }
    }
}

impl FromStr for RemoteName {
    type Err = RemoteNameError;

    fn from_str(text: &str) -> Result<Self, RemoteNameError> {
        Ok(match RbdName::is_one(text) {
            true => RemoteName::Rbd(text.parse()?),
            false => RemoteName::Nbd(text.parse()?),
        })
    }
}

impl fmt::Display for RemoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteName::Nbd(uri) => uri.fmt(f),
            RemoteName::Rbd(name) => name.fmt(f),
        }
    }
}
