//! Servers: ours and others, each a process of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::client::{Client, Load};
use crate::bench::fio_client;
use crate::bench::measure::Sample;
use crate::error::{LabResult, other};
use crate::output::name_of;
use crate::process::cpu_time;

/// Maximum time for a server to start.
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
    /// qemu-storage-daemon with a file in RAM: the origin alone, for --through
    QemuFile,
}

/// Folder of the servers' files, and the volume they serve.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) size: u64,
    /// Whether ours writes through a cache, with cache and origin in files of the folder.
    pub(crate) through: bool,
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
            Peer::QemuFile => "file",
        }
    }

    /// Returns the promised speed of ours as a multiple of this server's.
    pub(crate) fn goal(self, write: bool, depth: usize) -> Option<f64> {
        match self {
            Peer::Forebay => None,
            Peer::QemuNull if write && depth >= 32 => Some(1.3),
            Peer::QemuNull => Some(1.0),
            Peer::NbdkitMemory => Some(1.3),
            Peer::QemuFile => Some(0.95),
        }
    }

    fn command(self, place: &Place, socket: &Path) -> LabResult<Command> {
        let (path, size, folder) = (socket.display(), place.size, place.folder.display());
        let qemu = |blockdev: String| {
            let server = format!("--nbd-server=addr.type=unix,addr.path={path}");
            let name = self.export();
            let export =
                format!("--export=type=nbd,id=export,node-name=node,name={name},writable=on");
            ("qemu-storage-daemon".into(), vec![format!("--blockdev={blockdev}"), server, export])
        };
        let (program, arguments) = match self {
            Peer::Forebay => {
                let mut arguments =
                    vec!["nbd-server".into(), format!("--listen={path}"), format!("--size={size}")];
                arguments.extend(place.through.then(|| format!("--through={folder}")));
                (std::env::current_exe()?, arguments)
            }
            Peer::QemuNull => qemu(format!("driver=null-co,node-name=node,size={size}")),
            Peer::QemuFile => {
                let file = place.folder.join("bare");
                File::create(&file)?.set_len(size)?;
                let file = file.display();
                qemu(format!("driver=file,node-name=node,filename={file},aio=threads"))
            }
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
    pub(crate) fn start(peer: Peer, place: &Place) -> LabResult<(Self, Client)> {
        let socket = place.folder.join(peer.name());
        let child = peer
            .command(place, &socket)?
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
        let (write, sequential) = (load.operation.is_write(), load.operation.is_sequential());
        let (depth, time) = (load.depth, load.time);
        let load = fio_client::Load { write, sequential, depth, span, time };
        fio_client::nbd(&self.socket, self.peer.export(), &load)
    }

    /// CPU time of all threads that it has or had, in whole clock ticks.
    pub(crate) fn cpu(&self) -> LabResult<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        cpu_time(&text).ok_or_else(|| other("/proc/PID/stat is not understood"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
