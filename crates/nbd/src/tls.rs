//! Certificates and keys of the TLS that TCP clients have to use.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Files in PEM format that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and a root that clients trust.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that sign clients' certificates. `None`: clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
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
        /// What should be there.
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

/// TLS, ready for connections.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    /// Clients need a certificate.
    pub(crate) checks_clients: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration has the key.
        f.debug_struct("Tls").field("checks_clients", &self.checks_clients).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files. TLS 1.2 and 1.3 are offered.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| pem_error(&files.key, "private key", error))?;
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
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| refused(e.to_string()))?)
            }
        };
        let config = Arc::new(builder.with_single_cert(chain, key).map_err(pair)?);
        Ok(Tls { config, checks_clients: files.client_ca.is_some() })
    }
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

fn pem_error(path: &Path, expected: &'static str, error: PemError) -> TlsError {
    match error {
        PemError::Io(cause) => TlsError::File { path: path.into(), cause },
        _ => TlsError::Content { path: path.into(), expected },
    }
}
