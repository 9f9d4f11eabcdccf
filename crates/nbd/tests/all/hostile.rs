//! Clients that break the protocol: none of them may disturb another client, take memory or stay
//! for ever.
#![allow(clippy::disallowed_methods, reason = "a client that waits for a full socket sleeps")]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_lane::{MemoryBudget, MemoryUse};
use forebay_nbd::Limits;
use forebay_nbd::wire::*;

use crate::support::*;

/// A neighbour that must never notice anything.
fn check_neighbour(client: &mut Client) {
    let data = pattern(client.size, 4096);
    assert_eq!(client.write(1 << 20, &data), Ok(vec![]));
    assert_eq!(client.read(1 << 20, 4096), Ok(data));
}

#[test]
fn impossible_requests_are_refused_and_the_stream_goes_on() {
    let server = TestServer::start();
    let mut neighbour = server.open("memory", Headers::Structured);
    for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
        let mut client = server.open("memory", headers);
        // The protocol leaves the choice of these errors to the server.
        let too_large = if headers == Headers::Extended { 75 } else { 22 };
        let end = client.size;
        let max = 32 << 20;
        let large = vec![1; max + 512];
        assert_eq!(client.read(end, 512), Err(22));
        assert_eq!(client.read(end - 512, 1024), Err(22));
        assert_eq!(client.read(u64::MAX - 511, 1024), Err(22));
        assert_eq!(client.read(0, u32::MAX.into()), Err(too_large));
        assert_eq!(client.read(1, 512), Err(22));
        assert_eq!(client.read(0, max as u64 + 512), Err(too_large));
        assert_eq!(client.write(end, &[1; 512]), Err(28));
        assert_eq!(client.write(u64::MAX - 511, &[1; 1024]), Err(28));
        assert_eq!(client.write(0, &[1; 513]), Err(22));
        if headers != Headers::Extended {
            assert_eq!(client.write(0, &large), Err(22));
        }
        assert_eq!(client.write(end - 512, &large[..1 << 20]), Err(28));
        assert_eq!(client.ask(command::WRITE, 1 << 9, 0, 4096, &[1; 4096]), Err(22));
        assert_eq!(client.ask(command::TRIM, 0, end, 512, &[]), Err(22));
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, end, 512, &[]), Err(28));
        assert_eq!(client.ask(command::FLUSH, 0, 1, 1, &[]), Err(22));
        for unknown in [8, 9, 255, u16::MAX] {
            assert_eq!(client.ask(unknown, 0, 0, 512, &[]), Err(22));
        }
        assert_eq!(client.read(0, 1024), Ok(vec![0; 1024]), "nothing was written");
        check_neighbour(&mut neighbour);
    }
    let mut client = server.open("read-only", Headers::Structured);
    assert_eq!(client.write(0, &[1; 4096]), Err(1));
    assert_eq!(client.write(0, &vec![1; 1 << 20]), Err(1));
    assert_eq!(client.ask(command::TRIM, 0, 0, 512, &[]), Err(1));
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn requests_beyond_the_memory_limit_are_refused_at_once() {
    let server = TestServer::start();
    let mut neighbour = server.open("later", Headers::Structured);
    for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
        // The volume claims to need more memory than there is for all requests except reads.
        let mut client = server.open("holes", headers);
        assert_eq!(client.ask(command::TRIM, 0, 0, DISK, &[]), Err(28));
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, 0, DISK, &[]), Err(28));
        assert_eq!(client.write(0, &[1; 4096]), Err(28));
        assert_eq!(client.write(0, &vec![1; 8 << 20]), Err(28), "its data is skipped");
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        check_neighbour(&mut neighbour);
    }
}

#[test]
fn bad_magic_ends_the_connection_and_nothing_else() {
    let server = TestServer::start();
    let mut neighbour = server.open("memory", Headers::Structured);
    let mut client = server.open("memory", Headers::Structured);
    client.stream.write_all(&[0x77; 28]).expect("sent");
    assert!(client.is_closed());
    check_neighbour(&mut neighbour);

    // More than the largest payload is not waited for.
    let mut client = server.open("memory", Headers::Extended);
    client.send(command::WRITE, 0, 0, (32 << 20) + 512, &[]);
    assert!(client.is_closed());
    check_neighbour(&mut neighbour);

    let mut client = server.connect();
    client.stream.write_all(&[0x77; 16]).expect("sent");
    assert!(client.is_closed());
    check_neighbour(&mut neighbour);
}

#[test]
fn clients_that_vanish_free_everything() {
    let server = TestServer::start();
    let mut neighbour = server.open("memory", Headers::Structured);
    // Disconnect in the middle of a header, of a small write, of a large write and of a refused
    // write.
    for len in [0u32, 4096, 1 << 20, 32 << 20, u32::MAX] {
        for part in [0, 10, 27, 28, 100, 3000, 70_000] {
            let mut client = server.open("memory", Headers::Structured);
            let (_, header) = client.encode(command::WRITE, 0, 0, len.into());
            let bytes = [header, vec![1; 70_000]].concat();
            client.stream.write_all(&bytes[..part.min(28 + len as usize)]).expect("sent");
        }
    }
    check_neighbour(&mut neighbour);
    // Disconnect with requests in flight: they end later, when no client can receive their replies.
    server.on_lane(|state| state.later.hold());
    for polite in [false, true] {
        let mut client = server.open("later", Headers::Structured);
        for _ in 0..10 {
            client.send(command::READ, 0, 0, 1 << 20, &[]);
            client.send(command::WRITE, 0, 0, 4096, &[1; 4096]);
        }
        if polite {
            client.stream.shutdown(Shutdown::Write).expect("shut down");
        } else {
            client.stream.write_all(&[0; 28]).expect("sent");
            assert!(client.is_closed());
        }
    }
    server.wait_until(|state| state.later.waiting() == 40);
    check_neighbour(&mut neighbour);
    server.wait_until(|state| state.server.borrow().as_ref().is_some_and(|s| s.clients() == 2));
    assert_eq!(server.count.get(), 3, "who has requests in flight takes up a place");
    server.on_lane(|state| state.later.release());
    check_neighbour(&mut neighbour);
    drop(neighbour);
    server.wait_until_empty();
}

/// Sends reads without receiving any reply, until the server takes no more.
fn send_without_reading(client: &mut Client, len: u32) -> usize {
    client.stream.set_nonblocking(true).expect("non-blocking");
    let (mut sent, mut full) = (0, 0);
    while full < 50 {
        let (_, header) = client.encode(command::READ, 0, 0, len.into());
        match client.stream.write(&header) {
            Ok(28) => (sent, full) = (sent + 1, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            other => panic!("{other:?}"),
        }
    }
    client.stream.set_nonblocking(false).expect("blocking");
    sent
}

#[test]
fn a_client_that_does_not_read_is_held_back() {
    let limits = Limits {
        requests: 64,
        bytes: 8 << 20,
        drain: Duration::from_millis(10),
        ..Limits::default()
    };
    let server = TestServer::start_with(limits);
    let mut neighbour = server.open("memory", Headers::Structured);
    for (export, len, most) in [("memory", 4096, 0), ("later", 4096, 64), ("later", 1 << 20, 8)] {
        let before = server.on_lane(|state| state.later.submitted());
        let mut client = server.open(export, Headers::Structured);
        let sent = send_without_reading(&mut client, len);
        let taken = server.on_lane(|state| state.later.submitted()) - before;
        // Replies in the socket and in the batches count as well.
        assert!(sent > 64 && taken <= most + (2 << 20) / len as usize, "{export} {len}: {taken}");
        check_neighbour(&mut neighbour);
        // Everything is still answered when the client wakes up.
        if export == "later" {
            for _ in 0..sent {
                assert_eq!(client.reply().error, 0);
            }
        }
    }
    drop(neighbour);
    server.wait_until_empty();
}

#[test]
fn limits_of_one_connection_hold_while_the_engine_waits() {
    let limits = Limits { requests: 10, bytes: 5 << 20, ..Limits::default() };
    let server = TestServer::start_with(limits);
    server.on_lane(|state| state.later.hold());
    let mut many = server.open("later", Headers::Structured);
    let mut large = server.open("later", Headers::Structured);
    for _ in 0..100 {
        many.send(command::FLUSH, 0, 0, 0, &[]);
        large.send(command::READ, 0, 0, 2 << 20, &[]);
    }
    server.wait_until(|state| state.later.waiting() == 12);
    let mut neighbour = server.open("memory", Headers::Structured);
    check_neighbour(&mut neighbour);
    assert_eq!(server.on_lane(|state| state.later.waiting()), 12);
    server.on_lane(|state| state.later.release());
    for _ in 0..100 {
        assert_eq!(many.reply().error, 0);
        assert_eq!(large.reply().data.len(), 2 << 20);
    }
}

#[test]
fn half_handshakes_do_not_stay() {
    let limits = Limits { handshake: Duration::from_millis(20), ..Limits::default() };
    let server = TestServer::start_with(limits);
    let silent: Vec<_> =
        (0..20).map(|_| UnixStream::connect(server.path()).expect("connect")).collect();
    let mut slow = server.connect();
    slow.stream.write_all(b"IHAVE").expect("sent");
    assert!(slow.is_closed());
    server.wait_until_empty();
    drop(silent);
}

#[test]
fn clients_beyond_the_limit_are_turned_away() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let server = TestServer::start_with(limits);
    let mut first = server.open("memory", Headers::Structured);
    let second = server.open("memory", Headers::Structured);
    let mut third = UnixStream::connect(server.path()).expect("connect");
    assert!(matches!(std::io::Read::read(&mut third, &mut [0; 18]), Ok(0) | Err(_)));
    check_neighbour(&mut first);
    drop(second);
    server.wait_until(|state| state.server.borrow().as_ref().is_some_and(|s| s.clients() == 1));
    server.open("memory", Headers::Structured);
}

#[test]
fn a_thousand_options_and_long_names_are_answered() {
    let server = TestServer::start();
    let mut client = server.connect();
    for _ in 0..1000 {
        client.send_option(4711, b"x");
        assert_eq!(client.option_replies(4711)[0].0, option_reply::ERR_UNSUP);
    }
    let long = [&70_000u32.to_be_bytes()[..], &vec![b'n'; 70_000], &[0, 0]].concat();
    client.send_option(option::GO, &long);
    assert_eq!(client.option_replies(option::GO)[0].0, option_reply::ERR_TOO_BIG);
    client.go("memory", Headers::Structured);
    check_neighbour(&mut client);
}

#[test]
fn options_without_reading_the_replies_do_not_go_on_for_ever() {
    let limits = Limits { handshake: Duration::from_millis(100), ..Limits::default() };
    let server = TestServer::start_with(limits);
    let mut neighbour = server.open("memory", Headers::Structured);
    let mut rude = server.connect();
    let flood = [&b"IHAVEOPT"[..], &3u32.to_be_bytes(), &[0; 4]].concat().repeat(200_000);
    assert!(rude.stream.write_all(&flood).is_err());
    check_neighbour(&mut neighbour);
    drop(neighbour);
    server.wait_until_empty();
}

const LIMIT: u64 = MemoryBudget::LEAST;

/// A server with little memory that does not wait long for clients.
fn small_server() -> (TestServer, Arc<MemoryBudget>) {
    let memory = Arc::new(MemoryBudget::new(LIMIT));
    let limits = Limits { stall: Duration::from_secs(2), ..Limits::default() };
    (TestServer::start_within(limits, memory.clone()), memory)
}

/// Checks that a client gets much memory although others have taken all that they could.
fn check_large(server: &TestServer, memory: &MemoryBudget) {
    let mut client = server.open("later", Headers::Structured);
    let data = pattern(5, 32 << 20);
    assert_eq!(client.write(0, &data), Ok(vec![]));
    assert!(client.read(0, 32 << 20) == Ok(data), "another's data");
    assert!(memory.total() <= LIMIT, "{} bytes are in use", memory.total());
}

fn check_all_is_given_back(server: &TestServer, memory: &MemoryBudget) {
    server.wait_until_empty();
    assert_eq!(memory.used(MemoryUse::Connections), 0);
    // A lane keeps a little for the next requests.
    assert!(memory.used(MemoryUse::Requests) <= 2 << 20, "{}", memory.used(MemoryUse::Requests));
}

#[test]
fn clients_that_never_read_leave_memory_to_others() {
    for len in [64 << 10, 2 << 20, 32 << 20] {
        let (server, memory) = small_server();
        let mut neighbour = server.open("later", Headers::Structured);
        let rude: Vec<_> = (0..16)
            .map(|_| {
                let mut client = server.open("later", Headers::Simple);
                for _ in 0..8 {
                    client.send(command::READ, 0, 0, len, &[]);
                }
                client
            })
            .collect();
        for _ in 0..50 {
            check_neighbour(&mut neighbour);
            assert!(memory.total() <= LIMIT, "{} bytes are in use", memory.total());
        }
        check_large(&server, &memory);
        check_neighbour(&mut neighbour);
        drop((rude, neighbour));
        check_all_is_given_back(&server, &memory);
    }
}

#[test]
fn clients_that_never_end_their_writes_leave_memory_to_others() {
    let (server, memory) = small_server();
    let slow: Vec<_> = (0..12)
        .map(|_| {
            let mut client = server.open("later", Headers::Simple);
            client.send(command::WRITE, 0, 0, 32 << 20, &[7; 1024]);
            client
        })
        .collect();
    check_large(&server, &memory);
    drop(slow);
    check_all_is_given_back(&server, &memory);
}

#[test]
fn requests_keep_their_memory_after_their_client_has_left() {
    let (server, memory) = small_server();
    server.on_lane(|state| state.later.hold());
    let mut client = server.open("later", Headers::Structured);
    for _ in 0..3 {
        client.send(command::READ, 0, 0, 8 << 20, &[]);
    }
    server.wait_until(|state| state.later.waiting() == 3);
    drop(client);
    server.wait_until(|state| state.server.borrow().as_ref().is_some_and(|s| s.clients() == 0));
    assert!(memory.used(MemoryUse::Requests) >= 24 << 20, "it is in use");
    server.on_lane(|state| state.later.release());
    check_all_is_given_back(&server, &memory);
}

/// Connects and chooses an export; reads the first bytes of the answer. Returns whether the server
/// agreed.
fn chooses(stream: &mut UnixStream, export: &str) -> bool {
    let mut greeting = [0; 18];
    let mut reply = [0; 20];
    let data = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
    let option = [&option::GO.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), &data];
    let sent = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &option.concat()].concat();
    stream.read_exact(&mut greeting).is_ok()
        && stream.write_all(&sent).is_ok()
        && stream.read_exact(&mut reply).is_ok()
}

#[test]
fn clients_whose_connections_do_not_fit_are_turned_away() {
    let (server, memory) = small_server();
    let mut first = server.open("memory", Headers::Structured);
    let mut clients = Vec::new();
    let turned_away = loop {
        let mut stream = UnixStream::connect(server.path()).expect("connect");
        match chooses(&mut stream, "memory") {
            true => clients.push(stream),
            false => break stream,
        }
    };
    assert!(clients.len() > 100, "only {} clients fit", clients.len());
    assert!(memory.total() <= LIMIT / 2, "{} bytes are in use", memory.total());
    check_neighbour(&mut first);
    drop((clients, turned_away));
    server.wait_until(|state| state.server.borrow().as_ref().is_some_and(|s| s.clients() == 1));
    server.open("memory", Headers::Structured);
}

#[test]
fn silent_clients_take_no_place_from_those_who_speak() {
    let limits = Limits { connections: 4, handshakes: 8, ..Limits::default() };
    let server = TestServer::start_with(limits);
    let mut neighbour = server.open("memory", Headers::Structured);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(UnixStream::connect(server.path()).expect("connect"));
    }
    check_neighbour(&mut neighbour);
    // All clients belong to one user, who has a quarter of the places; the oldest gives way after
    // one second.
    let mut opened = None;
    while opened.is_none() {
        let mut client = UnixStream::connect(server.path()).expect("connect");
        let greeted = client.read_exact(&mut [0; 18]).is_ok();
        opened = greeted.then_some(client);
    }
    assert!(server.count.get() <= 1 + 2, "{} connections", server.count.get());
    for _ in 0..3 {
        drop(opened.take());
        silent.clear();
        let mut client = server.open("memory", Headers::Structured);
        check_neighbour(&mut client);
    }
    drop(neighbour);
    server.wait_until_empty();
}
