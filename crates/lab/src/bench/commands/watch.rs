//! A lane whose turns are timed, with clients of other volumes on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_core::{IoError, Op};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, EngineLane, LaneVolume};
use serde::Serialize;

use crate::bench::measure::{Stopwatch, thread_cpu};
use crate::error::{LabError, LabResult, other};
use crate::rig::{LocalLane, request};

/// Rounds of tasks between two looks at the clients at most, and the time after which none begins,
/// as in a lane thread.
const ROUNDS: usize = 16;
const ROUNDS_FOR: Duration = Duration::from_micros(500);

/// The longest hold of a lane that is wanted, in milliseconds.
pub(super) const HOLD: f64 = 10.0;

/// Time from one request of a client to the next.
const EVERY: Duration = Duration::from_millis(1);

/// Longest wait for a command or a request.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Cost of a command.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Took {
    pub(super) wall_ms: f64,
    pub(super) cpu_ms: f64,
    /// Longest CPU time between two turns of the executor.
    pub(super) turn_ms: f64,
    /// Longest CPU time between two looks at the clients: up to 16 turns.
    pub(super) hold_ms: f64,
    /// Holds of more than 10 ms, of all of them.
    pub(super) long_holds: u64,
    pub(super) holds: u64,
    /// Longest request of the clients, from the time at which it was due.
    pub(super) read_ms: f64,
    pub(super) write_ms: f64,
    pub(super) flush_ms: f64,
    /// Requests of the clients.
    pub(super) requests: u64,
    /// Maximum growth of the process's memory during the command, in bytes.
    pub(super) grown_bytes: u64,
}

#[derive(Default)]
struct Sink {
    done: Cell<bool>,
    failed: Cell<Option<IoError>>,
}

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        self.done.set(true);
        self.failed.set(completion.result.err());
    }
}

/// A client of a volume: a read, a write and a flush in turn.
struct Client {
    engine: Rc<EngineLane>,
    volume: &'static str,
    bytes: u64,
    len: u64,
    due: Instant,
    kind: Op,
    in_flight: bool,
    sink: Rc<Sink>,
    random: fastrand::Rng,
}

impl Client {
    /// Begins a request that is due, or notes the end of one.
    fn look(&mut self, took: &mut Took) -> LabResult<()> {
        let now = Instant::now();
        if self.in_flight {
            if self.sink.done.take() {
                self.ended(now, took)?;
            }
            return Ok(());
        }
        if now < self.due {
            return Ok(());
        }
        let Some(target) = self.engine.target(self.volume) else { return Ok(()) };
        self.kind = match self.kind {
            Op::Read => Op::Write,
            Op::Write => Op::Flush,
            _ => Op::Read,
        };
        let offset = self.random.u64(0..self.bytes / self.len) * self.len;
        let mut data = vec![0x5a; self.len as usize];
        let at_once = match self.kind {
            Op::Read => target.read_now(offset, &mut data),
            Op::Write => target.write_now(offset, &data),
            _ => None,
        };
        self.in_flight = true;
        match at_once {
            Some(result) => {
                self.sink.failed.set(result.err());
                self.ended(Instant::now(), took)?;
            }
            None => {
                let request = match self.kind {
                    Op::Flush => request(0, Op::Flush, 0, 0, None),
                    op => request(0, op, offset, self.len, Some(IoBuf::copy_from(&data))),
                };
                let sink: Rc<dyn CompletionSink> = self.sink.clone();
                target.submit(request, &sink);
            }
        }
        Ok(())
    }

    fn ended(&mut self, now: Instant, took: &mut Took) -> LabResult<()> {
        if let Some(error) = self.sink.failed.take() {
            return Err(other(format!("a request of {} failed: {error}", self.volume)));
        }
        let ms = now.saturating_duration_since(self.due).as_secs_f64() * 1e3;
        let longest = match self.kind {
            Op::Read => &mut took.read_ms,
            Op::Write => &mut took.write_ms,
            _ => &mut took.flush_ms,
        };
        *longest = longest.max(ms);
        took.requests += 1;
        self.in_flight = false;
        self.due = (self.due + EVERY).max(now);
        Ok(())
    }
}

/// A lane on the calling thread, and the clients on it.
pub(super) struct WatchedLane {
    pub(super) local: LocalLane,
    clients: Vec<Client>,
}

impl WatchedLane {
    pub(super) fn new(local: LocalLane) -> Self {
        WatchedLane { local, clients: Vec::new() }
    }

    /// A client of the first `bytes` of a volume, with requests of `len` bytes.
    pub(super) fn client(
        &mut self,
        engine: &Rc<EngineLane>,
        volume: &'static str,
        bytes: u64,
        len: u64,
    ) {
        self.clients.push(Client {
            engine: engine.clone(),
            volume,
            bytes,
            len,
            due: Instant::now(),
            kind: Op::Flush,
            in_flight: false,
            sink: Rc::default(),
            random: fastrand::Rng::with_seed(3),
        });
    }

    /// Without the clients of a volume.
    pub(super) fn forget(&mut self, volume: &str) {
        self.clients.retain(|client| client.volume != volume);
    }

    /// A write that waits for something.
    pub(super) fn request(
        &self,
        target: &LaneVolume,
        offset: u64,
        payload: &[u8],
    ) -> LabResult<()> {
        let sink: Rc<Sink> = Rc::default();
        let data = Some(IoBuf::copy_from(payload));
        let own: Rc<dyn CompletionSink> = sink.clone();
        target.submit(request(0, Op::Write, offset, payload.len() as u64, data), &own);
        self.local.run_until("a write", || sink.done.get().then_some(()))?;
        sink.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Runs a future to its end.
    pub(super) fn run<T: 'static>(
        &mut self,
        what: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> LabResult<(T, Took)> {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.local.lane().spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        self.until(what, || result.borrow_mut().take())
    }

    /// Runs tasks and clients until `done` gives something.
    pub(super) fn until<T>(
        &mut self,
        what: &'static str,
        mut done: impl FnMut() -> Option<T>,
    ) -> LabResult<(T, Took)> {
        let now = Instant::now();
        self.clients.iter_mut().for_each(|client| client.due = now);
        let (before, mut took, watch) = (forget_peak()?, Took::default(), Stopwatch::start());
        loop {
            let began = thread_cpu();
            let (mut at, mut ran) = (began, false);
            let mut since = None;
            for _ in 0..ROUNDS {
                if !self.local.lane().run_ready() {
                    break;
                }
                let now = thread_cpu();
                took.turn_ms = took.turn_ms.max(ms(now - at));
                (at, ran) = (now, true);
                if now - *since.get_or_insert(now) >= ROUNDS_FOR {
                    break;
                }
            }
            took.hold_ms = took.hold_ms.max(ms(at - began));
            took.holds += u64::from(ran);
            took.long_holds += u64::from(ms(at - began) > HOLD);
            for client in &mut self.clients {
                client.look(&mut took)?;
            }
            if let Some(result) = done() {
                let sample = watch.sample(1);
                (took.wall_ms, took.cpu_ms) = (ms(sample.wall), ms(sample.cpu));
                took.grown_bytes = status("VmHWM")?.saturating_sub(before);
                return Ok((result, took));
            }
            if watch.wall() > PATIENCE {
                return Err(LabError::Stuck(what, PATIENCE.as_secs()));
            }
            if !ran {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Has the kernel forget the most memory that this process had. Returns what it has, in bytes.
fn forget_peak() -> LabResult<u64> {
    std::fs::write("/proc/self/clear_refs", "5")?;
    status("VmRSS")
}

/// A line of the process's status, in bytes.
fn status(name: &str) -> LabResult<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .map(|kilobytes| kilobytes << 10)
        .ok_or_else(|| other("the kernel does not say how much memory this process has"))
}
