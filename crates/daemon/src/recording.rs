//! Sends the requests of a volume's clients to a client of the admin API as they arrive, as a trace
//! in the format `csv` of `forebay-trace`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use forebay_core::{Nanos, Op};
use forebay_engine::{Recorded, Recording};
use forebay_lane::MemoryHold;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::events::stream::STALLED;

/// The media type of a trace.
pub(crate) const MEDIA_TYPE: &str = "text/csv";

/// The longest recording, in seconds.
pub const MOST_SECONDS: u64 = 24 * 60 * 60;

/// Interval at which the lanes' rings are emptied.
const PERIOD: Duration = Duration::from_millis(10);

/// Most pieces of text that wait for a client.
const QUEUE: usize = 2;

/// Longest line, in bytes: a time, an operation, and two numbers of 20 digits.
const LINE: usize = 64;

/// Returns the most memory of a recording for this number of lanes: the rings; a sorted list of as
/// many requests, twice while it grows; and the text of as many for each piece that waits or is
/// being written.
pub(crate) fn memory(lanes: usize) -> u64 {
    let requests = Recording::most(lanes) * (4 * size_of::<Recorded>() + (QUEUE + 2) * LINE);
    Recording::bytes(lanes) + requests as u64
}

/// A recording that is sent to a client.
pub(crate) struct Trace {
    recording: Recording,
    length: Duration,
    _memory: MemoryHold,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Trace {
    /// Creates a trace of a recording that has begun; `memory` holds [`memory`].
    pub(crate) fn new(recording: Recording, length: Duration, memory: MemoryHold) -> Self {
        Trace { recording, length, _memory: memory }
    }

    /// Begins to send; must be called on the thread of the admin API.
    pub(crate) fn body(self) -> Channel<Bytes, Infallible> {
        let (sender, body) = Channel::new(QUEUE);
        tokio::spawn(self.send(sender));
        body
    }

    /// Sends until the time is over, the volume is stopped, or the client is gone. The last line
    /// states the number of requests; a trace without it is incomplete.
    async fn send(mut self, mut sender: Sender<Bytes, Infallible>) {
        let begun = Instant::now();
        let mut lines = RequestSorter::default();
        let mut text = "ts_us,op,offset,size\n".to_owned();
        loop {
            if !text.is_empty()
                && !matches!(timeout(STALLED, sender.send_data(text.into())).await, Ok(Ok(())))
            {
                return;
            }
            let left = self.length.saturating_sub(begun.elapsed());
            sleep(PERIOD.min(left)).await;
            self.recording.take(&mut lines.pending);
            let over = left <= PERIOD || self.recording.is_over();
            text = lines.text(over);
            if over {
                let (requests, left_out) = (lines.written, self.recording.left_out());
                let seconds = begun.elapsed().as_secs_f64();
                _ = writeln!(
                    text,
                    "# requests={requests} left_out={left_out} seconds={seconds:.3}"
                );
                let _ = timeout(STALLED, sender.send_data(text.into())).await;
                return;
            }
        }
    }
}

/// Puts the requests of all lanes in order.
#[derive(Default)]
struct RequestSorter {
    pending: Vec<Recorded>,
    /// Requests up to this time have been written; later arrivals get this time.
    last: Nanos,
    /// The latest request at the time before this.
    seen: Nanos,
    written: u64,
    first: Option<Nanos>,
}

impl RequestSorter {
    /// Returns the lines of the requests that no request of another lane can precede: those before
    /// the latest one of the previous call; at the end, all.
    fn text(&mut self, all: bool) -> String {
        self.pending.sort_by_key(|request| request.time);
        let latest = self.pending.last().map_or(self.seen, |request| request.time);
        let ready = match all {
            true => self.pending.len(),
            false => self.pending.partition_point(|request| request.time <= self.seen),
        };
        self.seen = latest.max(self.seen);
        let mut text = String::with_capacity(ready * LINE);
        for Recorded { time, op, offset, len } in self.pending.drain(..ready) {
            // A lane may have been delayed between reading the clock and writing to the ring.
            self.last = self.last.max(time);
            let since = self.last.since(*self.first.get_or_insert(self.last)).as_nanos();
            let op = match op {
                Op::Write => 'W',
                Op::Discard => 'D',
                _ => 'R',
            };
            let (us, ns) = (since / 1000, since % 1000);
            _ = writeln!(text, "{us}.{ns:03},{op},{offset},{len}");
            self.written += 1;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(time: u64, op: Op) -> Recorded {
        Recorded { time: Nanos(time), op, offset: 4096 * time, len: 512 }
    }

    #[test]
    fn lanes_are_merged_and_a_late_one_is_waited_for_once() {
        let pending =
            vec![request(1000, Op::Read), request(5000, Op::Write), request(2500, Op::Discard)];
        let mut lines = RequestSorter { pending, ..RequestSorter::default() };
        assert_eq!(lines.text(false), "");
        // Another lane records a request between those.
        lines.pending.push(request(1500, Op::Read));
        lines.pending.push(request(9000, Op::Read));
        let expected = "0.000,R,4096000,512\n0.500,R,6144000,512\n1.500,D,10240000,512\n4.000,W,20480000,512\n";
        assert_eq!(lines.text(false), expected);
        lines.pending.push(request(4000, Op::Read));
        assert_eq!(lines.text(true), "4.000,R,16384000,512\n8.000,R,36864000,512\n");
        assert_eq!((lines.written, lines.pending.len()), (6, 0));
    }

    #[test]
    fn no_line_is_longer_than_is_reserved() {
        let (time, len) = (Nanos(u64::MAX), (1 << 56) - 1);
        let pending = vec![Recorded { time, op: Op::Read, offset: u64::MAX, len }];
        let mut lines =
            RequestSorter { pending, first: Some(Nanos(0)), ..RequestSorter::default() };
        let text = lines.text(true);
        assert!(text.len() <= LINE, "{text}");
    }
}
