//! Facts about this host.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use forebay_device::ring::Ring;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use forebay_daemon::ring_remedy;
use forebay_daemon::usual_limit;
use forebay_host::files::text;

/// Facts about this host on which the front ends depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The kernel's release, as `6.12.9-amd64`.
    pub(super) release: String,
    /// Why a ring cannot be made.
    pub(super) ring: Result<(), String>,
    /// The kernel's setting that forbids io_uring; 0: it is allowed to all.
    pub(super) ring_disabled: u64,
    /// Most files that a process may have open.
    pub(super) files: u64,
    /// The daemon's memory limit, unless it is given another.
    pub(super) memory: u64,
    /// May mount file systems and attach loop devices.
    pub(super) admin: bool,
    /// Runs under systemd; and whether the service starts at boot.
    pub(super) service: Option<bool>,
    pub(super) fuse: DriverState,
    pub(super) loops: DriverState,
    pub(super) ublk: DriverState,
    pub(super) nbd: DriverState,
    /// A virtual machine monitor.
    pub(super) qemu: bool,
}

/// A driver of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverState {
    /// Its device can be opened.
    Usable,
    /// Its device is there, but not for this user.
    Forbidden,
    /// It is a module that can be loaded.
    Loadable,
    /// The kernel does not have it.
    Absent,
}

impl DriverState {
    fn look(path: &str, module: &str, modules: &str) -> Self {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        match opened.map(drop).map_err(|error| error.kind()) {
            Ok(()) => DriverState::Usable,
            Err(io::ErrorKind::PermissionDenied) => DriverState::Forbidden,
            Err(_) => Self::of_module(module, modules),
        }
    }

    /// Whether a module is among those that `modules.dep` or `modules.builtin` list.
    pub(super) fn of_module(module: &str, modules: &str) -> Self {
        let file = format!("/{module}.ko");
        let listed = modules.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            path.rfind(&file).is_some_and(|at| !path[at + file.len()..].contains('/'))
        });
        if listed { DriverState::Loadable } else { DriverState::Absent }
    }
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The PATH of other users lacks the directories of root's programs.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.into_iter().any(|dir| dir.join(name).is_file())
}

impl Host {
    /// Looks at this host.
    pub(super) fn look() -> Self {
        let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let listed = |file: &str| {
            fs::read_to_string(format!("/lib/modules/{release}/{file}")).unwrap_or_default()
        };
        let modules = listed("modules.dep") + &listed("modules.builtin");
        let service = Path::new("/run/systemd/system").exists().then(|| {
            Path::new("/etc/systemd/system/multi-user.target.wants/forebay.service").exists()
        });
        Host {
            ring: Ring::new().map(drop).map_err(|error| error.to_string()),
            ring_disabled: ring_remedy::disabled(),
            files: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            memory: usual_limit(),
            admin: capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)),
            service,
            fuse: DriverState::look("/dev/fuse", "fuse", &modules),
            loops: DriverState::look("/dev/loop-control", "loop", &modules),
            ublk: DriverState::look("/dev/ublk-control", "ublk_drv", &modules),
            // It makes devices when it is asked to.
            nbd: match Path::new("/sys/module/nbd").exists() {
                true => DriverState::Usable,
                false => DriverState::of_module("nbd", &modules),
            },
            qemu: ["qemu-system-x86_64", "qemu-system-aarch64", "cloud-hypervisor"]
                .into_iter()
                .any(has_program),
            release,
        }
    }
}
