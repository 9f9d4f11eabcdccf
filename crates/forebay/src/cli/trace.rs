//! `forebay trace`: records the requests of a volume's clients.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use forebay_admin::{ApiError, VolumeName, api};

use super::progress::Display;
use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::note;
use forebay_daemon::MOST_SECONDS;

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Seconds to record, 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 60, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    pub(crate) seconds: u64,

    /// The file, which is overwritten, in the format csv [default: standard output]
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// The beginning of the last line.
const LAST: &str = "# requests=";

/// Longest end of the trace that is kept to find its last line.
const TAIL: usize = 256;

/// Records for the given time. The file keeps all received requests, also after an error.
pub(crate) fn run(client: &DaemonClient, args: &TraceArgs) -> VerbResult {
    let TraceArgs { name, seconds, output } = args;
    let path = format!("{}?seconds={seconds}", api::TRACE.path(name));
    let mut target: Option<Box<dyn Write>> = None;
    let (mut tail, mut written) = (Vec::new(), 0);
    // Lines of the trace on the same terminal would break the display.
    let quiet = output.is_none() && std::io::stdout().is_terminal();
    let mut clock = None;
    let ended = client.download(&path, Duration::from_secs(*seconds), |bytes| {
        // Open the file only now, so that a refused request overwrites none.
        let target = match &mut target {
            Some(target) => target,
            none => none.insert(open(args)?),
        };
        if !quiet {
            written += bytes.len() as u64;
            let clock =
                clock.get_or_insert_with(|| Display::clock(&format!("Recording {name}"), *seconds));
            clock.amount(written);
        }
        tail.extend_from_slice(bytes);
        tail.drain(..tail.len().saturating_sub(TAIL));
        target.write_all(bytes).map_err(|error| unwritable(args, &error))
    });
    if let Some(clock) = clock {
        clock.end();
    }
    ended?;
    if let Some(target) = &mut target {
        target.flush().map_err(|error| unwritable(args, &error))?;
    }
    let tail = String::from_utf8_lossy(&tail);
    let Some((_, end)) = tail.trim_end().rsplit_once(LAST) else {
        return Err(ApiError::failed(
            "the daemon ended the trace early; the output has the requests up to then",
        ));
    };
    let number = |name: &str| {
        let mut fields = end.split(' ');
        fields.find_map(|field| field.strip_prefix(name)).unwrap_or_default()
    };
    let (requests, _) = end.split_once(' ').unwrap_or((end, ""));
    let place = output.as_ref().map_or_else(String::new, |path| format!(" in {}", path.display()));
    note(&format!("{name}: {requests} requests in {} s{place}", number("seconds=")));
    match number("left_out=") {
        "0" => Ok(()),
        left_out => {
            let message = format!(
                "{left_out} more requests are left out: they came faster than they could be written"
            );
            Err(ApiError::failed(message))
        }
    }
}

fn open(args: &TraceArgs) -> Result<Box<dyn Write>, ApiError> {
    Ok(match &args.output {
        Some(path) => Box::new(File::create(path).map_err(|error| unwritable(args, &error))?),
        None => Box::new(std::io::stdout().lock()),
    })
}

fn unwritable(args: &TraceArgs, error: &std::io::Error) -> ApiError {
    let path = args.output.as_ref().map_or("standard output".into(), |path| path.to_string_lossy());
    ApiError::failed(format!("{path} cannot be written: {error}"))
}
