//! Answers that are known, and that stay the same.

use clap::Parser;
use forebay_core::Op;

use super::load::tests::loaded;
use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

const PAGE: u64 = 4096;
const RULES: Rules = Rules { admission: Admission::Always, mode: Mode::Writeback };

fn reads(blocks: u64, rounds: u64) -> Loaded {
    let all: Vec<_> =
        (0..blocks * rounds).map(|number| (0, Op::Read, number % blocks * PAGE, PAGE)).collect();
    loaded(&all, Grid::Sectors)
}

#[test]
fn blocks_and_requests_are_counted() {
    let trace = [
        (0, Op::Write, 0, PAGE),            // 0 enters
        (0, Op::Read, 0, 2 * PAGE),         // 0 hit, 1 enters
        (0, Op::Read, 0, 2 * PAGE),         // both hit
        (0, Op::Write, PAGE, PAGE),         // 1 hit
        (0, Op::Read, 3 * PAGE + 512, 512), // 3 enters, all of it
        (0, Op::Read, 3 * PAGE, PAGE),      // 3 hit
        (0, Op::Write, 5 * PAGE, 512),      // 5 enters, a sector of it
        (0, Op::Read, 5 * PAGE, 512),       // 5 hit
        (0, Op::Read, 5 * PAGE, 1024),      // a sector of 5 is missed
        (0, Op::Discard, 3 * PAGE, PAGE),   // 3 leaves, as it is clean
        (0, Op::Read, 3 * PAGE, PAGE),      // 3 enters
    ];
    let found =
        misses(&loaded(&trace, Grid::Sectors), ReplacementKind::Lru, RULES, 682, 1).expect("runs");
    assert_eq!((found.block_miss_ratio, found.uncovered_ratio), (6.0 / 12.0, 1.0 / 12.0));
    assert_eq!(found.request_miss_ratio, 6.0 / 10.0);
    assert_eq!(found.read_request_miss_ratio, Some(4.0 / 7.0));
    // Whole blocks cannot be there in part.
    let found =
        misses(&loaded(&trace, Grid::Blocks), ReplacementKind::Lru, RULES, 682, 1).expect("runs");
    assert_eq!((found.block_miss_ratio, found.uncovered_ratio), (5.0 / 12.0, 0.0));
}

/// A loop that fits is hit from the second round on. FIFO never hits in one that is too large.
#[test]
fn loops_hit_if_they_fit() {
    for policy in ReplacementKind::ALL {
        let found = misses(&reads(600, 4), *policy, RULES, 682, 1).expect("runs");
        assert_eq!((found.block_miss_ratio, found.capacity_blocks), (0.25, 682), "{policy}");
        assert_eq!(found.most_live_blocks, 600);
    }
    let found = misses(&reads(2000, 3), ReplacementKind::Fifo, RULES, 682, 1).expect("runs");
    assert_eq!(found.block_miss_ratio, 1.0);
    assert!(found.most_live_blocks <= 16 * 62 && found.most_live_blocks >= 682 - 62);
    // Everything is written once, and a header for each segment; of so few segments the oldest is
    // in part still to be kept when it goes.
    assert!((1.0..1.5).contains(&found.ssd_bytes_per_byte), "{}", found.ssd_bytes_per_byte);
}

fn line(path: &std::path::Path, more: &[&str]) -> Args {
    let path = path.to_string_lossy();
    let line = ["replay", &path, "--cache-size", "3M"].into_iter().chain(more.iter().copied());
    Line::parse_from(line).args
}

#[test]
fn the_same_seed_gives_the_same_json_and_it_parses() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace.csv");
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = String::from("ts_us,op,offset,size\n");
    for number in 0..4000 {
        let op = if random.bool() { 'R' } else { 'W' };
        let (offset, size) = (random.u64(0..6000) * 1024, random.u64(1..20) * 1024);
        text.push_str(&format!("{},{op},{offset},{size}\n", number * 3000));
    }
    std::fs::write(&path, text).expect("written");
    let json = |seed| {
        let args = line(&path, &["--policy", "random", "--seed", seed]);
        serde_json::to_string(&replay(&args).expect("runs")).expect("JSON")
    };
    let one = json("1");
    assert_eq!(one, json("1"));
    assert_ne!(one, json("2"));
    let value: serde_json::Value = serde_json::from_str(&one).expect("parses");
    let row = &value["rows"][0];
    assert_eq!(
        (&row["layout"], &row["policy"], &row["timing"]),
        (&"log".into(), &"random".into(), &"trace".into())
    );
    let number = |name: &str| row[name].as_f64().expect("a number");
    // The trace takes 12 s, however fast answers come.
    assert!(number("seconds") > 11.9 && number("block_miss_ratio") > 0.0);
    assert!(number("disk_busy_drained_seconds") >= number("disk_busy_seconds"));
    let reading = number("disk_reading_seconds");
    assert!(reading > 0.0 && reading < number("disk_busy_drained_seconds"));
    let requests = row["reads"]["requests"].as_u64().zip(row["writes"]["requests"].as_u64());
    assert_eq!(requests.map(|(reads, writes)| reads + writes), Some(4000));
}

#[test]
fn traces_without_times_are_asked_as_fast_as_answers_come() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, "offset,size\n0,4096\n0,4096\n").expect("written");
    let report = replay(&line(&path, &[])).expect("runs");
    let value = serde_json::to_value(&report).expect("JSON");
    let row = &value["rows"][0];
    assert_eq!((&row["timing"], &row["block_miss_ratio"]), (&"closed".into(), &0.5.into()));
    let error = replay(&line(&path, &["--timing", "trace"])).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let error = replay(&line(&path, &["--block-size", "5000"])).unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn settings_reach_the_volume_and_nonsense_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace.csv");
    // The pauses of five seconds look idle to writeback.
    let text: String =
        (0..40).map(|at| format!("{},W,{},4096\n", at * 5_000_000, at * 8192)).collect();
    std::fs::write(&path, format!("ts_us,op,offset,size\n{text}")).expect("written");
    let busy = |more: &[&str]| {
        let report = replay(&line(&path, more)).expect("runs");
        let value = serde_json::to_value(&report).expect("JSON");
        let row = &value["rows"][0];
        let busy = row["disk_busy_seconds"].as_f64().zip(row["disk_busy_drained_seconds"].as_f64());
        busy.expect("numbers")
    };
    assert_eq!(busy(&["--idle", "0", "--dirty-age", "0"]).0, 0.0);
    let (while_asked, drained) = busy(&["--idle", "1"]);
    assert!(while_asked > 0.9 * drained && while_asked > 0.0);
    for wrong in [
        ["--dirty-low", "60"],
        ["--writeback-gap", "8G"],
        ["--promote", "12K"],
        ["--promote", "8M"],
    ] {
        assert!(replay(&line(&path, &wrong)).is_err(), "{wrong:?}");
    }
}

#[test]
fn ram_serves_what_fits_and_the_same_money_buys_more_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace.csv");
    // A loop of 100 blocks, and between two rounds 300 others that are written once.
    let block = |op: &str, number: u64| format!("{op},{},4096\n", number * 4096);
    let round = |round: u64| {
        let hot: String = (0..100).map(|number| block("R", number)).collect();
        let once = (0..300).map(|number| block("W", 1000 + round * 300 + number));
        hot + &once.collect::<String>()
    };
    let text: String = (0..5).map(round).collect();
    std::fs::write(&path, format!("op,offset,size\n{text}")).expect("written");
    let rows = |more: &[&str]| {
        let more = [&["--ram", "2M", "--ram-policy", "lru,fifo"], more].concat();
        let report = replay(&line(&path, &more)).expect("runs");
        let value = serde_json::to_value(&report).expect("JSON");
        value["rows"].as_array().expect("rows").clone()
    };
    let found = rows(&["--price", "5"]);
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().expect("a number");
    let [lru, fifo, money] = found.as_slice() else { panic!("{} rows", found.len()) };
    assert_eq!((&lru["ram"]["policy"], &fifo["ram"]["policy"]), (&"lru".into(), &"fifo".into()));
    // In four of five rounds the loop is in RAM, a quarter of all accesses.
    assert_eq!(number(&lru["ram"], "block_hit_ratio"), 0.2);
    assert_eq!(number(lru, "block_miss_ratio"), 0.8);
    let mean = |row: &serde_json::Value| row["reads"]["mean_us"].as_f64().expect("a number");
    assert!(mean(lru) <= mean(money));
    assert!(money["ram"].is_null());
    let more = number(money, "capacity_blocks") - number(lru, "capacity_blocks");
    assert!((2000.0..2700.0).contains(&more), "{more}");
    let deferred = rows(&["--defer", "10"]);
    assert_eq!(number(&deferred[0]["ram"], "deferred_seconds"), 10.0);
    for wrong in [["--price", "0"], ["--ram-policy", "mru"], ["--ram-block", "5000"]] {
        let more = [&["--ram", "2M"], &wrong[..]].concat();
        assert_eq!(replay(&line(&path, &more)).unwrap_err().exit_code(), 2, "{wrong:?}");
    }
}
