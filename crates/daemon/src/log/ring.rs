//! The latest lines of the log, in memory.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of all lines.
const MAX_BYTES: usize = 256 << 10;

#[derive(Default)]
struct RecentLines {
    lines: VecDeque<String>,
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ring(Mutex<RecentLines>);

impl Ring {
    /// Returns the lines, oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.lines.iter().cloned().collect()
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.bytes += line.len();
        lines.lines.push_back(line);
        while lines.bytes > MAX_BYTES
            && let Some(oldest) = lines.lines.pop_front()
        {
            lines.bytes -= oldest.len();
        }
    }
}

/// Collects one message: the subscriber passes each as a whole.
pub(super) struct LineWriter(Arc<Ring>);

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(String::from_utf8_lossy(bytes).trim_end().to_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes writers for a ring.
pub(super) struct Writers(pub(super) Arc<Ring>);

impl MakeWriter<'_> for Writers {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_lines_are_kept() {
        let writers = Writers(Arc::default());
        for number in 0..10_000 {
            let line = format!("{number} {}\n", "x".repeat(100));
            writers.make_writer().write_all(line.as_bytes()).expect("in memory");
        }
        let lines = writers.0.lines();
        assert!(lines.iter().map(String::len).sum::<usize>() <= MAX_BYTES);
        assert!(lines.len() > 2000 && lines[lines.len() - 1].starts_with("9999 x"));
    }
}
