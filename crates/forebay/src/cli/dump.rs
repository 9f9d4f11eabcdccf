//! `forebay dump`: prints the content of a cache device that no daemon uses.

use clap::{Args, ValueHint};
use forebay_offline::dump::{self, Options};

use super::check::local;
use crate::exit::VerbResult;
use crate::output::print_text;

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// The cache device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: String,

    /// Print the header of every record in the log too
    #[arg(long)]
    pub(crate) records: bool,

    /// Print every block in the headers too
    #[arg(long)]
    pub(crate) entries: bool,

    /// Print JSON, one value per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the content of a cache device; reads only.
pub(crate) fn run(args: &DumpArgs) -> VerbResult {
    let &DumpArgs { records, entries, json, .. } = args;
    dump::run(&local(&args.device)?, Options { records, entries, json }, print_text)
}
