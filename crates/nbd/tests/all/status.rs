//! Block status of volumes with an origin that knows its holes.

use forebay_nbd::wire::*;

use crate::support::*;

/// Returns the extents of a range in `base:allocation`.
fn status(client: &mut Client, flags: u16, offset: u64, len: u64) -> Vec<(u64, u64)> {
    let bytes = client.ask(command::BLOCK_STATUS, flags, offset, len, &[]).expect("a status");
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("word"));
    (0..bytes.len() / 16).map(|at| (word(at * 16), word(at * 16 + 8))).collect()
}

#[test]
fn holes_are_reported_unless_cached_or_the_origin_hangs() {
    const MIB: u64 = 1 << 20;
    let server = TestServer::start();
    let mut client = server.open("holes", Headers::Extended);
    let all = status(&mut client, 0, 0, DISK);
    assert_eq!(all, [(MIB, 3), (2 * MIB, 0), (DISK - 3 * MIB, 3)]);
    assert_eq!(status(&mut client, command_flag::REQ_ONE, 512, DISK - 512), [(MIB - 512, 3)]);
    assert_eq!(status(&mut client, 0, DISK - 512, 512), [(512, 3)]);

    // More clients than there are threads look for holes of an origin that does not answer.
    ONE_HOLE.hang(true);
    let mut waiting: Vec<_> = (0..20).map(|_| server.open("holes", Headers::Extended)).collect();
    for client in &mut waiting {
        client.send(command::BLOCK_STATUS, 0, 0, DISK, &[]);
        client.send(command::READ, 0, 0, 512, &[]);
    }
    let mut neighbour = server.open("memory", Headers::Structured);
    assert_eq!(neighbour.read(0, 4096), Ok(vec![0; 4096]));
    for client in &mut waiting {
        let told = client.reply();
        assert_eq!(told.data, [DISK.to_be_bytes(), 0u64.to_be_bytes()].concat());
        assert_eq!(client.reply().data, vec![0; 512]);
    }
    ONE_HOLE.hang(false);
    // The threads come back.
    while status(&mut client, 0, 0, MIB) != [(MIB, 3)] {
        std::thread::yield_now();
    }
}
