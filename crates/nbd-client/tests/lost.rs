//! Lost connections: which requests are sent again, and the meaning of later flushes.

use std::sync::mpsc::channel;

use forebay_device::{DeviceErrorKind, DeviceOp};
use forebay_nbd_wire::{command, transmission_flag};

mod support;
use support::*;

fn usual(run: impl FnOnce(&mut Wire) + Send + 'static) -> Script {
    agreed(Offer::default(), run)
}

/// Waits for the next request, which must be `command`, and answers it.
fn acknowledge(wire: &mut Wire, command: u16) {
    let (header, _) = wire.expect(command);
    let data = vec![1; if command == command::READ { header.len as usize } else { 0 }];
    wire.simple(header.cookie, 0, &data);
}

#[test]
fn requests_in_flight_are_sent_again() {
    let all = [command::READ, command::WRITE, command::WRITE_ZEROES, command::FLUSH];
    for lost in 0..=all.len() {
        let server = Server::new(vec![
            usual(move |wire| {
                // The server receives `lost` requests and answers none.
                for _ in 0..lost {
                    wire.request();
                }
            }),
            usual(move |wire| {
                let mut seen = Vec::new();
                for _ in all {
                    let (header, payload) = wire.request().expect("all of them");
                    assert!(payload.iter().all(|byte| *byte == 4));
                    let len = if header.command == command::READ { header.len } else { 0 };
                    wire.simple(header.cookie, 0, &vec![1; len as usize]);
                    seen.push(header.command);
                }
                seen.sort_unstable();
                let mut wanted = all;
                wanted.sort_unstable();
                assert_eq!(seen, wanted);
            }),
        ]);
        let device = server.open("").expect("good");
        OnLane::new().run(&device, |queue| async move {
            let zeroes = DeviceOp::WriteZeroes { offset: 1024, len: 512 };
            let (one, two) = (read(&queue, 0, 512), write(&queue, 512, 4, 512));
            let (three, four) = (run(&queue, zeroes), queue.sync());
            let work: [std::pin::Pin<Box<dyn Future<Output = bool>>>; 4] = [
                Box::pin(async { one.await.is_ok() }),
                Box::pin(async { two.await.is_ok() }),
                Box::pin(async { three.await.is_ok() }),
                Box::pin(async { four.await.is_ok() }),
            ];
            assert_eq!(forebay_lane::join_all(work).await, [true; 4]);
        });
        drop(device);
        server.join();
    }
}

#[test]
fn a_lost_connection_is_one_loss_for_any_number_of_requests() {
    let offer = Offer { size: 65536, most: 4096, ..Offer::default() };
    let requests = |wire: &mut Wire| {
        let mut cookies = Vec::new();
        while cookies.len() < 16 {
            let (header, _) = wire.expect(command::READ);
            assert_eq!(header.len, 4096);
            cookies.push(header.cookie);
        }
        cookies
    };
    let samples = move |wire: &mut Wire| {
        for cookie in requests(wire) {
            wire.simple(cookie, 0, &[1; 4096]);
        }
    };
    let lost = |_| {
        agreed(offer, move |wire| {
            samples(wire);
            requests(wire);
        })
    };
    let mut scripts: Vec<Script> = (0..7).map(lost).collect();
    scripts.push(agreed(offer, move |wire| {
        samples(wire);
        samples(wire);
    }));
    let server = Server::new(scripts);
    let device = server.open("").expect("good");
    let data = OnLane::new().run(&device, |queue| async move { read(&queue, 0, 65536).await });
    assert!(data.expect("read on the last connection").iter().all(|byte| *byte == 1));
    drop(device);
    server.join();
}

#[test]
fn an_abandoned_write_is_not_sent_again() {
    let server = Server::new(vec![
        usual(|wire| {
            wire.expect(command::WRITE);
            acknowledge(wire, command::READ);
            wire.expect(command::READ);
        }),
        usual(|wire| {
            acknowledge(wire, command::READ);
            let left = wire.request().map(|(header, _)| header.command);
            assert_eq!(left, Some(command::DISC), "no write");
        }),
    ]);
    let device = server.open("").expect("good");
    OnLane::new().run(&device, |queue| async move {
        let forgotten = async { write(&queue, 0, 4, 512).await.expect("not answered") };
        let other = async {
            read(&queue, 512, 512).await.expect("read");
        };
        // The write begins first, and is dropped when the read has ended.
        forebay_lane::either(forgotten, other).await;
        read(&queue, 512, 512).await.expect("read on the next connection");
    });
    drop(device);
    server.join();
}

#[test]
fn a_flush_fails_once_after_a_connection_with_writes_is_lost() {
    // Whether the flush is sent on the old connection or not.
    for sent in [true, false] {
        let server = Server::new(vec![
            usual(move |wire| {
                acknowledge(wire, command::WRITE);
                if sent {
                    wire.expect(command::FLUSH);
                } else {
                    wire.expect(command::READ);
                }
            }),
            usual(move |wire| {
                if !sent {
                    acknowledge(wire, command::READ);
                }
                acknowledge(wire, command::WRITE);
                acknowledge(wire, command::FLUSH);
            }),
        ]);
        let device = server.open("").expect("good");
        OnLane::new().run(&device, move |queue| async move {
            write(&queue, 0, 4, 512).await.expect("acknowledged");
            if !sent {
                read(&queue, 0, 512).await.expect("read on the next connection");
            }
            let error = queue.sync().await.expect_err("the write may be lost");
            assert_eq!(error.kind, DeviceErrorKind::Io);
            assert!(error.to_string().contains("acknowledged"), "{error}");
            write(&queue, 0, 4, 512).await.expect("once more");
            queue.sync().await.expect("durable");
        });
        drop(device);
        server.join();
    }
}

#[test]
fn a_flush_survives_a_lost_connection_without_new_writes() {
    let server = Server::new(vec![
        usual(|wire| {
            acknowledge(wire, command::WRITE);
            acknowledge(wire, command::FLUSH);
            wire.expect(command::FLUSH);
        }),
        usual(|wire| {
            acknowledge(wire, command::FLUSH);
            acknowledge(wire, command::FLUSH);
        }),
    ]);
    let device = server.open("").expect("good");
    OnLane::new().run(&device, |queue| async move {
        write(&queue, 0, 4, 512).await.expect("acknowledged");
        for _ in 0..3 {
            queue.sync().await.expect("durable");
        }
    });
    drop(device);
    server.join();
}

#[test]
fn a_sync_covers_the_connections_of_other_lanes_or_fails() {
    for loses in [false, true] {
        let (go, wait) = channel::<()>();
        let server = Server::new(vec![
            usual(move |wire| {
                acknowledge(wire, command::WRITE);
                let (header, _) = wire.expect(command::FLUSH);
                if !loses {
                    wire.simple(header.cookie, 0, &[]);
                    let _ = wait.recv();
                }
            }),
            usual(|wire| {
                acknowledge(wire, command::FLUSH);
                wire.request();
            }),
            usual(|wire| while wire.request().is_some() {}),
        ]);
        let device = server.open("").expect("good");
        let (one, other) = (OnLane::new(), OnLane::new());
        let (tell, hear) = channel::<()>();
        let (told, heard) = channel::<bool>();
        let writer = one.begin(&device, move |queue| async move {
            let written = write(&queue, 0, 4, 512).await.is_ok();
            told.send(written).expect("heard");
            // The connection stays after the queue is dropped, because it has changes to flush.
            drop(queue);
            drop(tell);
        });
        assert_eq!(heard.recv(), Ok(true));
        assert!(hear.recv().is_err());
        writer.recv().expect("ended");
        let synced = other.run(&device, |queue| async move { queue.sync().await });
        assert_eq!(synced.is_err(), loses, "{synced:?}");
        drop(go);
    }
}

#[test]
fn lanes_share_a_connection_unless_the_server_allows_more() {
    let offer = Offer { flags: FLAGS & !transmission_flag::CAN_MULTI_CONN, ..Offer::default() };
    let server = Server::new(vec![agreed(offer, |wire| {
        let mut seen = Vec::new();
        while let Some((header, _)) = wire.request() {
            let len = if header.command == command::READ { header.len } else { 0 };
            wire.simple(header.cookie, 0, &vec![1; len as usize]);
            seen.push(header.command);
        }
        let count = |command| seen.iter().filter(|seen| **seen == command).count();
        assert_eq!((count(command::READ), count(command::FLUSH)), (12, 12), "{seen:?}");
    })]);
    let device = server.open("").expect("good");
    let lanes = [OnLane::new(), OnLane::new(), OnLane::new()];
    for _ in 0..2 {
        let running = lanes.each_ref().map(|lane| {
            lane.begin(&device, |queue| async move {
                for _ in 0..2 {
                    assert_eq!(read(&queue, 512, 512).await.expect("read"), [1; 512]);
                    queue.sync().await.expect("synced");
                }
            })
        });
        for end in running {
            end.recv().expect("no assertion failed");
        }
    }
    drop(device);
    server.join();
}

#[test]
fn a_server_that_comes_back_with_another_size_is_another_disk() {
    let smaller = Offer { size: SMALL - 512, ..Offer::default() };
    let server = Server::new(vec![
        usual(|wire| {
            wire.expect(command::READ);
        }),
        agreed(smaller, |_| ()),
    ]);
    let device = server.open("").expect("good");
    OnLane::new().run(&device, |queue| async move {
        for _ in 0..2 {
            let error = read(&queue, 0, 512).await.expect_err("another disk");
            assert_eq!(error.kind, DeviceErrorKind::Gone);
            assert!(error.to_string().contains("another size, 1536 bytes"), "{error}");
        }
    });
    assert_eq!(device.shrunk_to(), Some(SMALL - 512));
    drop(device);
    server.join();
}

#[test]
fn a_server_that_comes_back_with_other_content_is_another_disk() {
    // Samples are at 0, 4096 and so on. A change by this client's own write is not a change by
    // another program.
    for (written, changed, another) in [(0, 0, false), (0, 4096, true), (8192, 8192, false)] {
        let offer = Offer { size: 16384, ..Offer::default() };
        let server = Server::new(vec![
            agreed(offer, |wire| {
                let mut reads = 0;
                while let Some((header, _)) = wire.request() {
                    reads += u32::from(header.command == command::READ);
                    // Three samples, and the read.
                    if reads == 4 {
                        return;
                    }
                    let len = if header.command == command::READ { header.len } else { 0 };
                    wire.simple(header.cookie, 0, &vec![1; len as usize]);
                }
            }),
            agreed(offer, move |wire| {
                while let Some((header, _)) = wire.request() {
                    let byte = if header.offset == changed { 2 } else { 1 };
                    wire.simple(header.cookie, 0, &vec![byte; header.len as usize]);
                }
            }),
        ]);
        let device = server.open("").expect("good");
        let result = OnLane::new().run(&device, move |queue| async move {
            write(&queue, written, 9, 512).await.expect("written");
            read(&queue, 12288, 512).await
        });
        match result {
            Ok(data) => assert!(!another && data == [1; 512]),
            Err(error) => assert!(another && error.kind == DeviceErrorKind::Gone, "{error}"),
        }
    }
}

#[test]
fn a_server_that_only_shakes_hands_fails_requests_in_the_end() {
    let offer = Offer { size: 16384, ..Offer::default() };
    let scripts = (0..16).map(|_| {
        agreed(offer, |wire| {
            wire.request();
        })
    });
    let server = Server::new(scripts.collect());
    let device = server.open("&reconnect=1").expect("it seems good");
    let error = OnLane::new().run(&device, |queue| async move { read(&queue, 0, 512).await });
    let error = error.expect_err("never answered");
    assert!(error.to_string().contains("no connection for"), "{error}");
}

#[test]
fn a_server_that_hangs_or_stays_away_fails_requests_in_the_end() {
    let server = Server::new(vec![
        usual(|wire| while wire.request().is_some() {}),
        usual(|wire| {
            acknowledge(wire, command::READ);
            wire.expect(command::READ);
        }),
    ]);
    let device = server.open("&timeout=1&reconnect=1").expect("good");
    let path = server.path.clone();
    OnLane::new().run(&device, |queue| async move {
        let error = read(&queue, 0, 512).await.expect_err("no answer");
        assert!(error.to_string().contains("not answered for 1 s"), "{error}");
        read(&queue, 0, 512).await.expect("another connection is good");
        std::fs::remove_file(path).expect("there");
        let error = read(&queue, 0, 512).await.expect_err("nobody is there");
        assert_eq!(error.kind, DeviceErrorKind::Unreachable);
        assert!(error.to_string().contains("no connection for"), "{error}");
    });
}
