//! Arguments of the verbs about traces.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use forebay_admin::VolumeName;
use forebay_trace::Format;

use super::values::{Words, cache_size, rate, size};
use forebay_daemon::MOST_SECONDS;

/// Arguments of `advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// The trace, a file that may be compressed with zstd
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "live")]
    pub(crate) trace: Option<PathBuf>,

    /// A volume, instead of a trace: use its requests since it was started
    #[arg(long, value_name = "NAME", conflicts_with_all = ["trace", "format", "rate", "align"])]
    pub(crate) live: Option<VolumeName>,

    /// Format of the trace, if the content does not show it: csv, lis, msr, blkparse, iolog, vscsi
    #[arg(long, value_name = "FORMAT", value_parser = Words(Format::ALL), hide_possible_values = true)]
    pub(crate) format: Option<Format>,

    /// Share of the blocks to sample, 0.000001 to 1 [default: as many as fit into a few MB, all of
    /// them in a short trace]
    #[arg(long, value_name = "SHARE", value_parser = rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,

    /// Cache sizes to compare, like 64G,128G [default: powers of two, up to the bytes touched]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = cache_size, allow_hyphen_values = true)]
    pub(crate) sizes: Vec<u64>,

    /// Sizes of a RAM tier to compare, like 1G,4G, in front of the present cache; for a trace in front
    /// of the recommended one. An estimate for LRU caches of which the smaller has nothing that the
    /// larger lacks [default: 64M, 256M, 1G and so on, up to the bytes touched]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = cache_size, allow_hyphen_values = true)]
    pub(crate) ram: Vec<u64>,

    /// Bytes to add to every offset, so that requests start on block boundaries
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0", allow_hyphen_values = true)]
    pub(crate) align: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the curve to this file
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
}

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// How long to record, 1 to 86400 seconds
    #[arg(long, value_name = "N", default_value_t = 60, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    pub(crate) seconds: u64,

    /// The file, which is overwritten, in the format csv [default: standard output]
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}
