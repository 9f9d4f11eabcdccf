//! The daemon's front ends: their options, and how they are claimed. A new front end gets its
//! options in [`FrontEndOptions`] and a line in [`claim`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::{ExportSet, FrontEndKind, NbdReach};
use forebay_engine::{DescriptorStore, ExportError, ExportErrorKind, FrontEnd, Settings};
use forebay_export::{Identify, VolumeIdentity};
use forebay_fuse::FuseFrontEnd;
use forebay_lane::MemoryBudget;
use forebay_nbd::{
    Limits, ListenAddress, ListenError, NbdFrontEnd, Network, Protection, Tls, TlsFiles,
};
use forebay_nbd_kernel::NbdServer;
use forebay_vhost_user::VhostUserFrontEnd;

use super::afterlife::outlasting;
use super::hand_over::Items;
use super::host::{DISMISSAL, RawExport};
use super::host_api::Host;
use super::kept::FdStore;
use super::state::State;
use crate::paths::socket_error;

/// Options of the front ends.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FrontEndOptions {
    /// Address to serve NBD at: the path of a unix socket (with a '/') or HOST:PORT; repeatable
    /// [default: nbd.sock beside the admin socket]
    #[arg(long, value_name = "PATH|HOST:PORT")]
    pub(crate) nbd: Vec<ListenAddress>,

    /// Network from which clients may connect to NBD by TCP, or one address; repeatable [default:
    /// all]
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) nbd_allow: Vec<Network>,

    /// Certificate of this server, PEM, with those between it and a trusted one: clients of NBD by
    /// TCP have to use TLS
    #[arg(long, value_name = "FILE", requires = "nbd_tls_key", value_hint = clap::ValueHint::FilePath)]
    pub(crate) nbd_tls_cert: Option<PathBuf>,

    /// Key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert", value_hint = clap::ValueHint::FilePath)]
    pub(crate) nbd_tls_key: Option<PathBuf>,

    /// Certificates of authorities, PEM: clients need a certificate signed by one of them
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert", value_hint = clap::ValueHint::FilePath)]
    pub(crate) nbd_tls_client_ca: Option<PathBuf>,

    /// Lists of revoked certificates of clients, PEM, one of each of these authorities; read again
    /// when replaced
    #[arg(long, value_name = "FILE", requires = "nbd_tls_client_ca", value_hint = clap::ValueHint::FilePath)]
    pub(crate) nbd_tls_client_crl: Option<PathBuf>,

    /// Directory of the files below the block devices of export=fuse [default: export beside the
    /// admin socket]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) export_dir: Option<PathBuf>,

    /// Serve devices of export=fuse through io_uring where the kernel allows it: faster, but the
    /// devices end with the daemon, and no other program can take them over
    #[arg(long)]
    pub(crate) fuse_io_uring: bool,

    /// Directory in which udev finds the volumes of loop devices.
    #[arg(skip)]
    fuse_names: PathBuf,

    /// Directory in which udev finds the volumes of ublk devices.
    #[arg(skip)]
    ublk_names: PathBuf,

    /// Directory in which udev finds the volumes of devices of the kernel's NBD client.
    #[arg(skip)]
    nbd_names: PathBuf,

    /// Directory of the sockets of export=vhost-user.
    #[arg(skip)]
    vhost_user_dir: PathBuf,
}

impl FrontEndOptions {
    /// Checks the addresses against each other and the admin socket, and fills in the defaults.
    ///
    /// # Errors
    /// An address is used twice, or a path is too long.
    pub(crate) fn complete(mut self, admin: &Path) -> Result<Self, ApiError> {
        let refused = |message: String| Err(ApiError::invalid("--nbd", message));
        if self.nbd.is_empty() {
            let path = std::path::absolute(admin.with_file_name("nbd.sock"))
                .map_err(|error| ApiError::invalid("--nbd", error))?;
            self.nbd.push(ListenAddress::unix(path).map_err(|error| listen_error(&error))?);
        }
        let dir = self.export_dir.take().unwrap_or_else(|| admin.with_file_name("export"));
        let dir =
            std::path::absolute(&dir).map_err(|error| ApiError::invalid("--export-dir", error))?;
        self.export_dir = Some(dir);
        self.fuse_names = admin.with_file_name("fuse");
        self.ublk_names = admin.with_file_name("ublk");
        let sockets = std::path::absolute(admin.with_file_name("vhost-user"));
        self.vhost_user_dir = sockets.map_err(|error| ApiError::invalid("--socket", error))?;
        self.nbd_names = admin.with_file_name("nbd-kernel");
        for (index, address) in self.nbd.iter().enumerate() {
            if self.nbd[..index].contains(address) {
                return refused(format!("{address} is given twice"));
            }
            if matches!(address, ListenAddress::Unix(path) if path == admin) {
                return refused(format!("{address} is the admin socket"));
            }
        }
        let by_tcp = |address: &ListenAddress| matches!(address, ListenAddress::Tcp { .. });
        for (given, option) in [
            (!self.nbd_allow.is_empty(), "--nbd-allow"),
            (self.nbd_tls_cert.is_some(), "--nbd-tls-cert"),
        ] {
            if given && !self.nbd.iter().any(by_tcp) {
                let message = "it applies to TCP only, and there is no --nbd HOST:PORT; add one, or remove this option";
                return Err(ApiError::invalid(option, message));
            }
        }
        Ok(self)
    }
}

impl FrontEndOptions {
    /// Returns the first unix socket of NBD.
    fn local_nbd(&self) -> Option<PathBuf> {
        self.nbd.iter().find_map(|address| match address {
            ListenAddress::Unix(path) => Some(path.clone()),
            ListenAddress::Tcp { .. } => None,
        })
    }

    /// Checks the files that a start reads.
    ///
    /// # Errors
    /// One of the files cannot be used.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        self.tls().map(drop)
    }

    /// Reads the files of TLS.
    fn tls(&self) -> Result<Option<Tls>, ApiError> {
        let (Some(certificate), Some(key)) = (&self.nbd_tls_cert, &self.nbd_tls_key) else {
            return Ok(None);
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.nbd_tls_client_ca.clone(),
            client_crl: self.nbd_tls_client_crl.clone(),
        };
        let refused = |error| ApiError::invalid("--nbd-tls-cert", error);
        Tls::load(&files).map(Some).map_err(refused)
    }
}

/// Provides the identities of served volumes, which distinguish them from others of the same name,
/// for front ends that are claimed before there is a data path.
#[derive(Clone, Default)]
pub(crate) struct Identities(Arc<OnceLock<Weak<dyn Host>>>);

impl Identities {
    /// Answers from the data path from now on.
    pub(crate) fn bind(&self, host: &Arc<dyn Host>) {
        let _ = self.0.set(Arc::downgrade(host));
    }

    fn of(&self, volume: &str) -> Option<VolumeIdentity> {
        self.0.get()?.upgrade()?.told_apart(&volume.parse().ok()?)
    }
}

/// Claims the addresses of all front ends, or takes over those that the previous program has handed
/// over. Front ends that leave devices to the next daemon find them by `state` and `identities`.
///
/// # Errors
/// An address is in use or cannot be used; then none is claimed.
pub(crate) fn claim(
    options: &FrontEndOptions,
    memory: &Arc<MemoryBudget>,
    inherited: &mut Items,
    state: &State,
    identities: &Identities,
) -> Result<Vec<Arc<dyn FrontEnd>>, ApiError> {
    let limits = Limits { drain: DISMISSAL, ..Limits::default() };
    let protection = Protection { allow: options.nbd_allow.clone(), tls: options.tls()? };
    let mut left = |kind: FrontEndKind| inherited.remove(kind.name()).unwrap_or_default();
    let mut clients = left(FrontEndKind::Nbd);
    let identify = || -> Identify {
        let identities = identities.clone();
        Box::new(move |volume: &str| identities.of(volume))
    };
    let mut claim_nbd = || {
        let (protection, memory) = (protection.clone(), memory.clone());
        NbdFrontEnd::claim(&options.nbd, protection, limits, memory, &mut clients, identify())
    };
    let nbd = outlasting(&mut claim_nbd, ListenError::is_in_use);
    let nbd = nbd.map_err(|error| listen_error(&error))?;
    let vhost_user = VhostUserFrontEnd::new(&options.vhost_user_dir, DISMISSAL, memory.clone());
    let connected = nbd.outliving();
    let mut all: Vec<Arc<dyn FrontEnd>> = vec![Arc::new(nbd), Arc::new(vhost_user)];
    if let Some(dir) = &options.export_dir {
        let files = left(FrontEndKind::Fuse);
        let store = FdStore::from_env().map(|kept| -> Arc<dyn DescriptorStore> { Arc::new(kept) });
        let io_uring = options.fuse_io_uring;
        let keeping = (store, identify());
        let marks = (&*state.dir().join("fuse"), &*options.fuse_names);
        let claimed = FuseFrontEnd::claim(dir, marks, memory.clone(), files, keeping, io_uring);
        all.push(Arc::new(claimed));
    }
    let wanted = |name: &str, kind| {
        let volumes = state.volumes();
        let mut named = volumes.iter().filter(|entry| entry.volume.name.as_str() == name);
        let wants = |set: &ExportSet| {
            set.has(kind) || (set.is_auto() && FrontEndKind::AUTOMATIC.contains(&kind))
        };
        named.any(|entry| wants(&entry.volume.settings.export))
    };
    all.push(forebay_ublk::claim(
        (&state.dir().join("ublk"), &options.ublk_names),
        |name| wanted(name, FrontEndKind::Ublk),
        identify(),
        memory.clone(),
    ));
    all.push(forebay_nbd_kernel::claim(
        (&state.dir().join("nbd-kernel"), &options.nbd_names),
        NbdServer { socket: options.local_nbd(), connected },
        |name| wanted(name, FrontEndKind::NbdKernel),
        identify(),
    ));
    Ok(all)
}

/// Exports devices without a cache, which the lanes serve.
///
/// # Errors
/// A front end refuses to export a device.
pub(crate) fn publish_raw(
    front_ends: &[Arc<dyn FrontEnd>],
    raw: &[RawExport],
) -> Result<(), ApiError> {
    // An operator who serves NBD by TCP and names these devices has done both on one command line,
    // so remote clients may use them.
    let settings = Settings { nbd: NbdReach::All, ..Settings::default() };
    let set = &settings.export;
    let all = front_ends.iter().filter(|it| it.kind().is_some_and(|kind| set.has(kind)));
    for front_end in all {
        for export in raw {
            let published = front_end.publish(export.name.as_str(), &settings);
            published.map_err(|error| export_error(&error))?;
        }
    }
    Ok(())
}

/// Converts an error of an export.
pub(crate) fn export_error(error: &ExportError) -> ApiError {
    let kind = match error.kind {
        ExportErrorKind::InUse | ExportErrorKind::Taken => ErrorKind::Refused,
        ExportErrorKind::NotPermitted | ExportErrorKind::Unavailable => ErrorKind::Invalid,
        ExportErrorKind::Failed => ErrorKind::Failed,
    };
    ApiError::new(kind, error.message.clone()).about("export")
}

/// Converts an error of NBD's listeners.
fn listen_error(error: &ListenError) -> ApiError {
    let kind = match error {
        ListenError::Unix(error) => return socket_error("--nbd", error),
        ListenError::InUse(_) => ErrorKind::Refused,
        ListenError::Address(_) => ErrorKind::Invalid,
        ListenError::System { .. } => ErrorKind::Failed,
    };
    ApiError::new(kind, format!("--nbd: {error}")).about("--nbd")
}
