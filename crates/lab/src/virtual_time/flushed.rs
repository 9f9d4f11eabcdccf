//! Clients that flush after each of their writes: a request ends when its flush has ended.

use forebay_core::Nanos;

use crate::error::LabResult;

use super::access::Access;
use super::clients::Server;
use super::tally::{Gauges, Tally};

/// A server that can be told to make all earlier writes durable.
pub(crate) trait Flush: Server {
    /// Starts a flush of a client.
    fn start_flush(&mut self, client: u32);
}

/// See the module.
pub(crate) struct Flushed<'a, S> {
    server: &'a mut S,
    /// When the flush of each client began, if one is under way.
    began: Vec<Option<Nanos>>,
    /// The flushes alone.
    pub(crate) flushes: Tally,
    scratch: Vec<u32>,
}

impl<'a, S: Flush> Flushed<'a, S> {
    /// Puts flushes in front of `server`, for this number of clients.
    pub(crate) fn new(server: &'a mut S, clients: usize) -> Self {
        let began = vec![None; clients];
        Flushed { server, began, flushes: Tally::default(), scratch: Vec::new() }
    }

    fn flush(&mut self, client: u32) {
        self.began[client as usize] = Some(self.server.now());
        self.server.start_flush(client);
    }
}

impl<S: Flush> Server for Flushed<'_, S> {
    fn now(&self) -> Nanos {
        self.server.now()
    }

    fn start(&mut self, client: u32, access: &Access) -> LabResult<bool> {
        if self.server.start(client, access)? {
            self.flush(client);
        }
        Ok(false)
    }

    fn settle(&mut self, ended: &mut Vec<u32>) -> LabResult<()> {
        loop {
            let mut found = std::mem::take(&mut self.scratch);
            self.server.settle(&mut found)?;
            let mut written = false;
            for client in found.drain(..) {
                match self.began[client as usize].take() {
                    Some(began) => {
                        self.flushes.record(0, self.server.now().0 - began.0);
                        ended.push(client);
                    }
                    None => {
                        self.flush(client);
                        written = true;
                    }
                }
            }
            self.scratch = found;
            if !written {
                return Ok(());
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.server.next_event()
    }

    fn advance(&mut self, to: Nanos) {
        self.server.advance(to);
    }

    fn gauges(&self) -> Gauges {
        self.server.gauges()
    }
}
