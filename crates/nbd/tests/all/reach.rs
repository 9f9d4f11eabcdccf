//! The clients that find an export, at both kinds of addresses and after a hand-over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::NbdReach;
use forebay_engine::{BlockService, FrontEnd, HandedOver, LaneFrontEnd, Settings};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::null::{ExportList, MemoryDisk, MemoryTarget};
use forebay_nbd::wire::*;
use forebay_nbd::{Limits, ListenAddress, NbdFrontEnd, Protection};

use crate::support::{Client, DISK};

/// A front end with a unix socket and a TCP port, on a lane that serves `a`, `b` and `c`.
struct Daemon {
    front_end: Arc<NbdFrontEnd>,
    unix: PathBuf,
    tcp: SocketAddr,
    thread: Option<LaneThread>,
    _folder: tempfile::TempDir,
}

/// Keeps the server as long as the lane lives.
struct Resident(#[expect(dead_code)] Box<dyn LaneFrontEnd>);

impl Daemon {
    fn start(clients: Vec<HandedOver>) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let unix = folder.path().join("nbd");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp = listener.local_addr().expect("it listens");
        let addresses = [
            ListenAddress::unix(unix.clone()).expect("short"),
            ListenAddress::Tcp { host: "127.0.0.1".into(), port: tcp.port() },
        ];
        let mut inherited = clients;
        inherited.push(HandedOver {
            label: vec!["listener".into(), addresses[1].to_string()],
            descriptor: Some(listener.into()),
            ..HandedOver::default()
        });
        let front_end = NbdFrontEnd::claim(
            &addresses,
            Protection::default(),
            Limits::default(),
            Arc::default(),
            &mut inherited,
            Box::new(|_| None),
        );
        let front_end = Arc::new(front_end.expect("free"));
        let served = front_end.clone();
        let setup = move |lane: &LaneLoop| {
            let target: Rc<dyn BlockService> = Rc::new(MemoryTarget(MemoryDisk::new(DISK)));
            let export = |name: &str| (name.to_owned(), target.clone());
            let exports = Rc::new(ExportList::new(["a", "b", "c"].map(export).to_vec()));
            Resident(served.serve(lane.lane(), lane.ring(), exports))
        };
        let clock = Arc::new(MonotonicClock::new());
        let thread = LaneThread::spawn("lane", LaneId(0), clock, LaneOptions::default(), setup);
        let thread = Some(thread.expect("the lane starts"));
        Daemon { front_end, unix, tcp, thread, _folder: folder }
    }

    fn publish(&self, volume: &str, nbd: NbdReach) {
        self.front_end.publish(volume, &Settings { nbd, ..Settings::default() }).expect("it can");
    }

    fn remote(&self) -> Client<TcpStream> {
        Client::handshake(TcpStream::connect(self.tcp).expect("it listens"))
    }

    /// Returns a client that counts as one of the daemon's own, because it is in the same process.
    fn own(&self) -> Client {
        Client::handshake(UnixStream::connect(&self.unix).expect("it listens"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.stop();
            thread.join().expect("no panic");
        }
    }
}

fn listed<S: Read + Write>(client: &mut Client<S>) -> Vec<String> {
    client.send_option(option::LIST, &[]);
    let mut replies = client.option_replies(option::LIST);
    replies.pop();
    let name = |(_, data): (u32, Vec<u8>)| String::from_utf8(data[4..].to_vec()).expect("a name");
    replies.into_iter().map(name).collect()
}

/// Returns the answers to all options about an export that keep the client in the handshake if the
/// export does not exist.
fn answers<S: Read + Write>(client: &mut Client<S>, export: &str) -> Vec<Vec<(u32, Vec<u8>)>> {
    let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
    let info = [&name, &[0, 0][..]].concat();
    let contexts = [&name, &0u32.to_be_bytes()[..]].concat();
    let options = [
        (option::INFO, &info),
        (option::LIST_META_CONTEXT, &contexts),
        (option::SET_META_CONTEXT, &contexts),
        (option::GO, &info),
    ];
    let mut ask = |(option, data): (u32, &Vec<u8>)| {
        client.send_option(option, data);
        client.option_replies(option)
    };
    options.into_iter().map(&mut ask).collect()
}

#[test]
fn an_export_out_of_reach_looks_like_an_unknown_one() {
    let daemon = Daemon::start(Vec::new());
    daemon.publish("a", NbdReach::Local);
    daemon.publish("b", NbdReach::Off);
    assert_eq!(listed(&mut daemon.remote()), [""; 0]);
    assert_eq!(listed(&mut daemon.own()), ["a", "b"], "a block device finds both");
    for headers in [None, Some(option::STRUCTURED_REPLY), Some(option::EXTENDED_HEADERS)] {
        let mut client = daemon.remote();
        if let Some(option) = headers {
            client.send_option(option, &[]);
            client.option_replies(option);
        }
        let unknown = answers(&mut client, "z");
        assert!(unknown.iter().all(|replies| replies.len() == 1 && replies[0].0 >> 31 == 1));
        // Export `c` is not published; the empty name stands for the first export.
        for export in ["a", "b", "c", ""] {
            assert_eq!(answers(&mut client, export), unknown, "{export}");
        }
    }
    for export in ["a", "b", "c", "z"] {
        let mut client = daemon.remote();
        client.send_option(option::EXPORT_NAME, export.as_bytes());
        assert_eq!(client.stream.read(&mut [0]).expect("connected"), 0, "it has no error reply");
    }
    daemon.publish("b", NbdReach::All);
    assert_eq!(listed(&mut daemon.remote()), ["b"]);
    daemon.remote().go("b", Headers::Extended);
    daemon.own().go("a", Headers::Simple);
}

#[test]
fn a_handed_over_client_goes_on_if_it_is_in_reach() {
    let mut clients = Vec::new();
    let ends = ["a", "b", "c"].map(|export| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let end = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it does");
        clients.push(HandedOver {
            label: vec!["client".into(), export.into(), DISK.to_string(), "structured".into()],
            descriptor: Some(listener.accept().expect("it has connected").0.into()),
            ..HandedOver::default()
        });
        end
    });
    clients.push(HandedOver {
        label: ["exports", "a", "b", "c"].map(str::to_owned).to_vec(),
        ..HandedOver::default()
    });
    let daemon = Daemon::start(clients);
    let [mut a, mut b, mut c] = ends;
    // A read of 512 bytes.
    let read = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &512u32.to_be_bytes()].concat();
    for client in [&mut a, &mut b, &mut c] {
        client.write_all(&read).expect("connected");
    }
    daemon.publish("a", NbdReach::All);
    a.read_exact(&mut [0; 512]).expect("it goes on");
    c.set_nonblocking(true).expect("a socket");
    let waits = c.read(&mut [0]).expect_err("its volume is not published yet");
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    daemon.publish("b", NbdReach::Local);
    assert!(matches!(b.read(&mut [0]), Ok(0) | Err(_)), "it is cut off");
    daemon.publish("c", NbdReach::All);
    c.set_nonblocking(false).expect("a socket");
    c.read_exact(&mut [0; 512]).expect("it goes on");
    assert_eq!(listed(&mut daemon.remote()), ["a", "c"], "new clients have waited for all three");
}
