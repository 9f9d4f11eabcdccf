//! The queues of one device on the lanes that serve them. If a step fails, queues that are served
//! stay so: a lane cannot give the kernel's side of a queue back. Another attempt therefore posts
//! only the others.
#![expect(clippy::disallowed_methods, reason = "waits for the lanes, on a thread of an operation")]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::failed;
use forebay_host::sysfs;
use forebay_lane::MemoryBudget;

use crate::board::{NewQueue, Post, QueueBoard, QueueMemory};
use crate::helper::path;
use crate::wire::DeviceInfo;

/// The progress of a queue.
enum QueueProgress {
    /// No lane has the queue. Its memory may have been taken already.
    Missing(Option<QueueMemory>),
    /// The queue was posted to a lane, which has not answered yet.
    Posted,
    /// A lane serves the queue.
    Served,
}

type Channel<T> = (Sender<T>, Receiver<T>);

/// See the module.
pub(crate) struct Queues {
    info: DeviceInfo,
    /// The kernel flushes the device.
    flushes: bool,
    all: Vec<QueueProgress>,
    /// The character device. The lanes hold it open; it is closed when no lane serves a queue.
    fd: Weak<OwnedFd>,
    /// Reports of lanes: number of a queue, and whether the lane serves it.
    begun: Channel<(u16, bool)>,
    /// Disconnected when no lane serves a queue any more, nor will.
    ended: Channel<()>,
}

impl Queues {
    /// Returns the queues of a device, none of which the lanes know.
    pub(crate) fn new(info: DeviceInfo) -> Self {
        let all = (0..info.queues).map(|_| QueueProgress::Missing(None)).collect();
        let flushes = flushes(&sysfs::of_disk(&path(info.number)));
        Queues { info, flushes, all, fd: Weak::new(), begun: channel(), ended: channel() }
    }

    /// Takes the memory of all queues that have none.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn prepare(
        &mut self,
        volume: &str,
        memory: &Arc<MemoryBudget>,
    ) -> Result<(), ExportError> {
        for queue in &mut self.all {
            if let QueueProgress::Missing(place @ None) = queue {
                *place = QueueMemory::take(memory, &self.info);
                if place.is_none() {
                    let message = format!(
                        "there is no memory to serve the device of '{volume}'; raise --memory-limit"
                    );
                    return Err(ExportError {
                        kind: ExportErrorKind::Failed,
                        message,
                        cause: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// Posts the queues that are not served yet to their lanes, and waits until they are served.
    /// Queues without memory are left out: see [`Queues::prepare`].
    ///
    /// # Errors
    /// A lane cannot serve a queue or has not answered within `patience`, or the device cannot be
    /// opened. Queues that are served remain so.
    pub(crate) fn serve(
        &mut self,
        volume: &str,
        board: &QueueBoard,
        open: impl FnOnce(u32) -> io::Result<OwnedFd>,
        patience: Duration,
    ) -> Result<(), ExportError> {
        self.hear();
        self.post(volume, board, open)?;
        let end = Instant::now() + patience;
        while self.all.iter().any(|queue| matches!(queue, QueueProgress::Posted)) {
            let left = end.saturating_duration_since(Instant::now());
            match self.begun.1.recv_timeout(left) {
                Ok(said) => self.note(said),
                Err(_) => break,
            }
        }
        match self.all.iter().all(|queue| matches!(queue, QueueProgress::Served)) {
            true => Ok(()),
            false => Err(unserved(volume)),
        }
    }

    /// Posts the missing queues to their lanes. A queue always goes to the same lane, because the
    /// kernel binds a queue to a thread.
    fn post(
        &mut self,
        volume: &str,
        board: &QueueBoard,
        open: impl FnOnce(u32) -> io::Result<OwnedFd>,
    ) -> Result<(), ExportError> {
        if !self.all.iter().any(|queue| matches!(queue, QueueProgress::Missing(Some(_)))) {
            return Ok(());
        }
        let fd = match self.fd.upgrade() {
            Some(fd) => fd,
            None => {
                let opened = open(self.info.number);
                Arc::new(opened.map_err(|error| failed("/dev/ublkc", error))?)
            }
        };
        self.fd = Arc::downgrade(&fd);
        let (info, flushes, lanes) = (self.info, self.flushes, board.lanes().max(1));
        let mut posts = Vec::new();
        for (number, queue) in (0..).zip(&mut self.all) {
            let QueueProgress::Missing(memory @ Some(_)) = queue else { continue };
            let Some(memory) = memory.take() else { continue };
            let (begun, ended) = (self.begun.0.clone(), self.ended.0.clone());
            let (volume, fd) = (volume.to_owned(), fd.clone());
            let new = NewQueue { volume, fd, info, flushes, number, memory, begun, ended };
            posts.push((usize::from(number) % lanes, Post::Serve(new)));
            *queue = QueueProgress::Posted;
        }
        board.post(posts);
        Ok(())
    }

    /// Notes the answers of the lanes since.
    fn hear(&mut self) {
        while let Ok(said) = self.begun.1.try_recv() {
            self.note(said);
        }
    }

    fn note(&mut self, (number, served): (u16, bool)) {
        if let Some(queue) = self.all.get_mut(usize::from(number)) {
            *queue = if served { QueueProgress::Served } else { QueueProgress::Missing(None) };
        }
    }

    /// Returns the channel that is disconnected when no lane serves a queue any more.
    pub(crate) fn into_end(self) -> Receiver<()> {
        self.ended.1
    }
}

/// Returns the error for lanes that do not answer or cannot serve a queue.
pub(crate) fn unserved(volume: &str) -> ExportError {
    let message = format!("not every lane can serve the device of '{volume}'; see the log");
    ExportError { kind: ExportErrorKind::Failed, message, cause: None }
}

/// Returns whether the kernel treats a device as one with a volatile write cache, and flushes it.
/// An earlier version of Forebay made devices without one. A device that is not yet in sysfs has
/// one.
fn flushes(sysfs: &Path) -> bool {
    let cache = fs::read_to_string(sysfs.join("queue/write_cache"));
    cache.map_or_else(|_| !sysfs.exists(), |text| text.trim() == "write back")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn device(queues: u16) -> Queues {
        let info = DeviceInfo { queues, depth: 1, max_io_bytes: 4096, ..DeviceInfo::default() };
        let mut all = Queues::new(info);
        all.prepare("v", &Arc::default()).expect("enough");
        all
    }

    fn open(_: u32) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }

    fn not_again(_: u32) -> io::Result<OwnedFd> {
        unreachable!("it is open")
    }

    /// Two lanes, each of which takes the posted queues and reports whether it serves them.
    fn lanes(board: &QueueBoard, serves: impl Fn(u16) -> bool) -> Vec<NewQueue> {
        let mut kept = Vec::new();
        let posts =
            (0..board.lanes()).flat_map(|lane| std::iter::from_fn(move || board.take(lane)));
        for post in posts {
            let Post::Serve(queue) = post else { panic!("nothing else is posted") };
            let (number, begun) = (queue.number, queue.begun.clone());
            if serves(number) {
                kept.push(queue);
            } else {
                drop(queue);
            }
            begun.send((number, serves(number))).expect("it is heard");
        }
        kept
    }

    fn two_lanes() -> QueueBoard {
        let board = QueueBoard::default();
        board.join();
        board.join();
        board
    }

    #[test]
    fn another_attempt_asks_for_the_queues_that_are_not_served() {
        let (board, mut queues) = (two_lanes(), device(3));
        let failing = |number| number != 1;
        queues.post("v", &board, open).expect("opened");
        let mut kept = lanes(&board, failing);
        assert_eq!(kept.iter().map(|queue| queue.number).collect::<Vec<_>>(), [0, 2]);
        queues.serve("v", &board, not_again, Duration::ZERO).expect_err("one is missing");
        queues.prepare("v", &Arc::default()).expect("enough");
        queues.post("v", &board, not_again).expect("open");
        kept.extend(lanes(&board, |_| true));
        assert_eq!(kept.iter().map(|queue| queue.number).collect::<Vec<_>>(), [0, 2, 1]);
        assert!(kept.iter().all(|queue| Arc::ptr_eq(&queue.fd, &kept[0].fd)), "one file");
        queues.serve("v", &board, not_again, PATIENCE).expect("all are served");
        let end = queues.into_end();
        assert_eq!(end.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        drop(kept);
        assert_eq!(end.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn a_lane_that_is_late_is_not_asked_twice() {
        let (board, mut queues) = (two_lanes(), device(2));
        queues.serve("v", &board, open, Duration::ZERO).expect_err("nobody has answered");
        queues.serve("v", &board, not_again, Duration::ZERO).expect_err("nobody has answered");
        let kept = lanes(&board, |_| true);
        assert_eq!(kept.len(), 2);
        queues.serve("v", &board, not_again, Duration::ZERO).expect("all are served");
    }

    #[test]
    fn a_device_that_no_lane_can_serve_is_closed_and_opened_again() {
        let (board, mut queues) = (two_lanes(), device(2));
        let failing = |_| Err(io::Error::from(rustix::io::Errno::MFILE));
        queues.serve("v", &board, failing, PATIENCE).expect_err("cannot be opened");
        queues.post("v", &board, open).expect("opened");
        assert!(lanes(&board, |_| false).is_empty());
        queues.serve("v", &board, not_again, PATIENCE).expect_err("cannot be served");
        assert!(queues.fd.upgrade().is_none(), "it is closed");
        queues.prepare("v", &Arc::default()).expect("enough");
        queues.post("v", &board, open).expect("opened");
        let kept = lanes(&board, |_| true);
        queues.serve("v", &board, not_again, PATIENCE).expect("all are served");
        assert_eq!(kept.len(), 2);
    }

    #[test]
    fn write_cache_in_sysfs_says_whether_the_kernel_flushes() {
        let dir = std::env::temp_dir().join(format!("forebay-ublk-{}", std::process::id()));
        let cache = dir.join("queue/write_cache");
        assert!(flushes(&dir), "it does not know it yet");
        fs::create_dir_all(dir.join("queue")).expect("made");
        let mut said = vec![flushes(&dir)];
        for text in ["write back\n", "write through\n"] {
            fs::write(&cache, text).expect("written");
            said.push(flushes(&dir));
        }
        fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(said, [false, true, false]);
    }
}
