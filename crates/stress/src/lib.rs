//! Lanes on separate threads, a tiny cache, power cuts, failing devices, and a check of all data
//! that is read.
//!
//! The simulator runs all lanes in one thread; this program runs them as the daemon does. It
//! therefore finds effects that need threads, but is not repeatable: a seed determines the clients'
//! requests, not their timing.
//!
//! - `stamp`: the content of sectors
//! - `model`: the clients' knowledge of the sectors
//! - `disk`: devices with a volatile write cache, and the notes outside the devices
//! - `plan`: the configurations
//! - `client`: the clients of a lane
//! - `own_lane`: the lane itself
//! - `life`: threads, changes of mode, power cuts, an orderly end
//! - `after`: the check of the content after a power cut
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "threads and their timing are what is tried")]

mod after;
mod client;
mod disk;
mod life;
mod model;
mod own_lane;
mod plan;
mod stamp;

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_store::PlantedBug;
use plan::Plan;

/// Maximum number of lanes: each needs its own part of a block.
pub const MOST_LANES: u16 = 8;

/// The amount of work done with one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Lives of devices.
    pub lives: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads and writes that completed immediately.
    pub at_once: u64,
    /// Successful flushes.
    pub flushes: u64,
    /// Failed requests and commands.
    pub errors: u64,
    /// Power cuts after which all sectors were read.
    pub cuts: u64,
    /// Changes of mode.
    pub modes: u64,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tried { lives, reads, writes, at_once, flushes, errors, cuts, modes } = self;
        write!(
            f,
            "{lives} lives, {reads} reads, {writes} writes ({at_once} of both at once), {flushes} flushes, {errors} errors, {cuts} power cuts, {modes} changes of mode"
        )
    }
}

/// A violation of a guarantee.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The observation.
    pub what: String,
    /// When, since the configuration began.
    pub after: Duration,
    /// The work until the violation.
    pub tried: Tried,
}

/// Returns the names of the configurations.
pub fn names() -> Vec<&'static str> {
    Plan::all().iter().map(|plan| plan.name).collect()
}

/// Runs a configuration for a time, with 2 to [`MOST_LANES`] lanes, and with a known bug. An
/// unknown configuration is not run and reports no violation.
///
/// # Errors
/// The first violation of a guarantee.
pub fn run(
    name: &str,
    seed: u64,
    lanes: u16,
    time: Duration,
    bug: Option<PlantedBug>,
) -> Result<Tried, Violation> {
    let mut tried = Tried::default();
    let Some(plan) = Plan::all().into_iter().find(|plan| plan.name == name) else {
        return Ok(tried);
    };
    let began = Instant::now();
    while began.elapsed() < time {
        let left = time.saturating_sub(began.elapsed()).min(plan.life);
        let (seed, lanes) = (seed.wrapping_add(tried.lives), lanes.clamp(2, MOST_LANES));
        let model = life::live(&plan, (seed, bug), lanes, left);
        tried.lives += 1;
        let counts = &model.counts;
        for (sum, count) in [
            (&mut tried.reads, &counts.reads),
            (&mut tried.writes, &counts.writes),
            (&mut tried.at_once, &counts.at_once),
            (&mut tried.flushes, &counts.flushes),
            (&mut tried.errors, &counts.errors),
            (&mut tried.cuts, &counts.cuts),
            (&mut tried.modes, &counts.modes),
        ] {
            *sum += count.load(Ordering::Relaxed);
        }
        if let Some(what) = model.violation() {
            return Err(Violation { what, after: began.elapsed(), tried });
        }
    }
    Ok(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment of each configuration: `make soak` takes longer.
    #[test]
    fn lanes_on_threads_of_their_own_keep_every_promise() {
        for name in names() {
            let tried = run(name, 1, 2, Duration::from_millis(250), None);
            let tried = tried.unwrap_or_else(|wrong| panic!("{name}: {wrong:?}"));
            assert!(tried.reads > 0 && tried.writes > 0, "{name}: {tried}");
        }
    }
}
