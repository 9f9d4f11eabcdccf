//! `forebay check`: verifies a cache device that no daemon uses.

use std::time::Instant;

use clap::{Args, ValueHint};
use forebay_admin::{ApiError, Progress, Unit};
use forebay_offline::check;

use super::progress::Display;
use crate::exit::VerbResult;
use crate::output::volume::grouped;
use crate::output::{json, print_text};
use crate::values;
use forebay_daemon::devices::DeviceName;
use forebay_daemon::memory_limit;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The cache device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: String,

    /// Verify the structures only, not the content of every block
    #[arg(long)]
    pub(crate) quick: bool,

    /// Memory limit; a cache whose index exceeds it is refused [default: half of the machine's
    /// memory, or three quarters of the control group's if that is less]
    #[arg(long, value_name = "SIZE", value_parser = values::memory_limit, allow_hyphen_values = true)]
    pub(crate) memory_limit: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Verifies a cache device; reads only.
pub(crate) fn run(args: &CheckArgs) -> VerbResult {
    let started = Instant::now();
    let mut display = Display::new("Checking");
    // The sizes that the device claims are not to be trusted.
    let memory = memory_limit(args.memory_limit)?;
    let report = check::run(&local(&args.device)?, args.quick, memory, |done, total| {
        let progress = Progress { done, total, unit: Unit::Segments };
        display.show("Checking", progress, started.elapsed());
    });
    display.end();
    let report = report?;
    if args.json {
        json::print(&check::as_json(&args.device, &report))?;
    } else {
        print_text(&check::as_text(&args.device, &report))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    let found = match check::problems(&report) {
        1 => "1 problem was found".to_owned(),
        many => format!("{} problems were found", grouped(many)),
    };
    Err(ApiError::failed(format!("{}: {found}", args.device)))
}

/// Returns the whole name of a cache device, which is one of this machine.
///
/// # Errors
/// It is none.
pub(super) fn local(device: &str) -> Result<String, ApiError> {
    let name = DeviceName::parse("DEVICE", device)?;
    if name.path.is_none() {
        let reason = "RAM is empty in every process, and a cache device belongs to this machine; name a \
            file or a block device";
        return Err(ApiError::invalid("DEVICE", reason));
    }
    Ok(name.text)
}
