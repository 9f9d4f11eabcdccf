//! The whole daemon, with its lanes and the engine, in a simulation of threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_daemon::Opener;
use forebay_daemon::embedded::{ApiResponse, Embedded, Environment};
use forebay_device::{Access, Device, DeviceSpec, OpenError, RamDevice};
use forebay_testkit::TempDir;
use forebay_threads::{Mutex, Plan, Simulation, sleep};
use serde_json::{Value, json};

/// Bytes of each device.
const SIZE: u64 = 64 << 20;

/// Devices in RAM, by name. They keep their content while no daemon runs.
#[derive(Default)]
struct Disks(Mutex<BTreeMap<String, Arc<RamDevice>>>);

impl Opener for Disks {
    fn open(&self, spec: &DeviceSpec, _: Access) -> Result<Arc<dyn Device>, OpenError> {
        let mut all = self.0.lock();
        let disk = all.entry(format!("{spec:?}"));
        Ok(disk.or_insert_with(|| RamDevice::new("disk", SIZE).expect("memory")).clone())
    }
}

impl Disks {
    /// Whether any disk is open.
    fn are_in_use(&self) -> bool {
        self.0.lock().values().any(|disk| Arc::strong_count(disk) > 1)
    }
}

fn open(dir: &TempDir, disks: &Arc<Disks>) -> Embedded {
    let environment = Environment {
        state_dir: dir.path().join("state"),
        state_lock: None,
        hand_overs: 0,
        front_ends: Vec::new(),
        opener: disks.clone(),
        lanes: 2,
        memory_limit: 256 << 20,
    };
    let daemon = Embedded::open(environment).expect("a daemon");
    daemon.restore().expect("threads");
    daemon
}

/// Gives a command, and waits for its end.
fn command(daemon: &Embedded, target: &str, body: &Value) -> ApiResponse {
    let mut answer = daemon.ask("POST", target, body);
    while answer.body["state"] == "running" {
        sleep(Duration::from_millis(50));
        let operation = format!("/v1/operations/{}", answer.body["id"]);
        answer = daemon.ask("GET", &operation, &Value::Null);
    }
    answer
}

/// A daemon that is killed during a command, and the next one.
fn two_lives(steps: u32) {
    let (dir, disks) = (TempDir::in_memory("simulated"), Arc::<Disks>::default());
    // Names of devices are looked up outside of the simulation.
    let path = |name: &str| {
        let path = dir.path().join(name);
        let file = std::fs::File::create(&path).expect("writable");
        file.set_len(SIZE).expect("writable");
        path.display().to_string()
    };
    let body = json!({ "name": "v", "cache": path("cache"), "origin": path("origin") });
    let daemon = Arc::new(open(&dir, &disks));
    let created = command(&daemon, "/v1/volumes", &body);
    assert_eq!(created.body["state"], "done", "{created:?}");
    let own = daemon.clone();
    let commands = move || {
        for verb in ["stop", "start"].repeat(3) {
            let done = command(&own, &format!("/v1/volumes/v/{verb}"), &json!({}));
            assert_eq!(done.body["state"], "done", "{done:?}");
        }
    };
    drop(forebay_threads::spawn("client", commands).expect("a thread"));
    (0..steps).for_each(|_| forebay_threads::step());
    Simulation::current().expect("simulated").crash();
    drop(Arc::into_inner(daemon).expect("the client has ended"));
    assert!(!disks.are_in_use(), "something of the killed daemon is left");
    let daemon = open(&dir, &disks);
    let started = command(&daemon, "/v1/volumes/v/start", &json!({}));
    assert_eq!(started.body["state"], "done", "{started:?}");
    daemon.shut_down().expect("a clean end");
    drop(daemon);
    assert!(!disks.are_in_use());
}

#[test]
fn a_daemon_is_killed_anywhere_and_a_seed_repeats_it() {
    for seed in 0..12 {
        let run = || {
            let plan = Plan::seed(seed).most_time(Duration::from_secs(3600));
            Simulation::run(plan, move || two_lives(seed as u32 * 150))
        };
        let (one, other) = (run(), run());
        assert_eq!((one.trace, one.steps, one.time), (other.trace, other.steps, other.time));
        one.unwrap();
    }
}
