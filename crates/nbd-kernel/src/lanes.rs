//! The lanes' part in devices whose requests come through the NBD server: the lanes distinguish
//! these requests from other users of the device.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::{HandedOver, LaneFrontEnd};
use forebay_export::served::flush_for_kernel;
use forebay_lane::{Lane, Notify};

/// Flags shared by the front end and its lanes.
#[derive(Debug, Default)]
pub(crate) struct Word {
    /// A device exists or has existed.
    served: AtomicBool,
    /// The daemon ends or hands over: connections that end are no longer replaced.
    ending: AtomicBool,
    changed: Notify,
}

impl Word {
    /// Records that a device exists.
    pub(crate) fn serve(&self) {
        self.served.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// The daemon ends.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether the daemon ends.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// A lane.
pub(crate) struct NbdKernelLane {
    word: Arc<Word>,
    stopping: Rc<Cell<bool>>,
}

impl NbdKernelLane {
    pub(crate) fn serve(lane: &Rc<Lane>, word: &Arc<Word>) -> Self {
        let stopping = Rc::<Cell<bool>>::default();
        lane.spawn(wait_for_device(word.clone(), stopping.clone()));
        NbdKernelLane { word: word.clone(), stopping }
    }

    fn stop(&self) {
        self.word.end();
        self.stopping.set(true);
        self.word.changed.notify_all();
    }
}

async fn wait_for_device(word: Arc<Word>, stopping: Rc<Cell<bool>>) {
    loop {
        let changed = word.changed.listen();
        if stopping.get() {
            return;
        }
        if word.served.load(Ordering::Relaxed) {
            break;
        }
        changed.await;
    }
    flush_for_kernel();
}

impl LaneFrontEnd for NbdKernelLane {
    fn dismiss(&self, _volume: &str) {}

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        self.stop();
        Box::pin(async {})
    }

    /// Hands nothing over: the connections belong to the NBD server, which hands them over.
    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        self.stop();
        Box::pin(async { Vec::new() })
    }
}
