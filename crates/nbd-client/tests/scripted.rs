//! The client with servers that follow a script: correct ones, faulty ones, and those that
//! disconnect.

use forebay_device::{DeviceErrorKind, DeviceOp, LogBuffer, OpenErrorKind};
use forebay_nbd_wire::{ErrorCode, allocation, chunk, command, command_flag, transmission_flag};

mod support;
use support::*;

const DATA_DONE: (u16, u16) = (chunk::FLAG_DONE, chunk::OFFSET_DATA);
const NONE_DONE: (u16, u16) = (chunk::FLAG_DONE, chunk::NONE);

fn at(offset: u64, content: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], content].concat()
}

#[test]
fn operations_become_requests_that_the_server_takes() {
    let offer = Offer { most: 1024, ..Offer::default() };
    let server = Server::new(vec![agreed(offer, |wire| {
        let mut replies = Vec::new();
        for (command, flags, offset, len) in [
            (command::WRITE, 0, 512, 1024),
            (command::WRITE, 0, 1536, 512),
            (command::READ, 0, 0, 1024),
            (command::READ, 0, 1024, 1024),
            (command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 2048),
            (command::WRITE_ZEROES, command_flag::NO_HOLE, 512, 512),
            (command::FLUSH, 0, 0, 0),
        ] {
            let (header, payload) = wire.expect(command);
            let found = (header.flags, header.offset, header.len);
            assert_eq!(found, (flags, offset, len), "{command}");
            assert!(payload.iter().all(|byte| *byte == 7));
            replies.push((header.cookie, if command == command::READ { len } else { 0 }));
            // Of a split operation the last reply comes first.
            if replies.len() == 2 || (command != command::WRITE && command != command::READ) {
                for (cookie, len) in replies.drain(..).rev() {
                    wire.simple(cookie, 0, &vec![cookie as u8; len as usize]);
                }
            }
        }
        wire.expect(command::DISC);
        assert_eq!(wire.request(), None, "the client leaves");
    })]);
    let device = server.open("").expect("a good server");
    assert_eq!((device.size(), device.logical_block()), (SMALL, 512));
    OnLane::new().run(&device, |queue| async move {
        write(&queue, 512, 7, 1536).await.expect("written");
        let data = read(&queue, 0, 2048).await.expect("read");
        assert!(data[..1024].iter().all(|byte| *byte == data[0]));
        assert!(data[1024..].iter().all(|byte| *byte == data[1024]) && data[0] != data[1024]);
        run(&queue, DeviceOp::Discard { offset: 0, len: 2048 }).await.expect("discarded");
        run(&queue, DeviceOp::Discard { offset: 0, len: 0 }).await.expect("it can");
        run(&queue, DeviceOp::WriteZeroes { offset: 512, len: 512 }).await.expect("zeroed");
        queue.sync().await.expect("synced");
        let outside = read(&queue, 1536, 1024).await.expect_err("outside");
        assert_eq!(outside.kind, DeviceErrorKind::Invalid);
    });
    drop(device);
    server.join();
}

#[test]
fn a_server_that_takes_less_than_a_page_at_a_time_is_used() {
    for most in [512, 1024, 4095] {
        let offer = Offer { size: 16384, most, ..Offer::default() };
        let server = Server::new(vec![agreed(offer, |wire| wire.serve(5))]);
        let device = server.open("&timeout=1&reconnect=1").expect("good");
        let data = OnLane::new().run(&device, |queue| async move { read(&queue, 512, 8192).await });
        assert!(data.expect("read").iter().all(|byte| *byte == 5));
        drop(device);
        server.join();
    }
}

#[test]
fn a_server_with_few_abilities_is_used_or_refused() {
    let few = Offer {
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        ..Offer::default()
    };
    let read_only = Offer { flags: few.flags | transmission_flag::READ_ONLY, ..few };
    let no_flush = Offer { flags: transmission_flag::HAS_FLAGS, ..few };
    let empty = Offer { size: 0, ..few };
    let server = Server::new(vec![
        agreed(few, |wire| {
            let (header, payload) = wire.expect(command::WRITE);
            assert_eq!(payload, [0; 512]);
            wire.simple(header.cookie, 0, &[]);
        }),
        agreed(read_only, |_| ()),
        agreed(no_flush, |_| ()),
        agreed(empty, |_| ()),
    ]);
    let device = server.open("").expect("good enough");
    OnLane::new().run(&device, |queue| async move {
        run(&queue, DeviceOp::WriteZeroes { offset: 0, len: 512 }).await.expect("zeroed");
        let discarded = run(&queue, DeviceOp::Discard { offset: 0, len: 512 }).await;
        assert_eq!(discarded.expect_err("no fast zeroes").kind, DeviceErrorKind::NotSupported);
    });
    for (kind, why) in [
        (OpenErrorKind::ReadOnly, "reading only"),
        (OpenErrorKind::Denied, "no flush"),
        (OpenErrorKind::BadSize, "size"),
    ] {
        let error = server.open("").err().expect("refused");
        assert_eq!(error.kind, kind);
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn chunks_may_come_in_any_order_and_with_holes() {
    let server = Server::new(vec![agreed(Offer::chunks(), |wire| {
        let (header, _) = wire.expect(command::READ);
        wire.chunk(header.cookie, (0, chunk::OFFSET_DATA), &at(1536, &[2; 512]));
        wire.chunk(header.cookie, (0, chunk::OFFSET_HOLE), &at(512, &1024u32.to_be_bytes()));
        wire.chunk(header.cookie, (0, chunk::OFFSET_DATA), &at(0, &[1; 512]));
        wire.chunk(header.cookie, NONE_DONE, &[]);
        // Overlapping data leave zeroes, not the earlier content of the memory.
        let (header, _) = wire.expect(command::READ);
        wire.chunk(header.cookie, (0, chunk::OFFSET_DATA), &at(0, &[3; 1024]));
        wire.chunk(header.cookie, DATA_DONE, &at(0, &[3; 1024]));
        // Errors keep their kind, and the last one of several chunks ends the reply.
        for (error, more) in [(ErrorCode::NoSpace, true), (ErrorCode::Io, false)] {
            let (header, _) = wire.request().expect("a request");
            let content =
                [&(error as u32).to_be_bytes()[..], &4u16.to_be_bytes(), b"why\n"].concat();
            if more {
                wire.chunk(header.cookie, (0, chunk::ERROR), &content);
                wire.chunk(header.cookie, NONE_DONE, &[]);
            } else {
                wire.chunk(
                    header.cookie,
                    (chunk::FLAG_DONE, chunk::ERROR + 1),
                    &at(0, &content)[8..],
                );
            }
        }
    })]);
    let device = server.open("").expect("a good server");
    OnLane::new().run(&device, |queue| async move {
        let data = read(&queue, 0, 2048).await.expect("read");
        assert_eq!(data, [[1; 512], [0; 512], [0; 512], [2; 512]].concat());
        let data = read(&queue, 0, 2048).await.expect("read");
        assert_eq!(data, [[3; 1024], [0; 1024]].concat());
        let error = write(&queue, 0, 7, 512).await.expect_err("no space");
        assert_eq!(error.kind, DeviceErrorKind::NoSpace);
        assert!(error.to_string().ends_with("why"), "{error}");
        let error = read(&queue, 0, 512).await.expect_err("a bad sector");
        assert_eq!(error.kind, DeviceErrorKind::Io);
    });
    server.join();
}

/// Whether chunks were negotiated, and the server's answer to a request with this cookie.
type Answer = (bool, fn(&mut Wire, u64));

/// Invalid replies to a read of 1024 bytes at 512.
fn bad_replies() -> Vec<Answer> {
    let replies: Vec<Answer> = vec![
        (false, |wire, _| wire.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        (false, |wire, cookie| wire.simple(cookie ^ 1, 0, &[9; 1024])),
        (false, |wire, cookie| wire.simple(cookie.wrapping_add(1 << 32), 0, &[9; 1024])),
        (false, |wire, cookie| wire.simple(cookie, 0, &[9; 1000])),
        (false, |wire, cookie| wire.chunk(cookie, NONE_DONE, &[])),
        (false, |wire, _| wire.send(&[0x67])),
        (false, |wire, cookie| wire.simple(cookie, ErrorCode::Shutdown as u32, &[])),
        (true, |wire, cookie| wire.simple(cookie, 0, &[9; 1024])),
        (true, |wire, cookie| wire.chunk(cookie, NONE_DONE, &[])),
        (true, |wire, cookie| wire.chunk(cookie, NONE_DONE, &[1])),
        (true, |wire, cookie| wire.chunk(cookie, DATA_DONE, &at(0, &[9; 1024]))),
        (true, |wire, cookie| wire.chunk(cookie, DATA_DONE, &at(u64::MAX - 7, &[9; 1024]))),
        (true, |wire, cookie| wire.chunk(cookie, DATA_DONE, &at(512, &[9; 1025]))),
        (true, |wire, cookie| wire.chunk(cookie, DATA_DONE, &at(512, &[9; 512]))),
        (true, |wire, cookie| wire.chunk(cookie, DATA_DONE, &at(512, &[]))),
        (true, |wire, cookie| {
            wire.chunk(cookie, (0, chunk::OFFSET_DATA), &at(512, &[9; 1024]));
            wire.chunk(cookie, DATA_DONE, &at(512, &[9; 512]));
        }),
        (true, |wire, cookie| {
            wire.chunk(cookie, (0, chunk::OFFSET_HOLE), &at(512, &u32::MAX.to_be_bytes()));
        }),
        (true, |wire, cookie| wire.chunk(cookie, (0, chunk::OFFSET_HOLE), &[0; 11])),
        (true, |wire, cookie| wire.chunk(cookie, (1, chunk::BLOCK_STATUS), &[0; 12])),
        (true, |wire, cookie| wire.chunk(cookie, (1, chunk::ERROR), &[0; 6])),
        (true, |wire, cookie| wire.chunk(cookie, (1, chunk::ERROR), &[0; 3])),
        (true, |wire, cookie| wire.chunk(cookie, (1, 77), &[0; 3])),
        (true, |wire, cookie| {
            let header =
                forebay_nbd_wire::ChunkHeader::new(cookie, 1, chunk::OFFSET_DATA, u32::MAX);
            wire.send(zerocopy::IntoBytes::as_bytes(&header));
            wire.send(&[0; 4096]);
        }),
    ];
    replies
}

#[test]
fn a_bad_reply_makes_a_request_repeat_on_another_connection() {
    let lane = OnLane::new();
    for (number, (chunks, reply)) in bad_replies().into_iter().enumerate() {
        let offer = Offer { chunks, ..Offer::default() };
        let good = Offer { chunks, ..Offer::default() };
        let server = Server::new(vec![
            agreed(offer, move |wire| {
                let (header, _) = wire.expect(command::READ);
                reply(wire, header.cookie);
                let _ = wire.stream.shutdown(std::net::Shutdown::Write);
                while wire.request().is_some() {}
            }),
            agreed(good, move |wire| {
                let (header, _) = wire.expect(command::READ);
                assert_eq!((header.offset, header.len), (512, 1024));
                match chunks {
                    true => wire.chunk(header.cookie, DATA_DONE, &at(512, &[5; 1024])),
                    false => wire.simple(header.cookie, 0, &[5; 1024]),
                }
            }),
        ]);
        let device = server.open("").expect("it seems good");
        let data = lane.run(&device, |queue| async move { read(&queue, 512, 1024).await });
        assert_eq!(data.expect("read at last"), [5; 1024], "reply {number}");
        drop(device);
        server.join();
    }
}

#[test]
fn a_request_that_ends_each_connection_fails_at_last() {
    let script = || {
        agreed(Offer::default(), |wire| {
            wire.expect(command::READ);
        })
    };
    let server = Server::new((0..8).map(|_| script()).collect());
    let device = server.open("").expect("it seems good");
    let error = OnLane::new().run(&device, |queue| async move { read(&queue, 0, 512).await });
    let error = error.expect_err("never answered");
    assert_eq!(error.kind, DeviceErrorKind::Unreachable);
    assert!(error.to_string().contains("lost each time"), "{error}");
    drop(device);
    server.join();
}

#[test]
fn a_bad_handshake_is_an_error_and_no_more() {
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let reply = |option: u32, kind: u32, len: u32, data: &[u8]| {
        let numbers = [option, kind, len].map(u32::to_be_bytes).concat();
        [&forebay_nbd_wire::OPTION_REPLY_MAGIC.to_be_bytes()[..], &numbers, data].concat()
    };
    let unsupported = 1u32 << 31 | 1;
    let mut bad: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec(),
        b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0".to_vec(),
        b"NBDMAGICIHAVEOPT\0\x00".to_vec(),
        greeting.clone(),
        [&greeting[..], &reply(8, 1, u32::MAX, &[])].concat(),
        [&greeting[..], &reply(7, 1, 0, &[])].concat(),
        [&greeting[..], &[0; 64]].concat(),
    ];
    let ready = [&greeting[..], &reply(8, unsupported, 0, &[])].concat();
    for go in [
        reply(7, 1, 0, &[]),
        reply(7, 3, 0, &[]),
        reply(7, 3, 5, &[0, 0, 1, 1, 1]),
        reply(7, 3, 14, &[0, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 4]),
        reply(7, 3, 14, &[0, 3, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0]),
        reply(7, 3, 14, &[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        reply(7, 9, 0, &[]),
        reply(7, unsupported, 4, b"\x1b[1m"),
        reply(7, 1 << 31 | 6, 0, &[]),
        (0..100).flat_map(|_| reply(7, 3, 2, &[0, 9])).collect(),
    ] {
        bad.push([&ready[..], &go].concat());
    }
    let scripts = bad.iter().cloned().map(|bytes| {
        script(move |wire| {
            wire.send(&bytes);
            let _ = wire.stream.shutdown(std::net::Shutdown::Write);
            while wire.bytes(1).is_some() {}
        })
    });
    let server = Server::new(scripts.collect());
    for bytes in &bad {
        let error = server.open("").err().expect("no server");
        assert!(!error.to_string().contains('\x1b'), "{error} {bytes:?}");
    }
    server.join();
}

#[test]
fn holes_are_told_where_the_server_says_so() {
    let serve = |wire: &mut Wire| {
        for (flags, len) in [
            (allocation::HOLE | allocation::ZERO, 1024),
            (allocation::HOLE, 512),
            (allocation::ZERO, 512),
            (0, u32::MAX),
        ] {
            let (header, _) = wire.expect(command::BLOCK_STATUS);
            assert_eq!(header.flags, command_flag::REQ_ONE);
            let content = [7u32, len, flags].map(u32::to_be_bytes).concat();
            wire.chunk(header.cookie, (chunk::FLAG_DONE, chunk::BLOCK_STATUS), &content);
        }
        let (header, _) = wire.expect(command::BLOCK_STATUS);
        wire.chunk(header.cookie, (chunk::FLAG_DONE, chunk::ERROR), &[0, 0, 0, 5, 0, 0]);
        wire.request();
    };
    let server = Server::new(vec![agreed(Offer::chunks(), serve)]);
    let device = server.open("").expect("a good server");
    assert!(device.knows_holes());
    assert_eq!(device.extent_at(0), None, "no lane has a queue");
    let lane = OnLane::new();
    // The queue lives as long as the lane.
    lane.run(&device, |queue| async move { std::mem::forget(queue) });
    for (offset, end, hole) in
        [(0, 1024, true), (512, 1024, false), (1024, 1536, false), (1536, SMALL, false)]
    {
        let extent = device.extent_at(offset).expect("known");
        assert_eq!((extent.end, extent.hole), (end, hole), "{offset}");
    }
    assert_eq!(device.extent_at(0), None, "the server fails");
    assert_eq!(device.extent_at(SMALL), None);
}

#[test]
fn the_server_says_whether_distance_costs_time() {
    for (flags, rotational) in [(FLAGS, false), (FLAGS | transmission_flag::ROTATIONAL, true)] {
        let offer = Offer { flags, ..Offer::default() };
        let server = Server::new(vec![agreed(offer, |_| ())]);
        assert_eq!(server.open("").expect("a good server").rotational(), Some(rotational));
    }
}

#[test]
fn a_durable_write_has_fua_and_needs_no_flush() {
    let server = Server::new(vec![agreed(Offer::default(), |wire| {
        let (header, payload) = wire.expect(command::WRITE);
        assert_eq!((header.flags, payload), (command_flag::FUA, vec![3; 512]));
        wire.simple(header.cookie, 0, &[]);
    })]);
    let device = server.open("").expect("a good server");
    assert!(device.writes_durably());
    OnLane::new().run(&device, |queue| async move {
        let log = LogBuffer::new(4096);
        let mut claim = log.claim(512..1024).expect("free");
        claim.fill(3);
        claim.publish();
        let op = DeviceOp::DurableWrite { offset: 0, log, range: 512..1024 };
        run(&queue, op).await.expect("durable");
    });
    drop(device);
    server.join();
}
