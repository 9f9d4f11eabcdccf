//! Requests of a trace on a virtual clock: at the trace's times, or each as soon as there is a
//! place for it.
//!
//! Between two events no time passes: all ready work is done, then the clock jumps to the next
//! request, device or timer, whichever comes first.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_core::{Nanos, Op};

use crate::error::{LabResult, other};
use crate::progress::Progress;
use crate::virtual_time::access::Access;
use crate::virtual_time::clients::Server;
use crate::virtual_time::cpu::Cpu;
use crate::virtual_time::raw::Raw;
use crate::virtual_time::tally::Tally;
use crate::virtual_time::world::{Looked, World};

use super::load::Asked;

/// Virtual time after which a request is taken to never end.
const NEVER: u64 = 24 * 3600 * 1_000_000_000;

/// Requests after which the progress is shown, and the cache's content counted.
const SOME: u64 = 256;

/// A server of the requests of a trace.
pub(super) trait Replayed: Server {
    /// Counts hits and misses of a read or a write that is about to begin.
    fn look(&self, _op: Op, _offset: u64, _len: u64) -> Looked {
        Looked::default()
    }

    /// Starts a request. `true`: it has ended already.
    fn ask(&mut self, client: u32, asked: &Asked) -> LabResult<bool>;

    /// Blocks in the cache.
    fn live_blocks(&self) -> u64 {
        0
    }
}

fn access(asked: &Asked) -> Access {
    Access { offset: asked.offset, len: asked.len, write: asked.op != Op::Read }
}

impl Replayed for World {
    fn look(&self, op: Op, offset: u64, len: u64) -> Looked {
        World::look(self, op, offset, len)
    }

    fn ask(&mut self, client: u32, asked: &Asked) -> LabResult<bool> {
        World::ask(self, client, asked.op, asked.offset, asked.len)
    }

    fn live_blocks(&self) -> u64 {
        World::live_blocks(self)
    }
}

impl Replayed for Raw {
    fn ask(&mut self, client: u32, asked: &Asked) -> LabResult<bool> {
        // A discard moves no data, and the model of a disk completes durable writes.
        if matches!(asked.op, Op::Discard | Op::Flush) {
            return Ok(true);
        }
        self.start(client, &access(asked))
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// At the trace's times; later if so many are under way.
    Trace { depth: usize },
    /// So many are always under way; a place is empty for a while after each.
    Closed { depth: usize, pause: Duration },
}

impl Pace {
    pub(super) fn depth(self) -> usize {
        match self {
            Pace::Trace { depth } | Pace::Closed { depth, .. } => depth,
        }
    }

    fn pause(self) -> Duration {
        match self {
            Pace::Trace { .. } => Duration::ZERO,
            Pace::Closed { pause, .. } => pause,
        }
    }
}

/// Requests of one direction, and the longest of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Direction {
    pub(super) tally: Tally,
    pub(super) longest: u64,
}

/// Results of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    /// Blocks of reads and writes.
    pub(super) looked: Looked,
    /// Blocks of reads alone.
    pub(super) looked_at_reads: Looked,
    /// Reads and writes of which a block was missed.
    pub(super) missed_requests: u64,
    pub(super) missed_reads: u64,
    pub(super) reads: Direction,
    pub(super) writes: Direction,
    pub(super) discards: u64,
    /// The most blocks that were in the cache.
    pub(super) most_live: u64,
    /// From the first request to the last answer, in virtual time.
    pub(super) seconds: f64,
}

/// A request that is under way.
#[derive(Clone, Copy)]
struct UnderWay {
    asked: Asked,
    /// Begin of its latency.
    since: Nanos,
}

impl Played {
    fn begins(&mut self, op: Op, looked: Looked) {
        if op == Op::Flush {
            return;
        }
        if op == Op::Discard {
            self.discards += 1;
            return;
        }
        self.looked.add(&looked);
        let missed = u64::from(looked.missed > 0);
        self.missed_requests += missed;
        if op == Op::Read {
            self.looked_at_reads.add(&looked);
            self.missed_reads += missed;
        }
    }

    fn ended(&mut self, request: &UnderWay, now: Nanos) {
        let direction = match request.asked.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            _ => return,
        };
        let took = now.0.saturating_sub(request.since.0);
        direction.tally.record(request.asked.len, took);
        direction.longest = direction.longest.max(took);
    }
}

/// Asks `server` for all of a trace.
#[expect(clippy::too_many_lines, reason = "one event loop, whose steps share all of its state")]
pub(super) fn play<S: Replayed>(
    server: &mut S,
    cpu: Cpu,
    requests: &[Asked],
    pace: Pace,
    name: &'static str,
) -> LabResult<Played> {
    let start = server.now();
    let mut cpu = cpu.starting(start);
    let mut found = Played::default();
    let mut now = start;
    let mut last = start;
    // When a request came or ended.
    let mut moved = start;
    let mut open_from = start;
    let mut next = 0;
    let mut free: Vec<u32> = (0..pace.depth().max(1) as u32).rev().collect();
    let places = free.len();
    let mut under_way: Vec<Option<UnderWay>> = vec![None; places];
    let mut entering: VecDeque<(Nanos, u32)> = VecDeque::new();
    let mut ended = Vec::new();
    let progress = Progress::late(requests.len() as u64, name);
    let mut answered = 0u64;
    loop {
        server.settle(&mut ended)?;
        for client in ended.drain(..) {
            let place = under_way.get_mut(client as usize).and_then(Option::take);
            let Some(request) = place else { continue };
            found.ended(&request, now);
            free.push(client);
            (last, moved, open_from) = (now, now, now + pace.pause());
            answered += 1;
            if answered.is_multiple_of(SOME) {
                found.most_live = found.most_live.max(server.live_blocks());
                progress.reach(next as u64);
            }
        }
        let due = |asked: &Asked| match pace {
            Pace::Trace { .. } => Nanos(start.0.saturating_add(asked.time.0)),
            Pace::Closed { .. } => open_from,
        };
        while let Some(asked) = requests.get(next)
            && due(asked) <= now
            && let Some(client) = free.pop()
        {
            let since = if let Pace::Trace { .. } = pace { due(asked) } else { now };
            if let Some(place) = under_way.get_mut(client as usize) {
                *place = Some(UnderWay { asked: *asked, since });
            }
            entering.push_back((cpu.take(now, &access(asked)), client));
            (moved, next) = (now, next + 1);
        }
        if let Some((_, client)) = entering.pop_front_if(|(at, _)| *at <= now) {
            let Some(request) = under_way.get(client as usize).copied().flatten() else { continue };
            let asked = &request.asked;
            let looked = match asked.op {
                Op::Read | Op::Write => server.look(asked.op, asked.offset, asked.len),
                _ => Looked::default(),
            };
            found.begins(asked.op, looked);
            if server.ask(client, asked)? {
                ended.push(client);
            }
            continue;
        }
        if next >= requests.len() && free.len() == places {
            break;
        }
        let comes = requests.get(next).filter(|_| !free.is_empty()).map(due);
        let enters = entering.front().map(|(at, _)| *at);
        let soonest = [comes, enters, server.next_event()].into_iter().flatten().min();
        let never = free.len() < places && now.0.saturating_sub(moved.0) > NEVER;
        let Some(soonest) = soonest.filter(|_| !never) else {
            return Err(other("a request never ends"));
        };
        now = soonest.max(now);
        server.advance(now);
    }
    found.most_live = found.most_live.max(server.live_blocks());
    found.seconds = last.0.saturating_sub(start.0) as f64 / 1e9;
    Ok(found)
}
