//! The models against the figures that they were fitted to.

use forebay_core::Nanos;

use super::{Completed, Model, ModelKind, ModelOp};

const GB: u64 = 1_000_000_000;
const SPAN: u64 = 100 * GB;

/// A private random generator, so that changes in other crates do not alter these runs.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// Keeps `depth` operations in flight until `ops` is exhausted; returns the completions in order.
fn drive(
    model: &mut Model,
    depth: usize,
    ops: impl IntoIterator<Item = ModelOp>,
) -> Vec<Completed> {
    let mut ops = ops.into_iter();
    let mut now = Nanos(0);
    for op in ops.by_ref().take(depth) {
        model.submit(now, op);
    }
    let mut all = Vec::new();
    let mut some = Vec::new();
    while let Some(at) = model.next_event() {
        now = at;
        model.advance(now, &mut some);
        for op in ops.by_ref().take(some.len()) {
            model.submit(now, op);
        }
        all.append(&mut some);
    }
    all
}

fn per_second(completions: &[Completed]) -> f64 {
    let last = completions.last().map_or(0, |completed| completed.at.0);
    completions.len() as f64 * 1e9 / last as f64
}

fn random_4k(
    span: u64,
    count: usize,
    op: fn(u64, u64) -> ModelOp,
) -> impl Iterator<Item = ModelOp> {
    let mut random = Random(7);
    (0..count).map(move |_| op(random.below(span / 4096) * 4096, 4096))
}

fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= tolerance, "{what}: {found:.1} instead of {expected}, {:.1} % off", off * 100.0);
}

#[test]
fn disk_random() {
    for (depth, op, expected, tolerance) in [
        (32, ModelOp::read as fn(u64, u64) -> ModelOp, 235.0, 0.03),
        (32, ModelOp::write, 235.0, 0.03),
        (256, ModelOp::read, 235.0, 0.03),
        (1, ModelOp::read, 151.0, 0.05),
        (4, ModelOp::read, 163.0, 0.05),
    ] {
        let mut model = Model::new(ModelKind::Hdd7200, 2000 * GB);
        let found = per_second(&drive(&mut model, depth, random_4k(SPAN, 20_000, op)));
        assert_near(&format!("random at depth {depth}"), found, expected, tolerance);
    }
}

#[test]
fn disk_over_most_of_its_stroke() {
    // The reference assumes the density of the outermost zone everywhere, so it seeks slightly
    // less.
    for (depth, expected) in [(1, 96.0), (32, 161.0)] {
        let mut model = Model::new(ModelKind::Hdd7200, 2000 * GB);
        let ops = random_4k(1400 * GB, 20_000, ModelOp::read);
        let found = per_second(&drive(&mut model, depth, ops));
        assert_near(&format!("1.4 TB at depth {depth}"), found, expected, 0.06);
    }
}

#[test]
fn sequential() {
    const LEN: u64 = 256 << 10;
    type Make = fn(u64, u64) -> ModelOp;
    for (kind, op, depth, expected) in [
        (ModelKind::Hdd7200, ModelOp::read as Make, 1, 112.9),
        (ModelKind::Hdd7200, ModelOp::read, 32, 112.9),
        (ModelKind::Hdd7200, ModelOp::write, 1, 107.0),
        (ModelKind::Hdd7200, ModelOp::write, 256, 107.0),
        (ModelKind::SataSsd, ModelOp::read, 256, 279.0),
        (ModelKind::SataSsd, ModelOp::write, 256, 268.0),
        (ModelKind::PcieSsd, ModelOp::read, 256, 2012.0),
        (ModelKind::PcieSsd, ModelOp::write, 256, 1777.0),
        (ModelKind::Remote, ModelOp::read, 1, 214.4),
        (ModelKind::Remote, ModelOp::write, 64, 1176.9),
        (ModelKind::RemoteGigabit, ModelOp::read, 64, 117.7),
    ] {
        let mut model = Model::new(kind, SPAN);
        let done = drive(&mut model, depth, (0..8192).map(|index| op(index * LEN, LEN)));
        let found = per_second(&done) * LEN as f64 / 1e6;
        assert_near(&format!("{kind} sequential, MB/s"), found, expected, 0.01);
    }
}

#[test]
fn saturation() {
    type Make = fn(u64, u64) -> ModelOp;
    for (kind, op, expected) in [
        (ModelKind::SataSsd, ModelOp::read as Make, 49_687.0),
        (ModelKind::SataSsd, ModelOp::write, 38_092.0),
        (ModelKind::PcieSsd, ModelOp::read, 164_449.0),
        (ModelKind::PcieSsd, ModelOp::write, 148_768.0),
        (ModelKind::Remote, ModelOp::read, 64_000.0),
        (ModelKind::RemoteGigabit, ModelOp::write, 28_732.0),
    ] {
        for depth in [64, 256] {
            let mut model = Model::new(kind, SPAN);
            let found = per_second(&drive(&mut model, depth, random_4k(SPAN, 100_000, op)));
            assert_near(&format!("{kind} random"), found, expected, 0.01);
        }
    }
}

/// The 4 KiB blocks of a swept range, each dirty with probability `share`, in order of address.
fn dirty(share: f64, count: usize) -> impl Iterator<Item = ModelOp> {
    let mut random = Random(11);
    let mut block = 0;
    (0..count).map(move |_| {
        while random.below(1_000_000_000) as f64 >= share * 1e9 {
            block += 1;
        }
        block += 1;
        ModelOp::write((block - 1) * 4096, 4096)
    })
}

#[test]
fn sorted_writeback_by_density() {
    // Columns: share of dirty blocks; blocks per second with one in flight, and with the queue
    // full.
    for (share, single, queued) in [
        (0.001, 201.0, 303.0),
        (0.01, 331.0, 423.0),
        (0.03, 697.0, 739.0),
        (0.1, 881.0, 1643.0),
        (0.3, 530.0, 3681.0),
        (0.6, 484.0, 6031.0),
        (0.9, 1268.0, 9297.0),
    ] {
        for (depth, expected) in [(1, single), (32, queued)] {
            let mut model = Model::new(ModelKind::Hdd7200, 2000 * GB);
            let found = per_second(&drive(&mut model, depth, dirty(share, 20_000)));
            assert_near(&format!("sorted, density {share}, depth {depth}"), found, expected, 0.08);
        }
    }
}

#[test]
fn equal_arrivals_give_equal_times_at_any_polling() {
    for kind in ModelKind::ALL {
        let arrivals: Vec<(Nanos, ModelOp)> = {
            let mut random = Random(3);
            let mut now = 0;
            let mut arrive = |op| {
                now += random.below(8_000_000);
                let len = 4096 * (1 + random.below(16));
                let offset = random.below(SPAN / 4096) * 4096;
                match op % 10 {
                    0 => (Nanos(now), ModelOp::sync()),
                    1..6 => (Nanos(now), ModelOp::read(offset, len)),
                    _ => (Nanos(now), ModelOp::write(offset, len)),
                }
            };
            (0..2000).map(&mut arrive).collect()
        };
        // Advances only on arrivals, at every event, and at many other times too.
        let mut runs = Vec::new();
        for looks in [0, 1, 50] {
            let mut model = Model::new(kind, SPAN);
            let mut done = Vec::new();
            let mut before = 0;
            for (now, op) in &arrivals {
                while looks > 0
                    && let Some(at) = model.next_event().filter(|at| at <= now)
                {
                    model.advance(at, &mut done);
                }
                for step in 1..looks {
                    let between = before + (now.0 - before) * step / looks;
                    model.advance(Nanos(between), &mut done);
                }
                before = now.0;
                model.submit(*now, *op);
            }
            model.advance(Nanos(u64::MAX), &mut done);
            assert_eq!(done.len(), arrivals.len());
            assert!(done.is_sorted());
            runs.push(done);
        }
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{kind}");
    }
}

#[test]
fn counters_add_up() {
    for kind in ModelKind::ALL {
        let mut model = Model::new(kind, SPAN);
        let done = drive(&mut model, 64, random_4k(SPAN, 1024, ModelOp::read));
        let counters = model.counters();
        assert_eq!((counters.reads, counters.read_bytes), (1024, 4_194_304));
        assert_eq!((counters.writes, counters.written_bytes, counters.syncs), (0, 0, 0));
        assert_eq!(counters.seeks > 0, kind == ModelKind::Hdd7200);
        if kind == ModelKind::RemoteGigabit {
            // The link is saturated here, and busy time counts the servers.
            continue;
        }
        // The link is saturated from the start, so it is busy all the time except for the latency
        // of the last operation.
        let elapsed = done.last().map_or(0, |last| last.at.0) as f64;
        assert_near("busy", counters.busy.as_nanos() as f64, elapsed, 0.02);
    }
}
