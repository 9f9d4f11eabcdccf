//! Servers: ours and others, each a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::client::{Client, Load};
use crate::bench::fio_client;
use crate::bench::measure::Sample;
use crate::error::{LabResult, other};
use crate::output::name_of;
use crate::process::{CpuOf, cpu_time};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Ours, with an engine on RAM devices
    Forebay,
    /// qemu-storage-daemon, which answers without touching any data (null-co)
    QemuNull,
    /// nbdkit's memory plugin
    NbdkitMemory,
}

impl Peer {
    pub(crate) fn name(self) -> String {
        name_of(self)
    }

    /// The name of its export.
    pub(crate) fn export(self) -> &'static str {
        match self {
            Peer::Forebay => crate::rig::VOLUME,
            Peer::QemuNull => "null",
            Peer::NbdkitMemory => "",
        }
    }

    /// How many times as fast we are to be.
    pub(crate) fn goal(self, write: bool, depth: usize) -> Option<f64> {
        match self {
            Peer::Forebay => None,
            Peer::QemuNull if write && depth >= 32 => Some(1.3),
            Peer::QemuNull => Some(1.0),
            Peer::NbdkitMemory => Some(1.3),
        }
    }

    fn command(self, socket: &Path, size: u64) -> LabResult<Command> {
        let path = socket.display();
        let (program, arguments) = match self {
            Peer::Forebay => (
                std::env::current_exe()?,
                vec!["nbd-server".into(), format!("--listen={path}"), format!("--size={size}")],
            ),
            Peer::QemuNull => (
                "qemu-storage-daemon".into(),
                vec![
                    format!("--blockdev=driver=null-co,node-name=null,size={size}"),
                    format!("--nbd-server=addr.type=unix,addr.path={path}"),
                    "--export=type=nbd,id=export,node-name=null,name=null,writable=on".into(),
                ],
            ),
            Peer::NbdkitMemory => (
                "nbdkit".into(),
                vec![
                    "--foreground".into(),
                    format!("--unix={path}"),
                    "memory".into(),
                    format!("size={size}"),
                ],
            ),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }
}

/// A server that runs. It is killed when this is dropped.
pub(crate) struct Running {
    peer: Peer,
    child: Child,
    socket: PathBuf,
}

impl Running {
    /// Starts a server and connects to it as soon as it takes clients.
    pub(crate) fn start(peer: Peer, folder: &Path, size: u64) -> LabResult<(Self, Client)> {
        let socket = folder.join(peer.name());
        let child = peer
            .command(&socket, size)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| other(format!("{} cannot be started: {error}", peer.name())))?;
        let mut running = Running { peer, child, socket };
        let started = Instant::now();
        loop {
            match Client::connect(&running.socket, peer.export()) {
                Ok(client) => return Ok((running, client)),
                Err(error) if started.elapsed() > PATIENCE => return Err(error),
                Err(_) => (),
            }
            if let Some(status) = running.child.try_wait()? {
                return Err(other(format!("{} has ended: {status}", peer.name())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Has fio send the requests of a load.
    pub(crate) fn run_fio(&self, span: u64, load: &Load<'_>) -> LabResult<Sample> {
        let (write, depth, time) = (load.is_write(), load.depth, load.time);
        fio_client::nbd(
            &self.socket,
            self.peer.export(),
            &fio_client::Load { write, depth, span, time },
        )
    }

    /// CPU time of all threads that it has or had, in whole clock ticks.
    pub(crate) fn cpu(&self) -> LabResult<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        cpu_time(&text, CpuOf::Process).ok_or_else(|| other("/proc/PID/stat is not understood"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
