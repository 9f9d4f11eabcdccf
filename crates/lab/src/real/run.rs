//! `forebay-lab run`: the reports' fio jobs on a device of the user's own, cached or not.
//!
//! - `book`: the job files that come with the program, and their parameters
//! - `target`: the device that the jobs run on, and whether that may be written to
//! - `remote`: size and first bytes of an NBD export
//! - `table`: repetitions become rows

mod book;
mod remote;
pub(crate) mod table;
mod target;

use std::path::Path;

use forebay_core::parse_size;
use forebay_core::units::format_size;
use serde_json::json;

use crate::error::{LabResult, usage};
use crate::fio::Fio;
use crate::output::show;
use crate::process::Stop;
use crate::progress::Progress;
use book::{Jobs, Scale};
use table::Rows;
use target::Target;

/// Steps of the progress bar for one run of fio.
const STEPS: f64 = 1000.0;

/// Arguments of `forebay-lab run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// mail, maxio, iozone, writeboost, iometer, or a job file of fio that takes its device from
    /// ${TARGET} and its engine from ${ENGINE}
    #[arg(long, value_name = "NAME|FILE.fio")]
    jobs: String,
    /// A file, a block device, or an NBD export (nbd://HOST/NAME, nbd+unix:///NAME?socket=PATH)
    #[arg(long, value_name = "PATH|URI")]
    device: String,
    /// Overwrite what is on the device
    #[arg(long)]
    destroy: bool,
    /// Bytes of the device that are used [default: the report's, or the whole device if it is
    /// smaller]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Seconds of each test [default: the report's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Number of times that everything is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    repetitions: u64,
    /// fio's engine for files and block devices
    #[arg(long, default_value = "libaio", value_parser = ["libaio", "io_uring"])]
    engine: String,
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let jobs = Jobs::find(&args.jobs)?;
    let stop = Stop::on_signals()?;
    let target = Target::find(&args.device, &args.engine)?;
    let scale = scale(args, &jobs, &target)?;
    if jobs.writes() {
        target.check(args.destroy)?;
    }
    let folder = tempfile::Builder::new().prefix("forebay-lab-").tempdir()?;
    let file = folder.path().join("jobs.fio");
    std::fs::write(&file, jobs.text())?;
    let variants = jobs.variants(scale);
    let runs = args.repetitions as usize * variants.len();
    let progress = Progress::new((runs as f64 * STEPS) as u64, "starting fio");
    let mut rows = Rows::default();
    let mut page_cache_dropped = true;
    for repetition in 0..args.repetitions {
        page_cache_dropped &= drop_page_cache();
        for (number, variant) in variants.iter().enumerate() {
            let label = if variant.label.is_empty() { &args.jobs } else { &variant.label };
            progress.label(format!("{label}, {} of {}", repetition + 1, args.repetitions));
            let mut variables = variant.variables.clone();
            variables.extend(target.variables());
            variables.push(("SEED", (repetition + 1).to_string()));
            jobs.check_variables(&variables)?;
            let before = (repetition as usize * variants.len() + number) as f64;
            let fio = Fio {
                file: &file,
                variables: &variables,
                folder: folder.path(),
                read_only: !jobs.writes(),
            };
            let measured =
                fio.run(&stop, &|share| progress.reach(((before + share) * STEPS) as u64))?;
            progress.reach(((before + 1.0) * STEPS) as u64);
            rows.add(&variant.label, measured);
        }
    }
    drop(progress);
    let rows = rows.finish();
    let (Scale { size, seconds }, engine) = (scale, target.engine());
    let common = json!({
        "jobs": args.jobs,
        "device": args.device,
        "engine": engine,
        "size_bytes": size,
        "seconds": seconds,
        "repetitions": args.repetitions,
        "page_cache_dropped": page_cache_dropped,
    });
    show(json, common, &rows, |table| {
        let dropped = match page_cache_dropped {
            true => "page cache dropped before each",
            false => "the page cache was not dropped (root only)",
        };
        let Args { jobs, device, repetitions, .. } = args;
        let size = format_size(size);
        format!(
            "{table}{jobs} on {device} ({engine}), {size}, {seconds} s a test, {repetitions} \
             repetition(s); {dropped}"
        )
    })
}

/// Returns the size of the range and the duration of a test.
fn scale(args: &Args, jobs: &Jobs, target: &Target) -> LabResult<Scale> {
    let published = jobs.published();
    let device = target.size();
    if args.size.is_some_and(|size| size > device) {
        return Err(usage(format!("--size: the device has only {}", format_size(device))));
    }
    let size = args.size.unwrap_or(published.size.unwrap_or(u64::MAX).min(device));
    // Whole units of everything that the jobs use.
    let size = size / book::UNIT * book::UNIT;
    if size == 0 {
        return Err(usage(format!("--size: the jobs need at least {}", format_size(book::UNIT))));
    }
    Ok(Scale { size, seconds: args.seconds.unwrap_or(published.seconds) })
}

/// Whether the kernel has dropped what it had cached of any device; only root may ask for it.
fn drop_page_cache() -> bool {
    rustix::fs::sync();
    std::fs::write(Path::new("/proc/sys/vm/drop_caches"), "3").is_ok()
}
