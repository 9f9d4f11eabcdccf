//! Jobs and their measurements.

use std::sync::Arc;

use crate::error::LabResult;
use crate::report::rows::Detail;

use crate::virtual_time::access::Workload;
use crate::virtual_time::clients::{self, Span};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::raw::Raw;
use crate::virtual_time::tally::{Found, Sample};
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::World;

use super::published::{Config, Server};

/// One experiment on one server in one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) experiment: String,
    pub(crate) config: String,
    pub(crate) server: Server,
    /// The published system that the configuration corresponds to.
    pub(crate) system: Option<String>,
    pub(crate) durability: Option<&'static str>,
    /// Streams longer than this many bytes went round the cache; 0: none did.
    pub(crate) sequential_cutoff: Option<u64>,
    /// One for each repetition.
    pub(crate) found: Vec<Found>,
    pub(crate) note: Option<String>,
    pub(crate) detail: Option<Arc<Detail>>,
}

/// Input of jobs.
pub(crate) struct Context {
    pub(crate) costs: CpuCosts,
    pub(crate) seed: u64,
    /// Measured times are multiplied by this.
    pub(crate) scale: f64,
}

impl Context {
    /// A seed for one run: the same for every configuration of an experiment.
    pub(crate) fn seed(&self, experiment: &str, repetition: u64) -> u64 {
        // FNV-1a.
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ self.seed;
        for byte in experiment.bytes().chain(repetition.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        hash
    }

    fn span(&self, span: Span) -> Span {
        let requests = span.requests.map(|most| ((most as f64 * self.scale) as u64).max(1));
        Span {
            warm_up: span.warm_up * self.scale,
            seconds: span.seconds * self.scale,
            sample: span.sample * self.scale,
            requests,
            ..span
        }
    }

    /// Clients on a bare device.
    pub(crate) fn raw(
        &self,
        timing: Timing,
        experiment: &str,
        workload: Workload,
        span: Span,
    ) -> LabResult<Found> {
        let seed = self.seed(experiment, 0);
        let mut raw = Raw::new(timing);
        clients::run(&mut raw, Cpu::none(), workload, seed, self.span(span))
    }

    /// Clients on a volume.
    pub(crate) fn volume(
        &self,
        world: &mut World,
        experiment: &str,
        repetition: u64,
        workload: Workload,
        span: Span,
    ) -> LabResult<Found> {
        let seed = self.seed(experiment, repetition);
        let cpu = Cpu::new(self.costs);
        clients::run(world, cpu, workload, seed, self.span(span))
    }
}

/// Work that one thread does from start to end.
pub(crate) struct Job {
    pub(crate) report: &'static str,
    pub(crate) name: String,
    /// About how long it takes, in seconds of a machine's time; long ones begin first.
    pub(crate) weight: f64,
    pub(crate) run: Work,
}

type Work = Box<dyn Fn(&Context) -> LabResult<Vec<Measurement>> + Send + Sync>;

impl Job {
    pub(crate) fn new(
        report: &'static str,
        name: impl Into<String>,
        weight: f64,
        run: impl Fn(&Context) -> LabResult<Vec<Measurement>> + Send + Sync + 'static,
    ) -> Self {
        Job { report, name: name.into(), weight, run: Box::new(run) }
    }
}

fn detail(found: &[Found]) -> Option<Arc<Detail>> {
    let mut all = Found::default();
    for some in found {
        all.add(some);
    }
    let series = match found {
        [one] => one.series.clone(),
        repetitions => each_repetition(repetitions),
    };
    Some(Arc::new(Detail {
        series,
        read_latencies: all.reads.latencies.buckets(),
        write_latencies: all.writes.latencies.buckets(),
    }))
}

/// A sample for each repetition, one after the other.
fn each_repetition(repetitions: &[Found]) -> Vec<Sample> {
    let mut second = 0.0;
    let sample = |found: &Found| {
        second += found.seconds;
        let seconds = found.seconds.max(1e-9);
        Sample {
            second,
            requests_per_second: found.requests() as f64 / seconds,
            hit_ratio: found.gauges.hit_ratio().unwrap_or(0.0),
            dirty_bytes: found.gauges.dirty_bytes,
            disk_busy: found.gauges.disk_busy.0 as f64 / 1e9 / seconds,
            ssd_busy: found.gauges.ssd_busy.0 as f64 / 1e9 / seconds,
        }
    };
    repetitions.iter().map(sample).collect()
}

impl Measurement {
    /// Makes the measurement of a bare model.
    pub(crate) fn of_model(
        server: Server,
        experiment: impl Into<String>,
        found: Vec<Found>,
    ) -> Self {
        let config = if server == Server::Hdd { "model/hdd" } else { "model/ssd" };
        Measurement {
            experiment: experiment.into(),
            config: config.into(),
            server,
            system: None,
            durability: None,
            sequential_cutoff: None,
            detail: detail(&found),
            found,
            note: None,
        }
    }

    /// Makes the measurement of a volume.
    pub(crate) fn of_volume(
        config: &Config,
        experiment: impl Into<String>,
        found: Vec<Found>,
    ) -> Self {
        Measurement {
            experiment: experiment.into(),
            config: config.name.clone(),
            server: Server::Forebay,
            system: config.system.clone(),
            durability: Some(config.settings.durability.name()),
            sequential_cutoff: Some(config.settings.sequential_cutoff),
            detail: detail(&found),
            found,
            note: config.note.clone(),
        }
    }

    /// The same run under another name: its settings are those of a published system too.
    pub(crate) fn also_as(&self, name: &str, system: &str) -> Self {
        Measurement { config: name.into(), system: Some(system.into()), ..self.clone() }
    }
}
