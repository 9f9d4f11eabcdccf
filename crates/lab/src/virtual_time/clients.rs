//! Closed-loop clients on a virtual clock: each asks for the next thing when it has its answer.
//!
//! [`run`] is the event loop of a run. Between two events no time passes: all ready work is done,
//! then the clock jumps to the next client, device or timer, whichever comes first. So the same
//! seed gives the same run on every machine.

use std::collections::VecDeque;

use forebay_core::Nanos;

use crate::error::{LabResult, other};

use super::access::{Access, Generator, Workload};
use super::cpu::Cpu;
use super::tally::{Found, Gauges, Sample};

/// Target of the clients: a raw device, or a volume.
pub(crate) trait Server {
    fn now(&self) -> Nanos;

    /// Starts a request of a client. `true`: it has ended already.
    fn start(&mut self, client: u32, access: &Access) -> LabResult<bool>;

    /// Does all that can be done at this moment, and appends the clients whose requests have ended.
    fn settle(&mut self, ended: &mut Vec<u32>) -> LabResult<()>;

    /// Returns the time of the next event of devices and timers.
    fn next_event(&self) -> Option<Nanos>;

    /// Moves the clock, and ends the operations of devices that are complete by then.
    fn advance(&mut self, to: Nanos);

    fn gauges(&self) -> Gauges;

    /// Lets time pass until the one request that is under way has ended.
    fn finish(&mut self) -> LabResult<()> {
        let mut ended = Vec::new();
        loop {
            self.settle(&mut ended)?;
            if !ended.is_empty() {
                return Ok(());
            }
            let next = self.next_event().ok_or_else(|| other("a request never ends"))?;
            self.advance(next.max(self.now()));
        }
    }
}

/// Duration of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Maximum number of seconds before the measurement.
    pub(crate) warm_up: f64,
    /// Bytes that are transferred before the measurement at most.
    pub(crate) warm_up_bytes: u64,
    /// Maximum number of measured seconds.
    pub(crate) seconds: f64,
    /// Measured requests at most.
    pub(crate) requests: Option<u64>,
    /// Seconds between samples; 0: none.
    pub(crate) sample: f64,
}

impl Span {
    /// A run of this duration, with up to 150 samples over time.
    pub(crate) fn seconds(seconds: f64) -> Self {
        let sample = (seconds / 150.0).max(0.05);
        Span { warm_up: 0.0, warm_up_bytes: u64::MAX, seconds, requests: None, sample }
    }

    /// A run of this number of requests, without a limit of time.
    pub(crate) fn requests(requests: u64) -> Self {
        Span { requests: Some(requests), sample: 0.0, ..Span::seconds(1e6) }
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

struct Client {
    access: Access,
    issued: Nanos,
}

/// Requests on their way to the server, in the order in which its CPU takes them.
struct Loop<'a, S> {
    server: &'a mut S,
    cpu: Cpu,
    generator: Generator,
    clients: Vec<Client>,
    entering: VecDeque<(Nanos, u32)>,
    under_way: usize,
    found: Found,
    measuring: Option<Gauges>,
    issued: u64,
    /// Requests that may be issued while measuring.
    limit: u64,
    measured: u64,
}

impl<S: Server> Loop<'_, S> {
    #[inline]
    fn issue(&mut self, client: u32, now: Nanos) {
        if self.issued >= self.limit {
            return;
        }
        self.issued += 1;
        let access = self.generator.next();
        self.clients[client as usize] = Client { access, issued: now };
        self.entering.push_back((self.cpu.take(now, &access), client));
        self.under_way += 1;
    }

    #[inline]
    fn ended(&mut self, client: u32, now: Nanos) {
        self.under_way -= 1;
        let Client { access, issued } = self.clients[client as usize];
        if self.measuring.is_some() {
            let tally = if access.write { &mut self.found.writes } else { &mut self.found.reads };
            tally.record(access.len, now.0 - issued.0);
            self.measured += 1;
        } else {
            self.found.unmeasured_bytes += access.len;
        }
    }
}

/// Takes samples in equal steps of time.
struct Sampler {
    start: Nanos,
    /// Interval in nanoseconds; 0: no samples.
    every: u64,
    /// Time of the last sample, and the gauges and answers at that time.
    last: (Nanos, Gauges, u64),
}

impl Sampler {
    fn new(start: Nanos, every: u64, gauges: Gauges) -> Self {
        Sampler { start, every, last: (start, gauges, 0) }
    }

    fn is_due(&self, now: Nanos) -> bool {
        self.every > 0 && now.0 >= self.last.0.0 + self.every
    }

    fn take(&mut self, gauges: Gauges, answered: u64) -> Sample {
        let (last, before, answered_before) = self.last;
        let (now, since) = (last.0 + self.every, self.every as f64);
        let passed = gauges.since(&before);
        self.last = (Nanos(now), gauges, answered);
        Sample {
            second: (now - self.start.0) as f64 / 1e9,
            requests_per_second: (answered - answered_before) as f64 * 1e9 / since,
            hit_ratio: passed.hit_ratio().unwrap_or(0.0),
            dirty_bytes: gauges.dirty_bytes,
            disk_busy: passed.disk_busy.0 as f64 / since,
            ssd_busy: passed.ssd_busy.0 as f64 / since,
        }
    }
}

/// Lets the clients of `workload` ask `server` for so long.
#[expect(clippy::too_many_lines, reason = "one event loop, whose steps share all of its state")]
pub(crate) fn run<S: Server>(
    server: &mut S,
    cpu: Cpu,
    workload: Workload,
    seed: u64,
    span: Span,
) -> LabResult<Found> {
    let (depth, len) = (workload.depth, workload.len);
    let start = server.now();
    let idle = Access { offset: 0, len: 0, write: false };
    let mut this = Loop {
        cpu: cpu.starting(start),
        generator: Generator::new(workload, seed),
        clients: (0..depth).map(|_| Client { access: idle, issued: start }).collect(),
        entering: VecDeque::with_capacity(depth),
        under_way: 0,
        found: Found::default(),
        measuring: None,
        issued: 0,
        limit: u64::MAX,
        measured: 0,
        server,
    };
    let mut measure_from = Nanos(start.0 + nanos(span.warm_up));
    let mut sampler = Sampler::new(start, nanos(span.sample), this.server.gauges());
    let mut answered = 0u64;
    if span.warm_up <= 0.0 {
        this.measuring = Some(this.server.gauges());
        this.limit = span.requests.unwrap_or(u64::MAX);
    }
    for client in 0..depth as u32 {
        this.issue(client, start);
    }
    let mut ended = Vec::new();
    let mut now = start;
    let mut last = start;
    while this.under_way > 0 {
        this.server.settle(&mut ended)?;
        for client in ended.drain(..) {
            answered += 1;
            this.ended(client, now);
            last = now;
            this.issue(client, now);
        }
        // The last request that was allowed has ended: nothing will happen any more.
        if this.under_way == 0 {
            break;
        }
        let entering = this.entering.front().map(|(at, _)| *at);
        let event = this.server.next_event();
        let next = match (entering, event) {
            (Some(one), Some(other)) => one.min(other),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Err(other("no request is in flight any more")),
        };
        let next = next.max(now);
        if this.measuring.is_none() && this.found.unmeasured_bytes >= span.warm_up_bytes {
            measure_from = measure_from.min(now);
        }
        let end = Nanos(measure_from.0 + nanos(span.seconds));
        if next >= measure_from && this.measuring.is_none() {
            this.measuring = Some(this.server.gauges());
            this.issued = this.under_way as u64;
            this.limit = span.requests.unwrap_or(u64::MAX);
        }
        while sampler.is_due(next) {
            this.found.series.push(sampler.take(this.server.gauges(), answered));
        }
        if next > end {
            now = end;
            last = end;
            break;
        }
        // Also what ends at the very moment at which it began has to be noticed.
        if next > now || event.is_some_and(|at| at <= now) {
            now = next;
            this.server.advance(now);
        }
        if entering.is_some_and(|at| at <= now)
            && let Some((_, client)) = this.entering.pop_front()
        {
            let access = this.clients[client as usize].access;
            if this.server.start(client, &access)? {
                answered += 1;
                this.ended(client, now);
                last = now;
                this.issue(client, now);
            }
        }
    }
    let from = measure_from.max(start);
    let until = if span.requests.is_some() { last } else { now };
    this.found.seconds = until.0.saturating_sub(from.0) as f64 / 1e9;
    let gauges = this.server.gauges();
    this.found.gauges = gauges.since(&this.measuring.unwrap_or(gauges));
    let Loop { server, mut found, entering, under_way, .. } = this;
    let rest = under_way - entering.len();
    found.unmeasured_bytes += rest as u64 * len;
    settle_rest(server, rest)?;
    Ok(found)
}

/// Waits for requests that were still under way, so that the next run begins with none.
fn settle_rest<S: Server>(server: &mut S, mut under_way: usize) -> LabResult<()> {
    let (mut ended, from) = (Vec::new(), server.now());
    while under_way > 0 {
        server.settle(&mut ended)?;
        under_way -= ended.drain(..).count().min(under_way);
        if under_way == 0 {
            break;
        }
        let next = server.next_event().ok_or_else(|| other("a request never ends"))?;
        if next.0 > from.0 + 3_600_000_000_000 {
            return Err(other("a request has not ended for an hour"));
        }
        let next = next.max(server.now());
        server.advance(next);
    }
    Ok(())
}
