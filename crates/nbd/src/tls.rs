//! Certificates and keys of the TLS that TCP clients have to use.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Nanos;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use forebay_lane::off_lane;
use forebay_nbd_wire::keys::warn_of_readable_key;

/// Files in PEM format that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and the intermediate certificates up to a root that clients trust.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that sign clients' certificates. `None`: clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// The authorities' lists of revoked certificates. If set, every authority in a client's chain
    /// must have a list.
    pub client_crl: Option<PathBuf>,
}

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// A file has not the expected content.
    #[error("{} has no {expected} in PEM format", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// Certificate and key do not fit together, or are not supported.
    #[error("{} cannot be used with the key {}: {cause}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// The error.
        cause: rustls::Error,
    },
    /// Certificates of authorities cannot be used.
    #[error("{} cannot be used to check clients: {cause}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: String,
    },
}

/// The files are looked at no more often than this.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// Identifies the version of a file that was read: device, inode, time of the last change, and
/// size.
type Stamp = Vec<Option<(u64, u64, i64, i64, u64)>>;

/// TLS, ready for connections. Files that are replaced are read again.
#[derive(Clone, Debug)]
pub struct Tls(Arc<TlsState>);

struct TlsState {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    /// Stamps of the files in use, and of the last ones that could not be used.
    stamp: Stamp,
    refused: Option<Stamp>,
    looked_at: Option<Nanos>,
    /// Whether a thread is examining the files.
    looks: bool,
}

impl fmt::Debug for TlsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration has the key.
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files. TLS 1.2 and 1.3 are offered.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let stamp = stamp(files);
        let config = configure(files)?;
        let state = State { config, stamp, refused: None, looked_at: None, looks: false };
        Ok(Tls(Arc::new(TlsState { files: files.clone(), state: Mutex::new(state) })))
    }

    /// Returns whether clients need a certificate.
    pub(crate) fn checks_clients(&self) -> bool {
        self.0.files.client_ca.is_some()
    }

    /// Returns the configuration for a new connection, after another look at the files.
    pub(crate) async fn config(&self, now: Nanos) -> Arc<ServerConfig> {
        {
            let mut state = self.0.state.lock();
            let recent = state.looked_at.is_some_and(|then| now.since(then) < LOOKED_AT_EVERY);
            if recent || state.looks {
                return state.config.clone();
            }
            (state.looked_at, state.looks) = (Some(now), true);
        }
        let shared = self.0.clone();
        off_lane::run("tls-files", move || shared.look()).await;
        let mut state = self.0.state.lock();
        state.looks = false;
        state.config.clone()
    }
}

impl TlsState {
    /// Reads the files if they were replaced. The configuration in use stays if the new files do
    /// not fit together: certificate and key may be replaced one after the other.
    fn look(&self) {
        let stamp = stamp(&self.files);
        {
            let state = self.state.lock();
            if state.stamp == stamp || state.refused.as_ref() == Some(&stamp) {
                return;
            }
        }
        let loaded = configure(&self.files);
        let mut state = self.state.lock();
        match loaded {
            Ok(config) => {
                tracing::info!(certificate = %self.files.certificate.display(), "NBD uses the new certificate");
                (state.config, state.stamp, state.refused) = (config, stamp, None);
            }
            Err(error) => {
                tracing::warn!("NBD continues with the former certificate: {error}");
                state.refused = Some(stamp);
            }
        }
    }
}

fn stamp(files: &TlsFiles) -> Stamp {
    let TlsFiles { certificate, key, client_ca, client_crl } = files;
    let paths = [Some(certificate), Some(key), client_ca.as_ref(), client_crl.as_ref()];
    let of = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec(), found.size()))
    };
    paths.into_iter().flatten().map(of).collect()
}

fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| pem_error(&files.key, "private key", error))?;
    warn_of_readable_key(&files.key);
    let pair = |cause| TlsError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        cause,
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let refused = |cause: String| TlsError::Authorities { path: path.clone(), cause };
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|error| refused(error.to_string()))?;
            }
            let lists = files.client_crl.as_deref().map_or(Ok(Vec::new()), revocations)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(lists)
                .build();
            let verifier = verifier.map_err(|error| refused(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(builder.with_single_cert(chain, key).map_err(pair)?))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refused = |error| pem_error(path, "certificate", error);
    let certificates = CertificateDer::pem_file_iter(path).map_err(refused)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(refused)?;
    if certificates.is_empty() {
        return Err(refused(PemError::NoItemsFound));
    }
    Ok(certificates)
}

fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let refused = |error| pem_error(path, "certificate revocation list", error);
    let lists = CertificateRevocationListDer::pem_file_iter(path).map_err(refused)?;
    let lists: Vec<_> = lists.collect::<Result<_, _>>().map_err(refused)?;
    // Without a list rustls checks no revocation at all.
    if lists.is_empty() {
        return Err(refused(PemError::NoItemsFound));
    }
    Ok(lists)
}

fn pem_error(path: &Path, expected: &'static str, error: PemError) -> TlsError {
    match error {
        PemError::Io(cause) => TlsError::File { path: path.into(), cause },
        _ => TlsError::Content { path: path.into(), expected },
    }
}
