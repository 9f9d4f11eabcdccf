//! Clients of a volume, described for an operator.

use std::net::IpAddr;
use std::num::NonZeroU32;

use forebay_engine::Client;
use forebay_host::processes;

/// Maximum number of clients that are named; the others are only counted.
const NAMED: usize = 5;

/// The source of a client's connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Process(Option<NonZeroU32>),
    Machine(Option<IpAddr>),
}

impl Origin {
    fn of(client: &Client) -> Self {
        match *client {
            Client::Local { pid } => Origin::Process(pid),
            Client::Remote { address } => Origin::Machine(address.map(|it| it.ip().to_canonical())),
        }
    }

    /// Returns the name of the source, and the transport of `first`, one of its connections.
    /// `alone`: it has no other connection.
    fn name(self, first: &Client, alone: bool) -> String {
        match (self, first) {
            (Origin::Process(Some(pid)), _) => {
                format!("process {} by unix socket", processes::with_name(pid.get()))
            }
            (Origin::Process(None), _) => {
                "a process that cannot be seen from here, by unix socket".to_owned()
            }
            (_, Client::Remote { address: Some(address) }) if alone => format!("{address} by TCP"),
            (Origin::Machine(Some(address)), _) => format!("{address} by TCP"),
            (Origin::Machine(None), _) => "an unknown address by TCP".to_owned(),
        }
    }
}

/// Describes clients as a list; a source with several connections appears once, with their number.
pub fn listed(clients: &[Client]) -> String {
    let mut all: Vec<(Origin, &Client, usize)> = Vec::new();
    for client in clients {
        let origin = Origin::of(client);
        match all.iter_mut().find(|(known, ..)| *known == origin) {
            Some((_, _, connections)) => *connections += 1,
            None => all.push((origin, client, 1)),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (origin, first, connections) in all.iter().take(NAMED) {
        let name = origin.name(first, *connections == 1);
        parts.push(match connections {
            1 => name,
            _ => format!("{name} ({connections} connections)"),
        });
    }
    if let Some(others) = all.len().checked_sub(NAMED).filter(|others| *others > 0) {
        parts.push(format!("{others} more"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Client {
        Client::Remote { address: Some(text.parse().expect("an address")) }
    }

    #[test]
    fn clients_are_grouped_by_process_and_machine() {
        // No process has this ID.
        let local = |pid| Client::Local { pid: NonZeroU32::new(pid) };
        let clients = [
            local(u32::MAX),
            local(0),
            remote("192.0.2.1:40"),
            local(u32::MAX),
            remote("[::ffff:192.0.2.1]:41"),
            remote("[2001:db8::1]:42"),
            Client::Remote { address: None },
        ];
        let text = format!(
            "process {} () by unix socket (2 connections), a process that cannot be seen from here, by unix socket, \
             192.0.2.1 by TCP (2 connections), [2001:db8::1]:42 by TCP, an unknown address by TCP",
            u32::MAX
        );
        assert_eq!(listed(&clients), text);
        assert_eq!(listed(&[]), "");
    }

    #[test]
    fn a_long_list_ends_with_a_count() {
        let clients: Vec<Client> =
            (1..=7).map(|host| remote(&format!("192.0.2.{host}:1"))).collect();
        let text = listed(&clients);
        assert!(text.ends_with("192.0.2.5:1 by TCP, 2 more"), "{text}");
    }
}
