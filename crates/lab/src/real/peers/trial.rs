//! One system in one mode: set up, stamped, warmed, driven, verified, drained, torn down, and its
//! origin compared when it is gone.

use super::dm;
use super::load::{Experiment, warm_up};
use super::results::{Measured, Outcome, Trial, Verified};
use super::system::{Front, Ground, Mode, System};
use super::undo::Undo;
use super::verify::{Stamps, device};
use crate::error::{LabError, LabResult, other};
use crate::process::machine_cpu;
use crate::progress::Progress;

/// Parameters of every trial.
pub(crate) struct Plan {
    pub(crate) experiments: Vec<Experiment>,
    /// Bytes from the start of the front that carry stamps.
    pub(crate) range: u64,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

/// Steps of a trial beside its experiments, for the bar: set-up with stamps, warm-up, check,
/// origin.
pub(crate) const OTHER_STEPS: usize = 4;

const MIB: u64 = 1 << 20;

impl Plan {
    /// Bytes under load; those behind them stay as they are.
    fn file(&self) -> u64 {
        let beside = (self.range / 16 / MIB * MIB).max(MIB);
        self.range.saturating_sub(beside)
    }

    pub(crate) fn steps(&self) -> usize {
        self.experiments.len() + OTHER_STEPS
    }

    /// Runs a whole trial. The trial has the errors; the devices are free and without marks
    /// afterwards, or the trial says why not.
    pub(crate) fn run(
        &self,
        system: &mut dyn System,
        mut trial: Trial,
        mode: Mode,
        ground: &Ground,
        progress: &Progress,
    ) -> Trial {
        let mut undo = Undo::default();
        let mut stamps = Stamps::new(self.seed, self.range);
        let mut result =
            self.drive(system, mode, ground, &mut stamps, &mut undo, &mut trial, progress);
        progress.label(format!("{}: tearing down", trial.name()));
        let mut left = undo.run();
        if let (Ok(verified), Some(shift)) = (&mut result, system.origin_offset()) {
            let compared = if left.is_empty() {
                let origin = device(ground.hdd.path());
                stamps.compare_from(0, &origin, shift, &ground.stop)
            } else {
                Err(other("it could not be torn down, so that the origin was not compared"))
            };
            match compared {
                Ok(bytes) => verified.on_the_origin = Some(bytes),
                Err(error) => result = Err(other(format!("on the origin: {error}"))),
            }
        }
        progress.advance(1);
        left.extend(wipe(ground).err().map(|error| error.to_string()));
        left.extend(dm::left_over().into_iter().map(|name| format!("{name} is still there")));
        trial.torn_down = left.is_empty();
        match result {
            Ok(verified) => {
                trial.verified = Some(verified);
                trial.outcome = Outcome::Done;
            }
            Err(LabError::Interrupted) => trial.reason = Some("interrupted".to_owned()),
            Err(error) => trial.reason = Some(error.to_string()),
        }
        if !trial.torn_down {
            trial.outcome = Outcome::Failed;
            let before =
                trial.reason.take().map_or_else(String::new, |reason| format!("{reason}; "));
            trial.reason = Some(format!("{before}not torn down: {}", left.join("; ")));
        }
        trial
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a trial, each borrowed alone")]
    fn drive(
        &self,
        system: &mut dyn System,
        mode: Mode,
        ground: &Ground,
        stamps: &mut Stamps,
        undo: &mut Undo,
        trial: &mut Trial,
        progress: &Progress,
    ) -> LabResult<Verified> {
        let stop = &ground.stop;
        let name = trial.name();
        progress.label(format!("{name}: setting up"));
        wipe(ground)?;
        let front = system.set_up(mode, ground, undo)?;
        trial.front = Some(front.kind());
        stop.check()?;
        stamps.write_all(&front, stop)?;
        progress.advance(1);

        progress.label(format!("{name}: warming"));
        if mode != Mode::Raw {
            warm_up(self.file()).run(&front, stop)?;
        }
        progress.advance(1);
        for experiment in &self.experiments {
            progress.label(format!("{name}: {} {}", experiment.report, experiment.name));
            trial.rows.push(self.measure(experiment, &front, ground)?);
            progress.advance(1);
        }

        progress.label(format!("{name}: verifying"));
        let beside_the_load = stamps.compare_from(self.file(), &front, 0, stop)?;
        stamps.write_all(&front, stop)?;
        stamps.overwrite(&front, stop)?;
        let through_the_front = stamps.compare_from(0, &front, 0, stop)?;
        progress.label(format!("{name}: draining"));
        system.drain(ground)?;
        progress.advance(1);
        Ok(Verified { beside_the_load, through_the_front, on_the_origin: None })
    }

    fn measure(
        &self,
        experiment: &Experiment,
        front: &Front,
        ground: &Ground,
    ) -> LabResult<Measured> {
        let counters = || Ok::<_, LabError>((machine_cpu()?, ground.ssd.bytes_written()));
        let before = counters()?;
        let job = experiment.job(self.file(), self.seconds);
        let (read, write) = job.run(front, &ground.stop)?;
        let after = counters()?;
        let cpu = after.0.saturating_sub(before.0);
        let ssd = after.1.zip(before.1).map(|(after, before)| after.saturating_sub(before));
        let operations: u64 = read.iter().chain(&write).map(|side| side.operations).sum();
        if operations == 0 {
            return Err(other("no request was answered in the time given"));
        }
        let written = write.map_or(0, |side| side.bytes);
        Ok(Measured {
            report: experiment.report,
            experiment: experiment.name,
            jobs: experiment.jobs,
            depth: experiment.depth,
            read,
            write,
            machine_cpu_us_per_io: cpu.as_secs_f64() * 1e6 / operations as f64,
            ssd_bytes_written: ssd,
            ssd_bytes_per_user_byte: ssd
                .filter(|_| written > 0)
                .map(|bytes| bytes as f64 / written as f64),
            share_of_ssd: None,
        })
    }
}

/// Removes all marks from both devices. Claiming them for this shows that they have no user.
fn wipe(ground: &Ground) -> LabResult<()> {
    ground.ssd.wipe()?;
    ground.hdd.wipe()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_leaves_a_sixteenth_alone_and_at_least_a_megabyte() {
        let plan = |range| Plan { experiments: Vec::new(), range, seconds: 1, seed: 1 };
        assert_eq!(plan(64 * MIB).file(), 60 * MIB);
        assert_eq!(plan(8 * MIB).file(), 7 * MIB);
        assert_eq!(plan(100 * MIB).file(), 94 * MIB);
    }
}
