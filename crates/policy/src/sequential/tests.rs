//! Sequential streams are recognised, random requests are not.

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Lists and chains contain every stream exactly once (a demoted one is in no chain).
fn check(table: &SequentialCutoff) {
    let mut all = 0;
    for (number, list) in table.lists.iter().enumerate() {
        let (mut seen, mut slot, mut last) = (0, list.newest, NONE);
        while slot != NONE {
            let stream = &table.streams[slot as usize];
            assert_eq!((stream.newer, stream.list as usize), (last, number));
            last = slot;
            slot = stream.older;
            seen += 1;
        }
        assert_eq!((seen, last), (list.len, list.oldest));
        all += seen;
    }
    assert_eq!(all, table.streams.len());
    let mut chained = 0;
    for &bucket in &table.buckets {
        let mut slot = bucket;
        while slot != NONE {
            chained += 1;
            assert!(chained <= table.streams.len(), "a chain has a loop");
            slot = table.streams[slot as usize].chain;
        }
    }
}

#[test]
fn threshold_zero_is_never() {
    for run in [0, 1, u64::MAX] {
        assert!(!StreamLength { run }.bypass(0));
    }
    for (run, bypass) in [(0, false), (4 * MIB - 1, false), (4 * MIB, true)] {
        assert_eq!(StreamLength { run }.bypass(4 * MIB), bypass);
    }
}

#[test]
fn interleaved_streams_up_to_the_capacity_are_followed() {
    for streams in [1, 2, 5, 128, 256] {
        for (is_write, len) in [(false, 64 * KIB), (true, 64 * KIB), (false, 512), (true, 4 * KIB)]
        {
            let mut table = SequentialCutoff::new(streams as usize);
            for step in 0..20 {
                for stream in 0..streams {
                    let verdict = table.observe(is_write, stream * (1 << 30) + step * len, len);
                    assert_eq!(verdict.run, step * len, "{streams} streams of {len}, step {step}");
                }
            }
            check(&table);
        }
    }
}

/// Returns the bytes that bypassed the cache, and all bytes, when requests of `streams` streams
/// alternate, with `noise` random requests in between.
fn bypassed(is_write: bool, streams: u64, noise: u64, len: u64, each: u64) -> (u64, u64) {
    let mut table = SequentialCutoff::new(DEFAULT_STREAMS);
    let mut rng = fastrand::Rng::with_seed(streams ^ noise);
    let (mut round, mut all) = (0, 0);
    for step in 0..each / len {
        for stream in 0..streams {
            let verdict = table.observe(is_write, stream * (1 << 30) + step * len, len);
            round += u64::from(verdict.bypass(DEFAULT_THRESHOLD)) * len;
            all += len;
            for _ in 0..noise {
                // Over 1 TiB, away from the streams.
                let at = (1 << 41) + rng.u64(0..1 << 28) * 4 * KIB;
                let verdict = table.observe(rng.bool(), at, 4 * KIB);
                assert!(
                    !verdict.bypass(DEFAULT_THRESHOLD),
                    "a random request is taken for a stream"
                );
            }
        }
    }
    check(&table);
    (round, all)
}

/// Backups: small pieces, many streams, other active clients. Each stream is recognised after the
/// threshold, give or take the requests needed to become established.
#[test]
fn backups_in_small_pieces_are_found_among_random_requests() {
    for is_write in [false, true] {
        for (streams, noise, len) in [
            (1, 0, 4 * KIB),
            (200, 0, 4 * KIB),
            (200, 0, 512),
            (300, 0, 16 * KIB),
            (1, 1000, 4 * KIB),
            (16, 99, 16 * KIB),
            (64, 9, 4 * KIB),
            (128, 9, 16 * KIB),
            (180, 1, 4 * KIB),
        ] {
            let (round, all) = bypassed(is_write, streams, noise, len, 5 * MIB);
            // All but the first 4 MiB of each 5 MiB, for as many streams as fit into the table.
            let followed = streams.min(192);
            let expected = followed * MIB / 10 * 8;
            assert!(
                round >= expected && round <= followed.max(streams) * MIB,
                "{streams} streams of {len}, {noise} random ones: {round} of {all}"
            );
        }
    }
}

#[test]
fn a_single_request_is_no_stream() {
    assert_eq!(SequentialCutoff::new(4).observe(false, 0, 64 * MIB).run, 0);
}

#[test]
fn reads_and_writes_of_the_same_range_are_two_streams() {
    let mut table = SequentialCutoff::new(8);
    for step in 0..100 {
        assert_eq!(table.observe(false, step * 4096, 4096).run, step * 4096);
        assert_eq!(table.observe(true, step * 4096, 4096).run, step * 4096);
    }
}

#[test]
fn lengths_may_change_within_a_stream() {
    let mut table = SequentialCutoff::new(8);
    let mut at = 512;
    for (step, len) in [512, 4096, 128 * KIB, 1536, MIB, 512].into_iter().enumerate() {
        let run = table.observe(true, at, len).run;
        assert_eq!(run, if step == 0 { 0 } else { at - 512 });
        at += len;
    }
}

/// Every order of every window of three requests, repeatedly.
#[test]
fn reordering_within_three_requests_stays_one_stream() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let mut table = SequentialCutoff::new(4);
        assert_eq!(table.observe(false, 0, 4096).run, 0);
        for window in 0..100u64 {
            for place in order {
                let before = table.observe(false, 4096 * (1 + 3 * window + place), 4096).run;
                assert!(
                    before >= 4096 * (1 + 3 * window),
                    "{order:?} in window {window}: {before}"
                );
            }
        }
        check(&table);
    }
}

#[test]
fn strides_are_no_streams() {
    for stride in [2, 3, 4, 8] {
        let mut table = SequentialCutoff::new(256);
        for step in 0..10_000u64 {
            let run = table.observe(false, step * stride * 4096, 4096).run;
            assert!(run <= 5 * 4096, "stride {stride}, step {step}: {run}");
        }
    }
}

#[test]
fn using_the_same_place_again_ends_the_stream() {
    let mut table = SequentialCutoff::new(4);
    for step in 0..100 {
        table.observe(true, step * 4096, 4096);
    }
    assert_eq!(table.observe(true, 99 * 4096, 4096).run, 0);
    assert_eq!(table.observe(true, 100 * 4096, 4096).run, 4096);
}

/// Areas from a few blocks to far more than the table covers: in small ones nearly every request is
/// near the end of some stream.
#[test]
fn random_small_requests_are_never_a_stream() {
    for blocks in [2, 5, 30, 100, 300, 700, 1100, 1500, 3000, 10_000, 1 << 20, 1 << 30] {
        for capacity in [16, 256] {
            let mut rng = fastrand::Rng::with_seed(blocks);
            let mut table = SequentialCutoff::new(capacity);
            let mut longest = 0;
            for _ in 0..200_000 {
                let run = table.observe(rng.u8(..) < 80, rng.u64(..blocks) * 4096, 4096).run;
                longest = longest.max(run);
            }
            check(&table);
            assert!(longest < 256 * KIB, "{blocks} blocks: a run of {longest} bytes");
        }
    }
}

#[test]
fn absurd_ranges_do_no_harm() {
    let mut table = SequentialCutoff::new(0);
    let edges = [0, 1, 511, 512, 4096, u64::MAX / 2, u64::MAX - 4096, u64::MAX - 1, u64::MAX];
    for offset in edges {
        for len in edges {
            for is_write in [false, true] {
                table.observe(is_write, offset, len);
                check(&table);
            }
        }
    }
}
