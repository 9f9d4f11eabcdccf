//! A small made-up result for tests: one report with charts for each experiment, one with panels.

use serde_json::{Value, json};

use super::rows::Rows;

fn row(report: &str, experiment: &str, config: &str, metric: &str, more: Value) -> Value {
    let mut row = json!({
        "report": report, "experiment": experiment, "config": config, "metric": metric,
        "published": {"disk": 200.0, "ssd": 40_000.0, "slow": 9_000.0, "quick": 30_000.0},
        "model_hdd": 201.0, "model_ssd": 40_100.0, "repetitions": 1,
        "hit_ratio": null, "goal": null, "note": null,
    });
    if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
        row.extend(more);
    }
    row
}

fn few() -> Vec<Value> {
    let at = |experiment, config, metric, more| row("900", experiment, config, metric, more);
    vec![
        at(
            "fast",
            "model/hdd",
            "iops",
            json!({"value": 201.0, "baseline": {"error": 0.005, "good": true}}),
        ),
        at(
            "fast",
            "model/ssd",
            "iops",
            json!({"value": 44_100.0, "baseline": {"error": 0.1, "good": false}}),
        ),
        at(
            "fast",
            "forebay/writeback",
            "iops",
            json!({
                "value": 42_345.0, "sequential_cutoff": 0, "sd": 100.0, "repetitions": 3, "share_of_ssd": 1.056,
                "hit_ratio": 0.9, "p50_us": 80.0, "p99_us": 300.0, "disk_busy": 0.5,
                "goal": {"at_least": 1.0, "met": true}, "note": "Bound: 1.1 of the SSD.", "detail": detail(),
            }),
        ),
        at(
            "fast",
            "forebay/writeback strict",
            "iops",
            json!({"value": 20_000.0, "share_of_ssd": 0.5, "goal": {"at_least": 0.9, "met": false}}),
        ),
        at(
            "fast",
            "forebay/writeback",
            "write_mean_ms",
            json!({"value": 3.21, "share_of_ssd": 2.0, "published": {"ssd": 1.5, "quick": 1.8}}),
        ),
        at(
            "a <b>|`c`",
            "forebay/writeback",
            "iops",
            json!({"value": 10_500.0, "share_of_ssd": 0.26, "note": "A <b>bold</b> & `odd` | note.", "detail": detail()}),
        ),
        at("only", "published only", "iops", json!({"note": "Not run."})),
    ]
}

fn many() -> Vec<Value> {
    let mut rows = Vec::new();
    for size in ["1M", "4M"] {
        for test in 0..13 {
            let name = format!("{size}/test{test}");
            for config in ["model/ssd", "forebay/writeback", "forebay as quick"] {
                let value = 1000.0 * f64::from(test + 1);
                let more = json!({
                    "value": value, "sd": value / 20.0, "repetitions": 10, "p50_us": value,
                    "p99_us": value * 3.0, "share_of_ssd": 0.95,
                    "published_sd": {"ssd": 300.0, "quick": 200.0}, "detail": detail(),
                });
                rows.push(row("901", &name, config, "kib_per_s", more));
            }
        }
    }
    rows
}

fn detail() -> Value {
    let sample = |(second, hit_ratio, dirty, busy): (f64, f64, u64, f64)| {
        json!({
            "second": second, "requests_per_second": 1.0, "hit_ratio": hit_ratio,
            "dirty_bytes": dirty, "disk_busy": busy, "ssd_busy": 0.5,
        })
    };
    let series =
        [(1.0, 0.0, 0, 1.0), (2.0, 0.5, 1_000_000, 0.9), (3.0, 0.9, 5_000_000, 0.0)].map(sample);
    json!({
        "series": series, "write_latencies": [],
        "read_latencies": [[80.0, 900], [120.0, 90], [9000.0, 10]],
    })
}

/// As `seeds --save` would write it.
pub(super) fn text() -> String {
    let rows: Vec<Value> = few().into_iter().chain(many()).collect();
    json!({
        "seed": 1, "scale": 1.0, "rows": rows,
        "about": {
            "command": "forebay-lab seeds --seed 1", "revision": "abc",
            "reports": [{"number": "900", "title": "Made up", "cautions": ["Nothing <b>real</b>."]}],
        },
    })
    .to_string()
}

/// The same, read.
pub(super) fn input() -> Rows {
    serde_json::from_str(&text()).expect("is a result")
}
