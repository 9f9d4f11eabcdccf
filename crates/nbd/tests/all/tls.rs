//! Clients with TLS on a real ring and real sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use forebay_lane::{MemoryBudget, MemoryUse};
use forebay_nbd::wire::*;
use forebay_nbd::{
    ConnectionCount, Limits, ListenAddress, Listener, Protection, Tls, TlsError, TlsFiles,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::*;

/// Returns a file of an authority or a server; each run creates them anew.
fn file(name: &str) -> PathBuf {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name, text: String| std::fs::write(folder.path().join(name), text);
        let authority_key = KeyPair::generate().expect("key");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = authority.self_signed(&authority_key).expect("signed");
        write("ca.pem", ca.pem()).expect("written");
        let key = KeyPair::generate().expect("key");
        let server = CertificateParams::new(vec!["localhost".to_owned()]).expect("name");
        let issuer = Issuer::from_params(&authority, &authority_key);
        let server = server.signed_by(&key, &issuer).expect("signed");
        write("server.pem", server.pem()).expect("written");
        write("server.key", key.serialize_pem()).expect("written");
        let key = KeyPair::generate().expect("key");
        let mut client = CertificateParams::new(vec!["client".to_owned()]).expect("name");
        client.serial_number = Some(SERIAL.into());
        let client = client.signed_by(&key, &issuer).expect("signed");
        write("client.pem", client.pem()).expect("written");
        write("client.key", key.serialize_pem()).expect("written");
        for (name, serials) in [("none.crl", vec![]), ("client.crl", vec![SERIAL])] {
            let list = revoked(&serials).signed_by(&issuer).expect("signed");
            write(name, list.pem().expect("PEM")).expect("written");
        }
        folder
    });
    FOLDER.path().join(name)
}

/// The number of the client's certificate.
const SERIAL: u64 = 4711;

fn revoked(serials: &[u64]) -> CertificateRevocationListParams {
    let revoked = |serial: &u64| RevokedCertParams {
        serial_number: (*serial).into(),
        revocation_time: date_time_ymd(2025, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    CertificateRevocationListParams {
        this_update: date_time_ymd(2025, 1, 1),
        next_update: date_time_ymd(2025, 2, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    }
}

fn files() -> TlsFiles {
    let (certificate, key) = (file("server.pem"), file("server.key"));
    TlsFiles { certificate, key, client_ca: None, client_crl: None }
}

/// A server at a TCP port that requires TLS.
fn server(client_ca: Option<PathBuf>, memory: Arc<MemoryBudget>) -> TestServer {
    server_of(&TlsFiles { client_ca, ..files() }, memory)
}

fn server_of(files: &TlsFiles, memory: Arc<MemoryBudget>) -> TestServer {
    let any = ListenAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
    let tls = Some(Tls::load(files).expect("TLS"));
    let protection = Arc::new(Protection { allow: vec![], tls });
    let listener = Listener::bind_protected(&any, &protection).expect("listener");
    let folder = tempfile::tempdir().expect("folder");
    TestServer::start_on(folder, listener, Limits::default(), ConnectionCount::within(memory))
}

fn connect(server: &TestServer) -> Client<TcpStream> {
    let ListenAddress::Tcp { host, port } = &server.address else { panic!("not TCP") };
    Client::handshake(TcpStream::connect((host.as_str(), *port)).expect("connect"))
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn start_tls(
    client: Client<TcpStream>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Client<Encrypted> {
    start_tls_as(None, client, versions)
}

/// Starts TLS with the certificate of the files `name.pem` and `name.key`, or without one.
fn start_tls_as(
    name: Option<&str>,
    mut client: Client<TcpStream>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Client<Encrypted> {
    client.send_option(option::STARTTLS, &[]);
    assert_eq!(client.option_replies(option::STARTTLS), [(option_reply::ACK, vec![])]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).expect("CA")).expect("root");
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
    let config = match name {
        None => config.with_no_client_auth(),
        Some(name) => {
            let own = CertificateDer::from_pem_file(file(&format!("{name}.pem"))).expect("own");
            let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).expect("key");
            config.with_client_auth_cert(vec![own], key).expect("a pair")
        }
    };
    let name = "localhost".try_into().expect("name");
    let session = ClientConnection::new(Arc::new(config), name).expect("session");
    client.over(|stream| StreamOwned::new(session, stream))
}

#[test]
fn every_size_goes_through_tls() {
    let server = server(None, Arc::default());
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
            for export in ["memory", "later"] {
                let mut client = start_tls(connect(&server), versions);
                client.go(export, headers);
                for size in [512, 4096, 16 << 10, (16 << 10) + 512, 128 << 10, 3 << 20, 32 << 20] {
                    let data = pattern(size as u64, size);
                    assert_eq!(client.write(4096, &data), Ok(vec![]));
                    assert!(client.read(4096, size as u64) == Ok(data), "{export} {size}");
                }
                assert_eq!(client.ask(command::FLUSH, 0, 0, 0, &[]), Ok(vec![]));
                client.send(command::DISC, 0, 0, 0, &[]);
                // The server ends the TLS session before it closes the connection.
                assert!(matches!(client.stream.read(&mut [0; 1]), Ok(0)));
            }
        }
    }
}

#[test]
fn pipelined_requests_are_answered_in_both_directions_at_once() {
    let server = server(None, Arc::default());
    let mut client = start_tls(connect(&server), &[&rustls::version::TLS13]);
    client.go("later", Headers::Structured);
    let mut cookies = Vec::new();
    for at in 0..200u64 {
        let (cookie, header) = client.encode(command::WRITE, 0, at * 4096, 4096);
        // Send header and data in a TLS record each.
        client.stream.write_all(&[header, pattern(at, 4096)].concat()).expect("request");
        cookies.push(cookie);
    }
    for _ in &cookies {
        assert!(cookies.contains(&client.reply().cookie));
    }
    for at in 0..200u64 {
        assert!(client.read(at * 4096, 4096) == Ok(pattern(at, 4096)));
    }
}

#[test]
fn clients_without_tls_or_without_a_certificate_get_nothing() {
    let server_only = server(None, Arc::default());
    let mut client = connect(&server_only);
    client.send_option(option::LIST, &[]);
    let replies = client.option_replies(option::LIST);
    assert_eq!(replies.last().map(|(kind, _)| *kind), Some(option_reply::ERR_TLS_REQD));

    let strict = server(Some(file("ca.pem")), Arc::default());
    let mut client = start_tls(connect(&strict), &[&rustls::version::TLS12]);
    assert!(client.stream.write_all(&[0; 16]).is_err() || client.is_closed());
    strict.wait_until_empty();
}

#[test]
fn a_client_whose_certificate_is_revoked_gets_nothing() {
    let with = |list: &str| {
        let (client_ca, client_crl) = (Some(file("ca.pem")), Some(file(list)));
        server_of(&TlsFiles { client_ca, client_crl, ..files() }, Arc::default())
    };
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        let server = with("none.crl");
        let mut client = start_tls_as(Some("client"), connect(&server), versions);
        client.go("memory", Headers::Simple);

        let server = with("client.crl");
        let mut client = start_tls_as(Some("client"), connect(&server), versions);
        let _ = client.stream.write_all(&[0; 16]);
        assert!(client.is_closed());
        server.wait_until_empty();
    }
    // No list at all would have every client pass.
    let (client_ca, client_crl) = (Some(file("ca.pem")), Some(file("ca.pem")));
    let none = Tls::load(&TlsFiles { client_ca, client_crl, ..files() });
    assert!(none.expect_err("no list").to_string().contains("no certificate revocation list"));
}

#[test]
fn plaintext_behind_starttls_is_not_taken_for_options() {
    let server = server(None, Arc::default());
    for garbage in [&b"IHAVEOPT\0\0\0\x03\0\0\0\0"[..], &[0xff; 4096], &[22, 3, 1, 0xff, 0xff, 0]] {
        let mut client = connect(&server);
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 5, 0, 0, 0, 0]);
        bytes.extend(garbage);
        client.stream.write_all(&bytes).expect("sent");
        assert_eq!(client.option_replies(option::STARTTLS), [(option_reply::ACK, vec![])]);
        client.stream.shutdown(std::net::Shutdown::Write).expect("half");
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
        // An alert at most.
        assert!(rest.len() <= 7 && !rest.windows(4).any(|part| part == b"memo"), "{rest:?}");
    }
    server.wait_until_empty();
}

#[test]
fn connections_with_tls_are_counted_with_their_buffers() {
    let memory = Arc::new(MemoryBudget::new(1 << 30));
    let server = server(None, memory.clone());
    let mut client = start_tls(connect(&server), &[&rustls::version::TLS13]);
    client.go("memory", Headers::Simple);
    assert!(memory.used(MemoryUse::Connections) > 256 << 10);
    drop(client);
    server.wait_until_empty();
    assert_eq!(memory.used(MemoryUse::Connections), 0);
}

#[test]
fn files_that_are_no_use_are_named() {
    let missing = TlsFiles { key: file("nothing"), ..files() };
    assert!(
        matches!(Tls::load(&missing), Err(TlsError::File { path, .. }) if path == file("nothing"))
    );
    let swapped = TlsFiles { certificate: file("server.key"), ..files() };
    let error = Tls::load(&swapped).expect_err("no certificate");
    assert!(error.to_string().ends_with("server.key has no certificate in PEM format"), "{error}");
    let other = TlsFiles { certificate: file("ca.pem"), ..files() };
    assert!(matches!(Tls::load(&other), Err(TlsError::Pair { .. })));
    let no_authority = TlsFiles { client_ca: Some(file("server.key")), ..files() };
    assert!(matches!(Tls::load(&no_authority), Err(TlsError::Content { .. })));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a thread of the test looks at those of the server")]
fn handshakes_are_not_done_on_a_lane() {
    let server = server(None, Arc::default());
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
        let mut names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.trim() == "tls-handshake"))
    };
    // A thread lives for less than a millisecond.
    let ended = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                if named() {
                    return true;
                }
            }
            false
        });
        for _ in 0..20_000 {
            if looks.is_finished() {
                break;
            }
            drop(start_tls(connect(&server), &[&rustls::version::TLS13]));
        }
        ended.store(true, Ordering::Relaxed);
        looks.join().expect("no panic")
    });
    assert!(seen, "no thread for a handshake");
    server.wait_until_empty();
}
