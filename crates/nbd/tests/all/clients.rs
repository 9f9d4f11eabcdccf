//! Well-behaved clients on a real ring and real sockets.

use std::collections::HashSet;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;

use forebay_core::IoError;
use forebay_nbd::wire::*;
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, Listener, Protection};

use crate::support::*;

const ALL: [Headers; 3] = [Headers::Simple, Headers::Structured, Headers::Extended];

const SIZES: [usize; 9] = [
    512,
    4096,
    16 << 10,
    (16 << 10) + 512,
    64 << 10,
    128 << 10,
    (128 << 10) + 512,
    1 << 20,
    32 << 20,
];

#[test]
fn every_size_is_written_and_read_on_every_path() {
    let server = TestServer::start();
    for headers in ALL {
        for export in ["memory", "later"] {
            let mut client = server.open(export, headers);
            assert_eq!(client.size, DISK);
            for (index, size) in SIZES.into_iter().enumerate() {
                for fua in [0, command_flag::FUA] {
                    let offset = 512 * (index as u64 * 3 + u64::from(fua));
                    let data = pattern(offset + size as u64, size);
                    let written = client.ask(command::WRITE, fua, offset, size as u64, &data);
                    assert_eq!(written, Ok(vec![]));
                    let df = if headers.has_chunks() { command_flag::DF } else { 0 };
                    let read = client.ask(command::READ, df, offset, size as u64, &[]);
                    assert!(read == Ok(data), "{export} {headers:?} {size}");
                }
            }
            assert_eq!(client.read(0, 0), Ok(vec![]));
            assert_eq!(client.write(0, &[]), Ok(vec![]));
            assert_eq!(client.ask(command::FLUSH, 0, 0, 0, &[]), Ok(vec![]));
            assert_eq!(client.ask(command::CACHE, 0, 0, 4096, &[]), Ok(vec![]));
            for (command, flags) in [
                (command::TRIM, 0),
                (command::WRITE_ZEROES, command_flag::FAST_ZERO),
                (command::WRITE_ZEROES, command_flag::NO_HOLE | command_flag::FUA),
            ] {
                client.write(8192, &pattern(1, 4096)).expect("written");
                assert_eq!(client.ask(command, flags, 8192, 4096, &[]), Ok(vec![]));
                assert_eq!(client.read(8192, 4096), Ok(vec![0; 4096]));
            }
        }
    }
}

#[test]
fn an_outliving_device_gets_no_error_when_the_volume_ends() {
    let server = TestServer::start();
    for outlives in [false, true] {
        server.on_lane(|state| state.later.hold());
        let mut client = server.connect();
        if outlives {
            client.send_option(option::OUTLIVING, &[1; 9]);
            client.option_replies(option::OUTLIVING);
        }
        client.go("later", Headers::Structured);
        client.send(command::WRITE, 0, 0, 4096, &[1; 4096]);
        client.send(command::READ, 0, 0, 4096, &[]);
        server.wait_until(|state| state.later.waiting() == 2);
        server.on_lane(|state| state.later.fail(IoError::ShuttingDown));
        match outlives {
            true => assert!(client.is_closed(), "it sends them again by its next connection"),
            false => assert_eq!((client.reply().error, client.reply().error), (108, 108)),
        }
    }
    server.on_lane(|state| state.later.release());
    server.wait_until_empty();
}

#[test]
fn allocation_is_told_to_those_who_asked_for_it() {
    let server = TestServer::start();
    let mut client = server.open("memory", Headers::Structured);
    client.write(3 << 20, &[1; 512]).expect("written");
    let status = |client: &mut Client, flags, offset, len| {
        client.ask(command::BLOCK_STATUS, flags, offset, len, &[]).map(|bytes| {
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("word"));
            (0..bytes.len() / 8).map(|at| (word(at * 8), word(at * 8 + 4))).collect::<Vec<_>>()
        })
    };
    let all = status(&mut client, 0, 0, DISK);
    assert_eq!(all, Ok(vec![(3 << 20, 3), (1 << 20, 0), (60 << 20, 3)]));
    let one = status(&mut client, command_flag::REQ_ONE, 512, 8 << 20);
    assert_eq!(one, Ok(vec![((3 << 20) - 512, 3)]));
    // Zeroes may become a hole unless the client forbids it.
    for (flags, expected) in [(command_flag::NO_HOLE, 0), (0, 3)] {
        client.ask(command::WRITE_ZEROES, flags, 8 << 20, 2 << 20, &[]).expect("zeroed");
        assert_eq!(status(&mut client, 0, 8 << 20, 2 << 20), Ok(vec![(2 << 20, expected)]));
    }
    let mut old = server.open("memory", Headers::Simple);
    assert_eq!(status(&mut old, 0, 0, 4096), Err(22));
}

#[test]
fn lengths_of_more_than_32_bits_are_served() {
    const WHOLE: u64 = 1 << 40;
    let server = TestServer::start();
    let mut client = server.open("null", Headers::Extended);
    for command in [command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(client.ask(command, 0, 0, WHOLE, &[]), Ok(vec![]));
        assert!(client.ask(command, 0, 512, WHOLE, &[]).is_err());
    }
    let expected = [WHOLE.to_be_bytes(), 3u64.to_be_bytes()].concat();
    assert_eq!(client.ask(command::BLOCK_STATUS, 0, 0, WHOLE, &[]), Ok(expected));
    assert_eq!(client.ask(command::READ, 0, 0, 1 << 33, &[]), Err(75));
    assert_eq!(client.ask(command::CACHE, 0, 0, 1 << 33, &[]), Err(75));
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn pipelined_requests_are_answered_once_in_whatever_order() {
    let server = TestServer::start();
    for headers in ALL {
        for export in ["memory", "later"] {
            let mut client = server.open(export, headers);
            let mut bytes = Vec::new();
            let mut cookies = Vec::new();
            for at in 0..500u64 {
                let (cookie, header) = client.encode(command::WRITE, 0, at * 4096, 4096);
                bytes.extend([header, pattern(at, 4096)].concat());
                cookies.push(cookie);
            }
            // Replies of writes are small enough to wait in the socket.
            std::io::Write::write_all(&mut client.stream, &bytes).expect("requests");
            let answered: HashSet<_> = cookies.iter().map(|_| client.reply().cookie).collect();
            assert_eq!(answered, cookies.into_iter().collect());

            let mut waiting: std::collections::HashMap<u64, u64> = Default::default();
            for at in 0..500u64 {
                waiting.insert(client.send(command::READ, 0, at * 4096, 4096, &[]), at);
                if waiting.len() == 32 {
                    let reply = client.reply();
                    let at = waiting.remove(&reply.cookie).expect("one of ours");
                    assert!(reply.data == pattern(at, 4096));
                }
            }
            while !waiting.is_empty() {
                let reply = client.reply();
                let at = waiting.remove(&reply.cookie).expect("one of ours");
                assert!(reply.data == pattern(at, 4096));
            }
        }
    }
}

#[test]
fn a_client_that_begins_to_ask_for_much_is_answered() {
    let server = TestServer::start();
    for export in ["memory", "later"] {
        let mut client = server.open(export, Headers::Structured);
        let data = pattern(1, 128 << 10);
        client.write(0, &data).expect("written");
        // The small buffer already has a reply, so the read does not fit.
        let (_, write) = client.encode(command::WRITE, 0, 0, 4096);
        let (_, read) = client.encode(command::READ, 0, 0, 64 << 10);
        let both = [&write[..], &data[..4096], &read].concat();
        std::io::Write::write_all(&mut client.stream, &both).expect("requests");
        let mut replies = [client.reply(), client.reply()];
        replies.sort_by_key(|reply| reply.cookie);
        assert!(replies[1].data == data[..64 << 10]);
    }
}

#[test]
fn hits_overtake_what_waits() {
    let server = TestServer::start();
    let mut client = server.open("later", Headers::Structured);
    server.on_lane(|state| state.later.hold());
    let first = client.send(command::READ, 0, 0, 4096, &[]);
    let second = client.send(command::READ, 0, 4096, 1 << 20, &[]);
    let status = client.ask(command::BLOCK_STATUS, 0, 0, 4096, &[]);
    assert!(status.is_ok());
    server.wait_until(|state| state.later.waiting() == 2);
    server.on_lane(|state| state.later.release());
    assert_eq!([client.reply().cookie, client.reply().cookie], [second, first]);
}

#[test]
fn a_client_that_leaves_politely_gets_its_last_replies() {
    let server = TestServer::start();
    let mut client = server.open("later", Headers::Simple);
    server.on_lane(|state| state.later.hold());
    let cookies: HashSet<_> = (0..5).map(|_| client.send(command::FLUSH, 0, 0, 0, &[])).collect();
    client.send(command::DISC, 0, 0, 0, &[]);
    server.wait_until(|state| state.later.waiting() == 5);
    server.on_lane(|state| state.later.release());
    let answered: HashSet<_> = (0..5).map(|_| client.reply().cookie).collect();
    assert_eq!(answered, cookies);
    assert!(client.is_closed());
    server.wait_until_empty();
}

#[test]
fn stop_answers_what_is_in_flight_and_takes_nothing_more() {
    let mut server = TestServer::start();
    let mut client = server.open("later", Headers::Structured);
    let mut half = server.connect();
    let mut other = server.open("memory", Headers::Structured);
    server.on_lane(|state| state.later.hold());
    let cookie = client.send(command::WRITE, 0, 0, 4096, &[7; 4096]);
    // The beginning of another write; the server will not wait for its end.
    let (_, header) = client.encode(command::WRITE, 0, 0, 1 << 20);
    std::io::Write::write_all(&mut client.stream, &header).expect("sent");
    server.wait_until(|state| state.later.waiting() == 1);
    server.begin_stop();
    assert!(half.is_closed() && other.is_closed());
    server.on_lane(|state| state.later.release());
    assert_eq!(client.reply(), Reply { cookie, error: 0, data: vec![] });
    assert!(client.is_closed());
    server.join();
    assert_eq!(server.count.get(), 0);
    assert!(!server.path().exists());
}

#[test]
fn only_the_clients_of_one_export_are_dismissed() {
    let server = TestServer::start();
    let (mut gone, mut stays) =
        (server.open("null", Headers::Structured), server.open("memory", Headers::Structured));
    server.on_lane(|state| {
        if let Some(server) = &*state.server.borrow() {
            server.dismiss("null");
        }
    });
    assert!(gone.is_closed());
    assert_eq!(stays.read(0, 512), Ok(vec![0; 512]));
    server.wait_until(|state| state.server.borrow().as_ref().is_some_and(|s| s.clients() == 1));
}

#[test]
fn a_client_is_closed_if_its_export_vanishes_in_the_handshake() {
    let server = TestServer::start();
    let mut client = server.connect();
    let name = [&9u32.to_be_bytes(), &b"vanishing"[..], &[0, 0]].concat();
    client.send_option(option::GO, &name);
    assert!(client.is_closed());
    server.wait_until_empty();
}

#[test]
fn tcp_works_too() {
    let any = ListenAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
    let listener = Listener::bind(&any).expect("listener");
    let folder = tempfile::tempdir().expect("folder");
    let server =
        TestServer::start_on(folder, listener, Limits::default(), ConnectionCount::default());
    let ListenAddress::Tcp { host, port } = &server.address else { panic!("not TCP") };
    let mut client =
        Client::handshake(TcpStream::connect((host.as_str(), *port)).expect("connect"));
    client.go("memory", Headers::Structured);
    for size in SIZES {
        let data = pattern(size as u64, size);
        client.write(4096, &data).expect("written");
        assert!(client.read(4096, size as u64) == Ok(data));
    }
}

#[test]
fn clients_of_other_networks_get_no_byte() {
    let any = ListenAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
    for (allow, admitted) in
        [(vec!["192.0.2.0/24", "::/0"], false), (vec!["192.0.2.0/24", "127.0.0.1"], true)]
    {
        let allow = allow.into_iter().map(|network| network.parse().expect("network")).collect();
        let protection = Arc::new(Protection { allow, tls: None });
        let listener = Listener::bind_protected(&any, &protection).expect("listener");
        let folder = tempfile::tempdir().expect("folder");
        let count = ConnectionCount::default();
        let server = TestServer::start_on(folder, listener, Limits::default(), count);
        let ListenAddress::Tcp { host, port } = &server.address else { panic!("not TCP") };
        let connect = || TcpStream::connect((host.as_str(), *port)).expect("connect");
        if admitted {
            Client::handshake(connect()).go("memory", Headers::Structured);
        } else {
            for _ in 0..3 {
                assert!(!matches!(connect().read(&mut [0; 1]), Ok(1..)));
            }
            assert_eq!(server.count.get(), 0);
        }
    }
}

#[test]
fn two_lanes_share_a_listener() {
    let folder = tempfile::tempdir().expect("folder");
    let address = ListenAddress::Unix(folder.path().join("nbd"));
    let listener = Listener::bind(&address).expect("listener");
    let count = ConnectionCount::default();
    let other = tempfile::tempdir().expect("folder");
    let mut first =
        TestServer::start_on(folder, listener.clone(), Limits::default(), count.clone());
    let mut second = TestServer::start_on(other, listener, Limits::default(), count);
    let mut clients: Vec<_> = (0..20).map(|_| first.open("null", Headers::Structured)).collect();
    for client in &mut clients {
        assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
    }
    assert_eq!(first.clients() + second.clients(), 20);
    assert_eq!(first.count.get(), 20);
    first.begin_stop();
    second.begin_stop();
    first.join();
    second.join();
    assert!(clients.iter_mut().all(Client::is_closed));
}
