//! The clients of a volume.

use std::net::SocketAddr;

use forebay_admin::VolumeReport;
use forebay_admin::report::{ClientReport, Transport};

use super::grouped;
use crate::output::table::{Column, Table};

/// Lists the clients that have the volume open, those with several connections once; empty if there
/// are none.
pub(super) fn clients(report: &VolumeReport) -> String {
    let mut rows: Vec<(String, String, u64)> = Vec::new();
    for client in &report.clients {
        let (name, by) = (name(client), by(client));
        match rows.iter_mut().find(|row| (&row.0, &row.1) == (&name, &by)) {
            Some((_, _, connections)) => *connections += 1,
            None => rows.push((name, by, 1)),
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(&[Column::left("CLIENT"), Column::left("BY"), Column::right("CONNECTIONS")]);
    for (name, by, connections) in rows {
        table.row([name, by, grouped(connections)]);
    }
    format!("{}\n", table.render())
}

fn name(client: &ClientReport) -> String {
    match (client.transport, client.pid, &client.address) {
        (Transport::Unix, Some(pid), _) => {
            let process = client.process.as_deref().unwrap_or("ended");
            format!("process {pid} ({process})")
        }
        (Transport::Unix, None, _) => "a process that the daemon cannot see".to_owned(),
        (Transport::Tcp, _, Some(address)) => {
            let machine = address.parse().map(|it: SocketAddr| it.ip().to_canonical().to_string());
            machine.unwrap_or_else(|_| address.clone())
        }
        (Transport::Tcp, _, None) => "an unknown address".to_owned(),
    }
}

fn by(client: &ClientReport) -> String {
    match client.transport {
        Transport::Unix => format!("{}, unix socket", client.front_end),
        Transport::Tcp => format!("{}, TCP", client.front_end),
    }
}

#[cfg(test)]
mod tests {
    use forebay_admin::VolumeState;
    use forebay_settings::Settings;

    use super::*;

    #[test]
    fn clients_are_listed_once_with_their_connections() {
        let settings = Settings::default();
        let name = "v".parse().expect("a name");
        let mut report = VolumeReport::empty(name, VolumeState::Running, settings);
        assert_eq!(clients(&report), "");
        let client = |transport, address: Option<&str>, pid, process: Option<&str>| ClientReport {
            front_end: "nbd".to_owned(),
            transport,
            address: address.map(str::to_owned),
            pid,
            process: process.map(str::to_owned),
        };
        report.clients = vec![
            client(Transport::Unix, None, Some(7), Some("qemu-img")),
            client(Transport::Tcp, Some("192.0.2.1:5"), None, None),
            client(Transport::Unix, None, Some(7), Some("qemu-img")),
            client(Transport::Tcp, Some("[::ffff:192.0.2.1]:6"), None, None),
            client(Transport::Unix, None, None, None),
        ];
        let expected = "\
CLIENT                                BY                CONNECTIONS
process 7 (qemu-img)                  nbd, unix socket            2
192.0.2.1                             nbd, TCP                    2
a process that the daemon cannot see  nbd, unix socket            1

";
        assert_eq!(clients(&report), expected);
    }
}
