//! The NBD handshake: the bytes of a client, in one piece and in many.

use std::rc::Rc;

use crate::{memory, mend, mutation, pieces};
use forebay_engine::BlockService;
use forebay_nbd::handshake::{Handshake, HandshakeStep, OPTION_DATA_MAX, Security};
use forebay_nbd::null::{ExportList, NullTarget};
use forebay_nbd::transmission::Session;
use forebay_nbd::wire::OPTION_MAGIC;

/// Replies are held back no longer than this; one option's replies come on top.
const REPLIES_MOST: usize = 80 << 10;

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = mutation::change(data, size, max_size);
    if !seed.is_multiple_of(8) {
        mend_options(&mut data[..size]);
    }
    size
}

/// Flags that are known, options where options should be, lengths that fit most of the time.
fn mend_options(data: &mut [u8]) {
    if let Some(flags) = data.get_mut(..4) {
        flags.copy_from_slice(&[flags[0] & 1, 0, 0, flags[3] & 3]);
    }
    let mut at = 4;
    while at + 16 <= data.len() {
        mend::put(data, at, &OPTION_MAGIC.to_be_bytes());
        let left = data.len() - at - 16;
        let len = data[at + 12..at + 16].iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let len = if len > left && len <= OPTION_DATA_MAX { left } else { len };
        mend::put(data, at + 8, &[0, 0, 0, data[at + 11] % 16]);
        mend::put(data, at + 12, &(len as u32).to_be_bytes());
        at += 16 + len;
    }
}

fn exports() -> ExportList {
    let volume =
        |size, read_only| Rc::new(NullTarget::new(size, read_only)) as Rc<dyn BlockService>;
    ExportList::new(vec![
        ("a".into(), volume(1 << 20, false)),
        ("zwölf".into(), volume((1 << 30) + 100, true)),
    ])
}

#[derive(Debug, PartialEq)]
enum End {
    Waiting,
    Started { export: String, session: Session, left: usize },
    Closed { reason: String, left: usize },
}

/// Everything that is sent, and how it ends.
fn feed(
    security: Security,
    whole: usize,
    pieces: &[&[u8]],
    exports: &ExportList,
) -> (Vec<u8>, End) {
    let (mut sent, mut replies, mut input) = (Vec::new(), Vec::new(), Vec::new());
    let mut used = 0;
    let mut handshake = Handshake::new(security, &mut replies);
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let (consumed, progress) = handshake.advance(&input, exports, &mut replies);
            assert!(consumed <= input.len() && replies.len() <= REPLIES_MOST);
            assert!(!matches!(progress, HandshakeStep::Send) || !replies.is_empty(), "no way on");
            input.drain(..consumed);
            used += consumed;
            sent.append(&mut replies);
            let left = whole - used;
            match progress {
                HandshakeStep::Send => {}
                HandshakeStep::Receive => break,
                // As if the bytes that follow had been encrypted.
                HandshakeStep::StartTls => handshake.secured(),
                HandshakeStep::Start(start) => {
                    assert_eq!(start.session.size % 512, 0);
                    let (export, session) = (start.export, start.session);
                    return (sent, End::Started { export, session, left });
                }
                HandshakeStep::Close(reason) => {
                    return (sent, End::Closed { reason: reason.to_string(), left });
                }
            }
        }
        assert!(input.len() < OPTION_DATA_MAX + 16, "more is kept than a buffer holds");
    }
    (sent, End::Waiting)
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let exports = exports();
    // A first byte of 1, which no flags of a client have, stands for a server that insists on TLS.
    let security = if data.first() == Some(&1) { Security::Required } else { Security::Local };
    let mut data = data.to_vec();
    if let Some(first) = data.first_mut().filter(|first| **first == 1) {
        *first = 0;
    }
    let data = &data[..];
    memory::within((8 << 20) + 64 * data.len(), || {
        let whole = feed(security, data.len(), &[data], &exports);
        let in_pieces = feed(security, data.len(), &pieces(data, usize::MAX), &exports);
        assert!(whole == in_pieces, "a split matters");
        if data.len() <= 512 {
            let bytes: Vec<&[u8]> = data.chunks(1).collect();
            assert!(whole.0.len() >= 18);
            // Without any input there is no call to `advance`.
            assert!(data.is_empty() || whole == feed(security, data.len(), &bytes, &exports));
        }
    });
}
