//! Writes the log on a separate thread, so that no other thread waits for the log's reader or for a
//! full disk.
//!
//! Lines wait in a queue of [`MAX_BYTES`]. If it is full, the oldest lines are dropped. Once the
//! log can be written again, it states their number at the place where they are missing.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Most bytes that wait to be written.
const MAX_BYTES: usize = 256 << 10;

/// Pause of the thread if stderr accepts nothing and another process has made it non-blocking.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct LineQueue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Number of lines that were dropped and not yet mentioned in the log.
    dropped: u64,
    /// Whether the thread has taken a line and has not written it completely.
    writing: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Outlet {
    queue: Mutex<LineQueue>,
    changed: Condvar,
    dropped: AtomicU64,
}

impl Outlet {
    /// Starts the thread that writes to `to`; it ends with the process.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(super) fn write_to(self: &Arc<Self>, to: impl Write + Send + 'static) -> io::Result<()> {
        let own = self.clone();
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || own.write_all(to)).map(drop)
    }

    fn queue(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line with its end. Does not wait.
    pub(super) fn push(&self, line: Vec<u8>) {
        let mut queue = self.queue();
        queue.bytes += line.len();
        queue.lines.push_back(line);
        while queue.bytes > MAX_BYTES
            && let Some(oldest) = queue.lines.pop_front()
        {
            queue.bytes -= oldest.len();
            self.count_dropped(&mut queue, 1);
        }
        self.changed.notify_all();
    }

    /// Records that lines were dropped, by this program or by the previous one in this process.
    pub(super) fn note_dropped(&self, lines: u64) {
        self.count_dropped(&mut self.queue(), lines);
    }

    fn count_dropped(&self, queue: &mut LineQueue, lines: u64) {
        queue.dropped += lines;
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns how many lines were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, for at most `time`. Returns the number of lines that the
    /// log lacks without stating so: those that still wait, and those that were dropped before
    /// them.
    pub(super) fn flush(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        let mut queue = self.queue();
        while queue.writing || !queue.lines.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.dropped + queue.lines.len() as u64 + u64::from(queue.writing)
    }

    /// Returns the next line, and the number of lines that are missing before it.
    fn next(&self) -> (u64, Vec<u8>) {
        let mut queue = self.queue();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                queue.writing = true;
                return (std::mem::take(&mut queue.dropped), line);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_all(&self, mut to: impl Write) {
        // Whether a line was cut off by an error, so that it has no end.
        let mut cut = false;
        loop {
            let (missing, line) = self.next();
            let mut text = if cut { b"\n".to_vec() } else { Vec::new() };
            if missing > 0 {
                let _ = writeln!(
                    text,
                    " WARN forebay::log: {missing} lines are missing here: the log could not be written"
                );
            }
            text.extend(line);
            let written = write(&mut to, &text);
            let mut queue = self.queue();
            queue.writing = false;
            match written {
                Ok(()) => cut = false,
                Err(some) => {
                    cut |= some;
                    queue.dropped += missing;
                    self.count_dropped(&mut queue, 1);
                }
            }
            self.changed.notify_all();
        }
    }
}

/// Writes all bytes, however long that takes.
///
/// # Errors
/// The bytes cannot be written. The value says whether some of them were.
fn write(to: &mut impl Write, bytes: &[u8]) -> Result<(), bool> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(0) => return Err(rest.len() < bytes.len()),
            Ok(some) => rest = rest.get(some..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(_) => return Err(rest.len() < bytes.len()),
        }
    }
    Ok(())
}

/// Collects one message: the subscriber passes each as a whole.
pub(super) struct MessageWriter(Arc<Outlet>);

impl Write for MessageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes writers for an outlet.
pub(super) struct WriterFactory(pub(super) Arc<Outlet>);

impl MakeWriter<'_> for WriterFactory {
    type Writer = MessageWriter;

    fn make_writer(&self) -> MessageWriter {
        MessageWriter(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    /// Passes on each written piece when the test requests it, and blocks until then; an empty
    /// piece stands for a full disk.
    struct Reader(std::sync::mpsc::SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn outlet() -> (Arc<Outlet>, Receiver<Vec<u8>>) {
        let (send, read) = sync_channel(0);
        let outlet = Arc::<Outlet>::default();
        outlet.write_to(Reader(send)).expect("a thread");
        (outlet, read)
    }

    fn line(number: u64) -> Vec<u8> {
        format!("{number:>1023}\n").into_bytes()
    }

    const LINES: u64 = 10_000;
    const KEPT: u64 = (MAX_BYTES / 1024) as u64;

    #[test]
    fn a_stuck_reader_blocks_no_writer_and_learns_of_missing_lines() {
        let (outlet, read) = outlet();
        outlet.push(line(0));
        while !outlet.queue().writing {
            std::thread::yield_now();
        }
        for number in 1..LINES {
            outlet.push(line(number));
        }
        assert!(outlet.queue().bytes <= MAX_BYTES);
        assert!(outlet.flush(Duration::from_millis(20)) > LINES / 2, "bounded");
        assert_eq!(read.recv().expect("written"), line(0));
        let missing = LINES - KEPT - 1;
        assert_eq!(outlet.dropped(), missing);
        let gap = String::from_utf8(read.recv().expect("written")).expect("text");
        let (notice, next) = gap.split_once('\n').expect("two lines");
        assert!(notice.contains(&format!("{missing} lines are missing here")), "{notice}");
        assert_eq!(next.as_bytes(), line(LINES - KEPT));
        for number in LINES - KEPT + 1..LINES {
            assert_eq!(read.recv().expect("written"), line(number), "the latest, in order");
        }
        assert_eq!(outlet.flush(Duration::from_secs(60)), 0);
    }

    #[test]
    fn lines_lost_on_a_full_disk_are_reported_once_there_is_space() {
        /// Accepts ten bytes of the first line, and then nothing until the disk has space again.
        struct Full(Arc<AtomicU64>, std::sync::mpsc::SyncSender<Vec<u8>>);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let len = match self.0.load(Ordering::Relaxed) {
                    0 => 10,
                    1 => return Err(io::ErrorKind::StorageFull.into()),
                    _ => bytes.len(),
                };
                _ = self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
                let _ = self.1.send(bytes[..len].to_vec());
                Ok(len)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (send, read) = sync_channel(16);
        let (outlet, full) = (Arc::<Outlet>::default(), Arc::new(AtomicU64::new(0)));
        outlet.write_to(Full(full.clone(), send)).expect("a thread");
        for number in 0..3 {
            outlet.push(line(number));
            outlet.flush(Duration::from_secs(60));
        }
        assert_eq!(outlet.dropped(), 3);
        full.store(2, Ordering::Relaxed);
        outlet.push(line(3));
        assert_eq!(outlet.flush(Duration::from_secs(60)), 0);
        assert_eq!(read.recv().expect("the torn line").len(), 10);
        let rest = String::from_utf8(read.recv().expect("the rest")).expect("text");
        assert!(rest.starts_with("\n WARN forebay::log: 3 lines are missing here"), "{rest}");
        assert!(rest.as_bytes().ends_with(&line(3)));
    }
}
