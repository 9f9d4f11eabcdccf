//! FUSE and loop devices as one of the daemon's front ends.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{
    DescriptorStore, ExportError, ExportErrorKind, ExportedDevice, Exports, FrontEnd, HandedOver,
    LaneFrontEnd, Settings,
};
use forebay_export::Identify;
use forebay_export::errors::{busy, check_privileged, failed};
use forebay_lane::{Lane, MemoryBudget};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use crate::board::ChannelBoard;
use crate::errors::refused;
use crate::export::{ExportedFile, Tools};
use crate::inherited::{self, Inherited, LeftExport};
use crate::keeping::Keeping;
use crate::marks::Marks;
use crate::server::FileServer;
use crate::stale;

/// See the module.
pub struct FuseFrontEnd {
    dir: PathBuf,
    memory: Arc<MemoryBudget>,
    board: Arc<ChannelBoard>,
    keeping: Keeping,
    marks: Marks,
    /// Whether requests come through io_uring where the kernel allows it.
    io_uring: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The locked directory; `None` until it is needed.
    lock: Option<File>,
    exports: BTreeMap<String, Arc<ExportedFile>>,
    /// Exports of the previous program whose volumes are not served yet.
    left: BTreeMap<String, LeftExport>,
}

impl FuseFrontEnd {
    /// Starts with the exports that the previous program has handed over, or with those of a former
    /// daemon whose connections `store` has kept. Then removes all other files in `dir` that a
    /// killed daemon has left. Requests share `memory`. With `io_uring`, requests come through the
    /// lanes' rings where the kernel allows that, which is faster; such devices end with the
    /// program. Notes about devices are in `notes`. `names` gets a link for each device, from which
    /// udev reads the name of its volume and its mark.
    pub fn claim(
        dir: &Path,
        (notes, names): (&Path, &Path),
        memory: Arc<MemoryBudget>,
        items: Vec<HandedOver>,
        (store, identify): (Option<Arc<dyn DescriptorStore>>, Identify),
        io_uring: bool,
    ) -> Self {
        let marks = Marks::new(notes, names, dir);
        let Inherited { lock, exports: left, useless } = Inherited::new(dir, items, &marks);
        let handed_over = lock.is_some();
        let front_end = FuseFrontEnd {
            dir: dir.to_owned(),
            memory,
            board: Arc::default(),
            keeping: Keeping::new(store, identify),
            marks,
            io_uring,
            state: Mutex::new(State { lock, left, exports: BTreeMap::new() }),
        };
        // While the service manager keeps these descriptors, users of the file wait for ever.
        for (volume, identity) in useless {
            front_end.keeping.forget_former(&volume, &identity);
        }
        // If another daemon uses the directory, the error is reported when a volume is exported
        // there.
        if handed_over || dir.exists() {
            let mut state = front_end.state.lock();
            match front_end.lock(&mut state) {
                Ok(()) => {
                    // Keeps inherited files, except those whose devices were detached by other
                    // programs.
                    let left = |file: &Path| state.left.keys().any(|name| dir.join(name) == file);
                    stale::clean(dir, &front_end.marks, left);
                }
                Err(_) => state.left.clear(),
            }
        }
        front_end
    }

    fn tools(&self) -> Tools<'_> {
        Tools { board: &self.board, keeping: &self.keeping, marks: &self.marks }
    }

    /// Locks the directory against other daemons.
    fn lock(&self, state: &mut State) -> Result<(), ExportError> {
        if state.lock.is_some() {
            return Ok(());
        }
        let dir = File::open(&self.dir).map_err(|error| failed(self.dir.display(), error))?;
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            let message = format!(
                "another daemon exports volumes in {}; give --export-dir",
                self.dir.display()
            );
            return Err(ExportError { kind: ExportErrorKind::Taken, message, cause: None });
        }
        state.lock = Some(dir);
        Ok(())
    }

    /// Creates the directory, and locks it against other daemons.
    fn prepare(&self, state: &mut State) -> Result<(), ExportError> {
        if state.lock.is_some() {
            return Ok(());
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| failed(self.dir.display(), error))?;
        self.lock(state)
    }
}

impl FrontEnd for FuseFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::Fuse)
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        Box::new(FileServer::serve(lane, ring, exports, &self.board, &self.memory))
    }

    fn check(&self) -> Result<(), ExportError> {
        forebay_device::fuse::open_connection().map_err(|error| refused("/dev/fuse", error))?;
        let control = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control");
        control.map_err(|error| refused("/dev/loop-control", error))?;
        check_privileged().map_err(|error| refused("mount", error))
    }

    fn publish(&self, volume: &str, _: &Settings) -> Result<(), ExportError> {
        let left = self.state.lock().left.remove(volume);
        if let Some(left) = left {
            if left.mark.is_there() && self.keeping.revive(volume, &left) {
                let export = ExportedFile::resume(&self.dir, volume, left, self.tools())?;
                tracing::info!(volume, device = %export.number().path().display(), "served again");
                self.state.lock().exports.insert(volume.to_owned(), Arc::new(export));
                return Ok(());
            }
            ExportedFile::abandon(&self.dir, volume, left, self.tools());
        }
        let known = self.state.lock().exports.get(volume).cloned();
        if let Some(export) = known {
            if !export.is_lost() {
                return Ok(());
            }
            export.end(self.tools(), true)?;
            self.state.lock().exports.remove(volume);
        }
        self.prepare(&mut self.state.lock())?;
        // The lock is released here, so that reports do not wait for it.
        let io_uring = self.io_uring && forebay_device::fuse::is_enabled();
        if self.io_uring && !io_uring {
            tracing::warn!(
                volume,
                "its requests do not come through io_uring, which the kernel does not offer for FUSE: it takes Linux 6.14 and 'echo Y >/sys/module/fuse/parameters/enable_uring'"
            );
        }
        let export = ExportedFile::begin(&self.dir, volume, self.tools(), io_uring)?;
        tracing::info!(volume, device = %export.number().path().display(), "exported");
        self.state.lock().exports.insert(volume.to_owned(), Arc::new(export));
        Ok(())
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        {
            let mut state = self.state.lock();
            if let Some(left) = state.left.get(volume)
                && !force
            {
                let waiting = "waiting for the volume to be served again";
                return Err(busy(volume, &left.mark.number.path(), waiting));
            }
            let left = state.left.remove(volume);
            drop(state);
            if let Some(left) = left {
                ExportedFile::abandon(&self.dir, volume, left, self.tools());
            }
        }
        let known = self.state.lock().exports.get(volume).cloned();
        if let Some(export) = known {
            export.end(self.tools(), force)?;
            self.state.lock().exports.remove(volume);
        }
        Ok(())
    }

    /// Leaves a device in use to the next daemon if the service manager keeps its connections;
    /// users wait meanwhile.
    fn leave(&self, volume: &str) -> Result<(), ExportError> {
        let known = self.state.lock().exports.get(volume).cloned();
        if known.is_some_and(|export| export.leave(&self.board)) {
            return Ok(());
        }
        self.withdraw(volume, true)
    }

    fn holds(&self, volume: &str) -> bool {
        let state = self.state.lock();
        state.exports.contains_key(volume) || state.left.contains_key(volume)
    }

    fn needs_wide_ring(&self) -> bool {
        self.io_uring
    }

    fn check_hand_over(&self, volume: &str) -> Result<(), ExportError> {
        let known = self.state.lock().exports.get(volume).cloned();
        let Some(export) = known.filter(|export| export.is_bound_to_program()) else {
            return Ok(());
        };
        let device = export.number().path();
        let message = format!(
            "{} of '{volume}' ends with this program, because its requests come through io_uring: stop the volume or take 'fuse' from its export first",
            device.display()
        );
        Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
    }

    fn lost(&self) -> Vec<String> {
        let all: Vec<_> = self.state.lock().exports.clone().into_iter().collect();
        let lost = all.into_iter().filter(|(_, export)| export.is_lost());
        lost.map(|(volume, export)| {
            export.unlink();
            volume
        })
        .collect()
    }

    fn device(&self, volume: &str) -> Option<ExportedDevice> {
        let state = self.state.lock();
        let export = state.exports.get(volume)?;
        Some(ExportedDevice {
            path: export.number().path(),
            link: export.link().map(Path::to_owned),
        })
    }

    fn user_of<'a>(&self, item: &'a HandedOver) -> Option<&'a str> {
        inherited::volume_of(item)
    }

    fn hand_over(&self) -> Vec<HandedOver> {
        let state = self.state.lock();
        let mut items: Vec<HandedOver> = Vec::new();
        for (volume, export) in &state.exports {
            items.push(inherited::export(volume, export.number(), export.link()));
        }
        let copy = |fd: BorrowedFd<'_>, of: &str| {
            let copied = fd.try_clone_to_owned();
            copied.inspect_err(|error| tracing::error!(of, %error, "cannot be handed over")).ok()
        };
        // Hands over exports of the previous program as well that this one has not served.
        for (volume, left) in &state.left {
            let export = inherited::export(volume, left.mark.number, left.link.as_deref());
            items.push(HandedOver { identity: left.identity.clone(), ..export });
            let connections = left.connections.iter().filter_map(|fd| copy(fd.as_fd(), volume));
            items.extend(connections.map(|fd| inherited::connection(volume, fd)));
        }
        let lock =
            state.lock.as_ref().and_then(|lock| copy(lock.as_fd(), "the lock of the directory"));
        items.extend(lock.map(|lock| inherited::directory(&self.dir, lock)));
        items
    }

    fn release(&self) {
        let mut state = self.state.lock();
        if state.lock.take().is_some() {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}
