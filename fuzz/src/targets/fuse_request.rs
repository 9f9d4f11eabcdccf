//! Requests of the kernel to a file: the volume's request lies inside the volume for any input.

use forebay_fuse::answer::{Action, FileFacts, MAX_TRANSFER, decide};
use forebay_fuse::request::{FuseRequest, Message, coming, parse, parse_entry};

use crate::{mend, mutation};

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = mutation::change(data, size, max_size);
    if !seed.is_multiple_of(8) && size >= 40 {
        // The length, an opcode that exists, and the only node.
        mend::put(&mut data[..size], 0, &(size as u32).to_ne_bytes());
        let opcode = u32::from(data[4] % 64);
        mend::put(&mut data[..size], 4, &opcode.to_ne_bytes());
        mend::put(&mut data[..size], 16, &1u64.to_ne_bytes());
    }
    size
}

/// See [`super::Target`].
pub(crate) fn run(data: &[u8]) {
    let _ = coming(data);
    // As it is read from the connection, and as it comes through io_uring.
    let (header, rest) = data.split_at(data.len().min(40));
    let (parameters, payload) = rest.split_at(rest.len().min(40));
    let parsed = [parse(data), parse_entry(header, parameters, payload.len())];
    parsed.iter().flatten().for_each(|message| judge(message, data));
}

fn judge(message: &Message, data: &[u8]) {
    for read_only in [false, true] {
        let file = FileFacts {
            size: (1 << 30) + 512,
            sector: 512,
            read_only,
            block: 4096,
            uid: 0,
            gid: 0,
            outlives: false,
            io_uring: read_only,
        };
        let request = match decide(message, &file) {
            Action::Read { request, skip, len } => {
                assert!(u64::from(skip) + u64::from(len) <= request.len);
                assert!(request.len <= u64::from(MAX_TRANSFER) + 1024);
                request
            }
            Action::Volume(request) => {
                assert!(!read_only || matches!(message.request, FuseRequest::Fsync));
                request
            }
            Action::Reply(Ok(content)) => {
                assert!(content.bytes().len() <= 104);
                continue;
            }
            Action::Ignore | Action::Reply(Err(_)) => continue,
        };
        assert!(request.offset.is_multiple_of(512) && request.len.is_multiple_of(512));
        assert!(request.offset.checked_add(request.len).is_some_and(|end| end <= file.size));
        if let FuseRequest::Write { len, .. } = message.request {
            assert_eq!(u64::from(len), request.len);
            assert!(data.len() >= 80 + len as usize);
        }
    }
}
