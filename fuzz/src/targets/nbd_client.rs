//! The client's side of the NBD handshake: the answers of a server.

use std::io::{self, Read, Write};

use crate::memory;
use forebay_nbd_client::handshake::{ConnectError, choose};
use forebay_nbd_wire::handshake::greet;
use forebay_nbd_wire::{OPTION_REPLY_MAGIC, option_reply as kind};

/// A server that answers each option with replies from the input. Their magic numbers are right
/// most of the time.
struct Server<'a> {
    input: &'a [u8],
    option: u32,
    ready: Vec<u8>,
}

impl Server<'_> {
    fn next(&mut self, len: usize) -> Vec<u8> {
        let (head, rest) = self.input.split_at(len.min(self.input.len()));
        self.input = rest;
        head.to_vec()
    }

    /// Makes the next reply.
    fn reply(&mut self) {
        let [selector, len] = self.next(2)[..] else { return };
        let content = self.next(len.into());
        let kind = match selector % 8 {
            0 => kind::ACK,
            1..=3 => kind::INFO,
            4 => kind::META_CONTEXT,
            5 => kind::ERR_UNSUP,
            6 => kind::ERR_UNKNOWN,
            _ => {
                self.ready = content;
                return;
            }
        };
        // A length that is not that of the content, now and then.
        let len = if selector >= 250 { u32::MAX >> (len % 32) } else { content.len() as u32 };
        self.ready = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        self.ready.extend([self.option, kind, len].map(u32::to_be_bytes).concat());
        self.ready.extend(content);
    }
}

impl Read for Server<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ready.is_empty() {
            self.reply();
        }
        let len = into.len().min(self.ready.len());
        into[..len].copy_from_slice(&self.ready[..len]);
        self.ready.drain(..len);
        Ok(len)
    }
}

impl Write for Server<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(option) = data.get(8..12).and_then(|option| option.try_into().ok()) {
            self.option = u32::from_be_bytes(option);
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs one input: flags of the greeting, and replies.
pub(crate) fn run(data: &[u8]) {
    memory::within(1 << 20, || {
        let mut server = Server { input: data, option: 0, ready: Vec::new() };
        server.ready = b"NBDMAGICIHAVEOPT".to_vec();
        let flags = server.next(2);
        server.ready.extend(flags);
        let agreed = greet(&mut server)
            .map_err(ConnectError::from)
            .and_then(|()| choose(&mut server, "export"));
        match agreed {
            Ok(agreed) => {
                let export = agreed.export;
                assert!(export.least.is_power_of_two() && export.least <= export.most);
                assert!(agreed.chunks || agreed.allocation.is_none());
            }
            Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
        }
    });
}
