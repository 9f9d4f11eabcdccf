//! `forebay-lab peers`: other caches on two devices of this host, side by side with Forebay. Each
//! is set up, warmed, put under the load of two of the reports, its data verified, and torn down
//! whatever happens.
//!
//! - `system`: the interface of a cache; `raw`, `bcache`, `mapped`, `opencas`, `forebay`, `nbdkit`:
//!   the compared caches
//! - `disk`: the devices, and the checks before anything is written
//! - `trial`: one system in one mode, from set-up to tear-down; `undo`: steps of the tear-down
//! - `load`: fio; `verify`, `blocks`: the data
//! - `results`: cost and results
//! - `dm`, `host`: device-mapper, and the kernel's files

mod bcache;
mod blocks;
mod disk;
mod dm;
mod forebay;
mod host;
mod load;
mod mapped;
mod nbdkit;
mod opencas;
mod raw;
mod results;
mod system;
mod trial;
mod undo;
mod verify;

use std::path::PathBuf;

use clap::ValueEnum;
use forebay_core::parse_size;

use crate::error::{LabError, LabResult, other, usage};
use crate::output::print_json;
use crate::process::{Stop, find_program};
use crate::progress::Progress;
use disk::{Disk, check_separate};
use results::{Outcome, Report, Trial};
use system::{Ground, System};
use trial::Plan;

/// The range that is used of larger devices, as in the published comparison.
const LARGEST_RANGE: u64 = 20 << 30;
/// The smallest range.
const SMALLEST_RANGE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// A system that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    #[value(skip)]
    RawSsd,
    #[value(skip)]
    RawHdd,
    Bcache,
    DmCache,
    DmWritecache,
    DmWriteboost,
    Opencas,
    /// Forebay, through the kernel's NBD client where there is one
    Forebay,
    /// Forebay, over NBD as nbdkit
    ForebayNbd,
    NbdkitCache,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::RawSsd => "raw-ssd",
            Kind::RawHdd => "raw-hdd",
            Kind::Bcache => "bcache",
            Kind::DmCache => "dm-cache",
            Kind::DmWritecache => "dm-writecache",
            Kind::DmWriteboost => "dm-writeboost",
            Kind::Opencas => "opencas",
            Kind::Forebay => "forebay",
            Kind::ForebayNbd => "forebay-nbd",
            Kind::NbdkitCache => "nbdkit-cache",
        }
    }

    fn make(self) -> Box<dyn System> {
        match self {
            Kind::RawSsd => Box::new(raw::Raw::Ssd),
            Kind::RawHdd => Box::new(raw::Raw::Hdd),
            Kind::Bcache => Box::new(bcache::Bcache::default()),
            Kind::DmCache => Box::new(mapped::DmCache::default()),
            Kind::DmWritecache => Box::new(mapped::WriteCache::Plain),
            Kind::DmWriteboost => Box::new(mapped::WriteCache::Boost),
            Kind::Opencas => Box::new(opencas::OpenCas),
            Kind::Forebay => Box::new(forebay::Forebay::new(true)),
            Kind::ForebayNbd => Box::new(forebay::Forebay::new(false)),
            Kind::NbdkitCache => Box::new(nbdkit::Nbdkit::default()),
        }
    }
}

/// Arguments of `forebay-lab peers`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The fast device, or a file in its place
    #[arg(long, value_name = "PATH")]
    ssd: PathBuf,
    /// The origin: the slow device, or a file in its place
    #[arg(long, value_name = "PATH")]
    hdd: PathBuf,
    /// Overwrite both devices
    #[arg(long)]
    destroy: bool,
    /// The systems
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "bcache,dm-cache,dm-writecache,dm-writeboost,opencas,forebay,forebay-nbd,nbdkit-cache"
    )]
    systems: Vec<Kind>,
    /// Leave the raw devices out: nothing is put beside them then
    #[arg(long)]
    without_raw: bool,
    /// The experiments of one report
    #[arg(long)]
    only: Option<load::Of>,
    /// Seconds of one experiment
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Bytes that are used of the origin [default: as many as the fast device has, 20G at most]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    range: Option<u64>,
    /// The program forebay [default: the one beside this program, or on the PATH]
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let (ssd, hdd) = look(args)?;
    let range = range(args, &ssd, &hdd)?;
    if find_program("fio").is_none() {
        return Err(other("fio is missing; install fio"));
    }
    let folder = tempfile::Builder::new().prefix("forebay-peers-").tempdir()?;
    let stop = Stop::on_signals()?;
    let mut report = Report {
        ssd: ssd.name(),
        hdd: hdd.name(),
        ssd_bytes: ssd.size(),
        hdd_bytes: hdd.size(),
        range_bytes: range,
        seconds: args.seconds,
        trials: Vec::new(),
    };
    let ground = Ground { ssd, hdd, folder: folder.path().to_owned(), forebay: binary(args), stop };
    let plan = Plan {
        experiments: load::list(args.only),
        range,
        seconds: args.seconds,
        seed: 0x5045_4552,
    };
    compare(args, &plan, &ground, &mut report);
    report.compare();
    if json {
        print_json(&report)?;
    } else {
        print!("{}", report.render()?);
        println!(
            "{} s each on {} MiB; CPU: all processors of the machine without idle time, divided by requests, the load generator's work included",
            args.seconds,
            range / MIB
        );
    }
    judge(&report, &ground.stop)
}

/// Every system in every mode, the raw devices first.
fn compare(args: &Args, plan: &Plan, ground: &Ground, report: &mut Report) {
    let raw = [Kind::RawSsd, Kind::RawHdd];
    let raw = if args.without_raw { &[][..] } else { &raw };
    let kinds = raw.iter().chain(&args.systems);
    let mut runs = Vec::new();
    for kind in kinds {
        let (name, system) = (kind.name(), kind.make());
        match system.available(ground) {
            Ok(()) => runs.extend(system.modes().iter().map(|&mode| (name, mode, kind.make()))),
            Err(why) => {
                let mut trial = Trial::new(name, None);
                trial.outcome = Outcome::Skipped;
                trial.reason = Some(why.to_string());
                trial.torn_down = true;
                report.trials.push(trial);
            }
        }
    }
    let progress = Progress::new((runs.len() * plan.steps()) as u64, "starting");
    for (name, mode, mut system) in runs {
        if ground.stop.is_asked() {
            break;
        }
        let trial = Trial::new(name, Some(mode));
        let trial = plan.run(&mut *system, trial, mode, ground, &progress);
        progress.line(&trial.summary());
        report.trials.push(trial);
    }
}

/// Both devices, if they may be overwritten. Nothing has been written when this returns.
fn look(args: &Args) -> LabResult<(Disk, Disk)> {
    let ssd = Disk::look("--ssd", &args.ssd)?;
    let hdd = Disk::look("--hdd", &args.hdd)?;
    check_separate(&ssd, &hdd)?;
    for (option, disk) in [("--ssd", &ssd), ("--hdd", &hdd)] {
        if !args.destroy {
            let holds = disk.signature().map_or_else(
                || "no mark of a system is on it, and there may be data".to_owned(),
                |what| format!("it holds {what}"),
            );
            return Err(LabError::AtRisk(format!(
                "{option}: {} would be overwritten ({holds}); say --destroy if that is meant",
                disk.name()
            )));
        }
        if let Some(what) = disk.signature() {
            eprintln!("forebay-lab: {} holds {what}, which is destroyed", disk.name());
        }
    }
    Ok((ssd, hdd))
}

/// Whole megabytes that both devices have; bcache takes a few kilobytes of the origin.
fn range(args: &Args, ssd: &Disk, hdd: &Disk) -> LabResult<u64> {
    let most = ssd.size().min(hdd.size().saturating_sub(MIB)) / MIB * MIB;
    let range = args.range.unwrap_or(most.min(LARGEST_RANGE));
    if range < SMALLEST_RANGE || range > most || !range.is_multiple_of(MIB) {
        return Err(usage(format!(
            "--range: {range} bytes; whole megabytes from {SMALLEST_RANGE} to {most} fit these devices"
        )));
    }
    Ok(range)
}

/// The daemon's program.
fn binary(args: &Args) -> Option<PathBuf> {
    let beside = || std::env::current_exe().ok()?.parent().map(|folder| folder.join("forebay"));
    let named = args.forebay.clone().or_else(|| beside().filter(|path| path.is_file()));
    named.filter(|path| path.is_file()).or_else(|| find_program("forebay"))
}

/// Whether everything that could be run was right.
fn judge(report: &Report, stop: &Stop) -> LabResult<()> {
    let failed: Vec<String> = report
        .trials
        .iter()
        .filter(|trial| trial.outcome == Outcome::Failed)
        .map(Trial::name)
        .collect();
    if stop.is_asked() {
        let left = report.trials.iter().filter(|trial| !trial.torn_down).count();
        let what = if left == 0 { "everything was torn down" } else { "see what is left above" };
        return Err(other(format!("interrupted; {what}")));
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(other(format!("failed: {}", failed.join(", "))))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(folder: &std::path::Path, more: &[&str]) -> Args {
        for name in ["ssd", "hdd"] {
            let file = std::fs::File::create(folder.join(name)).expect("writable");
            file.set_len(disk::SMALLEST).expect("writable");
        }
        let (ssd, hdd) = (folder.join("ssd"), folder.join("hdd"));
        let words = ["x", "--ssd"].map(PathBuf::from).into_iter().chain([ssd, "--hdd".into(), hdd]);
        let words = words.chain(more.iter().map(PathBuf::from));
        Line::try_parse_from(words).expect("well formed").args
    }

    #[test]
    fn nothing_is_overwritten_without_being_told_to() {
        let folder = tempfile::tempdir().expect("a directory");
        let spared = args(folder.path(), &[]);
        std::fs::write(folder.path().join("hdd"), vec![7; disk::SMALLEST as usize]).expect("room");
        let error = run(&spared, true).expect_err("it has to be told").to_string();
        assert!(error.contains("--destroy"), "{error}");
        let content = std::fs::read(folder.path().join("hdd")).expect("readable");
        assert!(content.iter().all(|&byte| byte == 7));
        assert!(look(&args(folder.path(), &["--destroy"])).is_ok());
    }

    #[test]
    fn the_range_fits_both_devices() {
        let folder = tempfile::tempdir().expect("a directory");
        let range_of = |more: &[&str]| {
            let args = args(folder.path(), more);
            let (ssd, hdd) = look(&args).expect("good");
            range(&args, &ssd, &hdd).ok()
        };
        assert_eq!(range_of(&["--destroy"]), Some(63 * MIB));
        assert_eq!(range_of(&["--destroy", "--range", "20M"]), Some(20 * MIB));
        for bad in ["64M", "1M", "20000001"] {
            assert_eq!(range_of(&["--destroy", "--range", bad]), None, "{bad}");
        }
    }

    #[test]
    fn every_system_has_a_name_that_is_the_one_on_the_command_line() {
        for kind in Kind::value_variants() {
            let value = kind.to_possible_value().expect("it can be named");
            assert_eq!(value.get_name(), kind.name());
        }
    }
}
