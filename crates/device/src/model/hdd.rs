//! The disk's queue and its order of service.
//!
//! The disk holds 32 commands; the host keeps the others and submits them in order of arrival.
//! Whenever it becomes free, the disk serves the command that it expects to reach first, counting
//! seek and rotation. A real disk may be too late for a sector that passes shortly after the arm
//! arrives, so after a change of track it expects a whole further revolution if less than 1.65 ms
//! would be left. That is the only fitted parameter, fitted to 235 commands per second at depth 32.
//!
//! A command that begins where the last one ended, in the same direction, streams: no overhead, no
//! rotation. The disk's buffer permits that for hosts that take a moment to send it, here up to one
//! revolution. The transfer of a write takes 113/107 of the time of a read.
//!
//! Three properties are conventions without a measurement. A sync is not a queued command: it waits
//! for all earlier commands, then takes one revolution, and blocks all later ones. A discard costs
//! the command overhead only. And a command that has waited for 2 s is served before all later
//! ones, since a stream would otherwise starve it.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_core::Nanos;

use super::geometry::{DiskGeometry, Position, REVOLUTION};
use super::{Completed, ModelCounters, ModelOp, ModelOpId, ModelOpKind};

/// Commands that the disk holds.
const WINDOW: usize = 32;
const OVERHEAD: u64 = 50_000;
const GUARD: u64 = 1_650_000;
const PATIENCE: Duration = Duration::from_secs(2);
const WRITE_SLOWDOWN: f64 = 113.0 / 107.0;

#[derive(Clone, Copy, Debug)]
struct QueuedCommand {
    id: ModelOpId,
    op: ModelOp,
    arrived: Nanos,
    position: Position,
}

#[derive(Clone, Copy, Debug)]
struct DiskStream {
    next: u64,
    write: bool,
    until: Nanos,
}

/// The start of serving a command, and its cost.
#[derive(Clone, Copy, Debug)]
struct Approach {
    streams: bool,
    seek: u64,
    /// Time from the choice to the first byte, in nanoseconds.
    time: u64,
    /// The value of `time` that the disk expects.
    expected: u64,
}

/// The disk's state.
#[derive(Clone, Debug)]
pub(super) struct Hdd {
    geometry: DiskGeometry,
    host: VecDeque<QueuedCommand>,
    window: Vec<QueuedCommand>,
    serving: Option<Completed>,
    head: Position,
    stream: Option<DiskStream>,
    /// Completions not collected yet.
    done: Vec<Completed>,
    counters: ModelCounters,
}

fn is_write(kind: ModelOpKind) -> bool {
    matches!(kind, ModelOpKind::Write | ModelOpKind::DurableWrite | ModelOpKind::WriteZeroes)
}

impl Hdd {
    pub(super) fn new(capacity: u64) -> Self {
        Hdd {
            geometry: DiskGeometry::new(capacity),
            host: VecDeque::new(),
            window: Vec::with_capacity(WINDOW),
            serving: None,
            head: Position::default(),
            stream: None,
            done: Vec::new(),
            counters: ModelCounters::default(),
        }
    }

    pub(super) fn submit(&mut self, now: Nanos, id: ModelOpId, op: ModelOp) {
        // Make the choices of the past first: they must not consider this command, however rarely
        // the model is advanced. So they are the same on every clock.
        self.replay(now);
        let position = self.geometry.locate(op.offset);
        self.host.push_back(QueuedCommand { id, op, arrived: now, position });
        if self.serving.is_none() {
            self.serve_next(now);
        }
    }

    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.done.first().or(self.serving.as_ref()).map(|completed| completed.at)
    }

    pub(super) fn advance(&mut self, now: Nanos, into: &mut Vec<Completed>) {
        self.replay(now);
        into.append(&mut self.done);
    }

    pub(super) fn counters(&self) -> ModelCounters {
        self.counters
    }

    fn replay(&mut self, now: Nanos) {
        while let Some(completed) = self.serving.filter(|serving| serving.at <= now) {
            self.done.push(completed);
            self.serving = None;
            self.serve_next(completed.at);
        }
    }

    /// Begins the next command at `now`, if there is any.
    fn serve_next(&mut self, now: Nanos) {
        // The command that has just ended has freed a slot, so this also admits the next one.
        while self.window.len() < WINDOW
            && let Some(&command) = self.host.front()
        {
            if command.op.kind == ModelOpKind::Sync {
                if self.window.is_empty() {
                    self.host.pop_front();
                    self.begin(now, &command, REVOLUTION);
                    self.stream = None;
                    return;
                }
                break;
            }
            self.host.pop_front();
            self.window.push(command);
        }
        let Some((index, approach)) = self.choose(now) else { return };
        let command = self.window.remove(index);
        self.serve(now, &command, approach);
    }

    fn choose(&self, now: Nanos) -> Option<(usize, Approach)> {
        let candidates = || {
            let approach = |command| self.approach(now, command);
            self.window.iter().map(approach).enumerate()
        };
        // The window is in order of arrival.
        if self.window.first().is_some_and(|oldest| now.since(oldest.arrived) >= PATIENCE) {
            return candidates().next();
        }
        candidates().min_by_key(|(_, approach)| approach.expected)
    }

    fn approach(&self, now: Nanos, command: &QueuedCommand) -> Approach {
        let op = &command.op;
        if op.kind == ModelOpKind::Discard {
            return Approach { streams: false, seek: 0, time: OVERHEAD, expected: OVERHEAD };
        }
        let streams = self.stream.is_some_and(|stream| {
            stream.next == op.offset && stream.write == is_write(op.kind) && now <= stream.until
        });
        if streams {
            return Approach { streams, seek: 0, time: 0, expected: 0 };
        }
        let seek = self.geometry.seek(self.head, command.position);
        let arrives = (now.0 % REVOLUTION + OVERHEAD + seek) % REVOLUTION;
        let rotation = (command.position.angle + REVOLUTION - arrives) % REVOLUTION;
        let time = OVERHEAD + seek + rotation;
        let in_doubt = seek > 0 && rotation < GUARD;
        let expected = if in_doubt { time + REVOLUTION } else { time };
        Approach { streams, seek, time, expected }
    }

    fn serve(&mut self, now: Nanos, command: &QueuedCommand, approach: Approach) {
        let op = &command.op;
        if op.kind == ModelOpKind::Discard {
            self.begin(now, command, approach.time);
            return;
        }
        let end = op.offset + op.len;
        let mut transfer = self.geometry.transfer(op.offset, end, approach.streams);
        if is_write(op.kind) {
            transfer = (transfer as f64 * WRITE_SLOWDOWN).round() as u64;
        }
        self.head = self.geometry.locate(end.saturating_sub(1).max(op.offset));
        let at = self.begin(now, command, approach.time + transfer);
        self.stream = Some(DiskStream {
            next: end,
            write: is_write(op.kind),
            until: at + Duration::from_nanos(REVOLUTION),
        });
        self.counters.seeks += u64::from(approach.seek > 0);
        self.counters.streamed += u64::from(approach.streams);
    }

    fn begin(&mut self, now: Nanos, command: &QueuedCommand, service: u64) -> Nanos {
        let service = Duration::from_nanos(service);
        self.counters.count(&command.op, service);
        let at = now + service;
        self.serving = Some(Completed { at, id: command.id });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Model, ModelKind};
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn run(model: &mut Model) -> Vec<Completed> {
        let mut done = Vec::new();
        model.advance(Nanos(u64::MAX), &mut done);
        done
    }

    fn order(ops: &[ModelOp]) -> Vec<u64> {
        let mut model = Model::new(ModelKind::Hdd7200, 100 * GB);
        for op in ops {
            model.submit(Nanos(0), *op);
        }
        run(&mut model).iter().map(|completed| completed.id.0).collect()
    }

    #[test]
    fn the_nearest_goes_first_and_a_stream_is_nearest() {
        let ops = [
            ModelOp::read(0, 4096),
            ModelOp::read(90 * GB, 4096),
            ModelOp::read(500_000, 4096),
            ModelOp::read(4096, 4096),
            ModelOp::read(8192, 4096),
        ];
        assert_eq!(order(&ops), [0, 3, 4, 2, 1]);
    }

    #[test]
    fn a_sync_separates_what_is_before_from_what_is_behind() {
        let ops = [
            ModelOp::write(0, 4096),
            ModelOp::write(90 * GB, 4096),
            ModelOp::sync(),
            ModelOp::write(4096, 4096),
        ];
        assert_eq!(order(&ops), [0, 1, 2, 3]);
        let mut model = Model::new(ModelKind::Hdd7200, GB);
        model.submit(Nanos(5), ModelOp::sync());
        assert_eq!(model.next_event(), Some(Nanos(5 + REVOLUTION)));
    }

    #[test]
    fn nothing_starves_beside_a_stream() {
        let mut model = Model::new(ModelKind::Hdd7200, 100 * GB);
        let mut next = 0;
        let mut submit_stream = |model: &mut Model, now| {
            model.submit(now, ModelOp::read(next, 1 << 20));
            next += 1 << 20;
        };
        submit_stream(&mut model, Nanos(0));
        let far = model.submit(Nanos(0), ModelOp::read(90 * GB, 4096));
        submit_stream(&mut model, Nanos(0));
        let mut done = Vec::new();
        while let Some(now) = model.next_event() {
            done.clear();
            model.advance(now, &mut done);
            if done.iter().any(|completed| completed.id == far) {
                assert!((2_000_000_000..2_100_000_000).contains(&now.0), "served at {now}");
                return;
            }
            submit_stream(&mut model, now);
        }
        unreachable!("the stream never ends");
    }

    #[test]
    fn a_stream_waits_one_revolution_for_the_host() {
        for (late, streamed) in [(0, 1), (REVOLUTION, 1), (REVOLUTION + 1, 0)] {
            let mut model = Model::new(ModelKind::Hdd7200, GB);
            model.submit(Nanos(0), ModelOp::read(0, 4096));
            let Some(end) = model.next_event() else { unreachable!("one is served") };
            model.submit(Nanos(end.0 + late), ModelOp::read(4096, 4096));
            assert_eq!(model.counters().streamed, streamed, "{late} ns late");
            // The other direction never streams.
            let mut model = Model::new(ModelKind::Hdd7200, GB);
            model.submit(Nanos(0), ModelOp::read(0, 4096));
            model.submit(Nanos(end.0 + late), ModelOp::write(4096, 4096));
            assert_eq!(model.counters().streamed, 0);
        }
    }

    #[test]
    fn absurd_operations_end() {
        for capacity in [0, 1, 4096, u64::MAX] {
            let mut model = Model::new(ModelKind::Hdd7200, capacity);
            let mut count = 0;
            for kind in [
                ModelOpKind::Read,
                ModelOpKind::Write,
                ModelOpKind::WriteZeroes,
                ModelOpKind::Sync,
                ModelOpKind::Discard,
            ] {
                for offset in [0, 4096, u64::MAX] {
                    model.submit(Nanos(0), ModelOp { kind, offset, len: 4096 });
                    model.submit(Nanos(0), ModelOp { kind, offset, len: 0 });
                    count += 2;
                }
            }
            assert_eq!(run(&mut model).len(), count);
        }
    }
}
