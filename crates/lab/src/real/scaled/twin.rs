//! An experiment of real time in virtual time: the same sizes, settings and models of devices, so
//! that one can be held against the other.

use super::experiment::{Addresses, Configuration, DeviceKind, Experiment, Preparation};
use crate::error::{LabResult, other};

use crate::virtual_time::access::{Shape, Workload, Zipf};
use crate::virtual_time::clients::{Span, run};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

fn timing(kind: DeviceKind, bytes: u64) -> LabResult<Timing> {
    let model = kind.model().ok_or_else(|| other("there is no RAM in virtual time"))?;
    Ok(Timing::model(model, bytes))
}

/// What an experiment gave in virtual time.
pub(crate) struct Twin {
    /// Both directions together.
    pub(crate) bytes_per_second: f64,
    /// Of reads and writes; `None` if there is no cache.
    pub(crate) hit_ratio: Option<f64>,
}

/// Runs an experiment whose devices are all modelled.
pub(crate) fn measure(
    experiment: &Experiment,
    configuration: Configuration,
    costs: CpuCosts,
    seed: u64,
) -> LabResult<Twin> {
    let (origin, origin_bytes) = configuration.origin(experiment);
    let cache_bytes = configuration.cache_bytes(experiment);
    let mut world = World::new(Plan::new(
        (cache_bytes, timing(experiment.cache, cache_bytes)?),
        (origin_bytes, timing(origin, origin_bytes)?),
        configuration.settings(),
        seed,
    ))?;
    let cpu = Cpu::new(costs);
    if let Some(Preparation { write, bytes, block, depth }) = experiment.preparation {
        let preparation = Workload {
            shape: Shape::Sequential,
            start: 0,
            span: bytes,
            len: block,
            writes: if write { 100 } else { 0 },
            depth: depth as usize,
        };
        run(&mut world, cpu, preparation, seed, Span::requests(bytes / block))?;
    }
    let shape = match experiment.addresses {
        Addresses::Sequential => Shape::Sequential,
        Addresses::Uniform => Shape::Random,
        // The one exponent of the reports.
        Addresses::Zipf(_) => Shape::Zipf(Zipf::new((experiment.span / experiment.block) as u32)),
    };
    let load = Workload {
        shape,
        start: 0,
        span: experiment.span,
        len: experiment.block,
        writes: experiment.write_percent,
        depth: (experiment.jobs * experiment.depth) as usize,
    };
    let ramp = experiment.ramp_seconds as f64;
    let span = Span { warm_up: ramp, ..Span::seconds(experiment.seconds as f64) };
    let found = run(&mut world, cpu, load, seed, span)?;
    Ok(Twin {
        bytes_per_second: found.bytes() as f64 / found.seconds.max(1e-9),
        hit_ratio: found.gauges.hit_ratio().filter(|_| configuration.cached()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::experiment::scaled_down;
    use super::*;

    #[test]
    fn bare_devices_do_what_their_models_say() {
        let costs = CpuCosts { cpu_read: 0, cpu_write: 0, cpu_front: 0, cpu_more: 0 };
        let all = scaled_down().expect("well formed");
        let named = |name| all.iter().map(|(one, _)| one).find(|one| one.name == name);
        let of = |name, configuration| {
            let experiment = named(name).expect("is there").clone().with_time(20);
            let twin = measure(&experiment, configuration, costs, 1).expect("runs");
            twin.bytes_per_second / 1e6
        };
        let random = of("sata/rand-read", Configuration::CacheDevice);
        assert!((random / 203.5 - 1.0).abs() < 0.03, "{random}");
        let sequential = of("sata/seq-write", Configuration::CacheDevice);
        assert!((sequential / 268.0 - 1.0).abs() < 0.03, "{sequential}");
        let ram = named("ram/1x4").expect("is there");
        assert!(measure(ram, Configuration::Writeback, costs, 1).is_err());
    }
}
