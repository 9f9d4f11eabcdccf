//! A trace as the command line names it.

use std::path::{Path, PathBuf};

use forebay_core::parse_size;

use crate::error::LabResult;
use crate::progress::Progress;
use crate::trace::{self, Alignment, Format, Request, Requests};
use crate::virtual_time::world::UNIT;

/// The trace of an experiment.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// The trace; may be compressed with zstd
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// Interpretation of a trace.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Reading {
    /// Its format, if it cannot be told from the content: csv, lis, msr, blkparse, iolog, vscsi
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Bytes to add to every offset, so that requests start where blocks do
    #[arg(long, default_value = "0", value_name = "BYTES", value_parser = parse_size)]
    pub(crate) align: u64,
}

impl Reading {
    /// Opens a trace.
    pub(crate) fn open(&self, path: &Path) -> LabResult<Requests> {
        Ok(trace::open(path, self.format, self.align)?)
    }
}

impl Source {
    /// Opens the trace.
    pub(crate) fn open(&self) -> LabResult<Requests> {
        self.reading.open(&self.trace)
    }

    /// Returns the name of its file.
    pub(crate) fn name(&self) -> String {
        name(&self.trace)
    }

    /// Says which `--align` would help, where most requests start within a block.
    pub(crate) fn suggest(&self, alignment: &Alignment) {
        if let Some(better) = alignment.suggestion() {
            eprintln!(
                "{} % of the requests start {} bytes into a block; --align {} would align them.",
                better.percent,
                UNIT - better.shift,
                (self.reading.align + better.shift) % UNIT,
            );
        }
    }
}

/// Passes on all requests of a trace, and returns their alignment.
pub(crate) fn read(
    mut requests: Requests,
    mut each: impl FnMut(Request) -> LabResult<()>,
) -> LabResult<Alignment> {
    let (mut alignment, mut number) = (Alignment::default(), 0u64);
    let progress = Progress::late(requests.file_bytes(), "reading the trace");
    while let Some(request) = requests.next() {
        let request = request?;
        alignment.add(&request);
        each(request)?;
        number += 1;
        if number.is_multiple_of(1 << 14) {
            progress.reach(requests.bytes_read());
        }
    }
    Ok(alignment)
}

/// Returns the name of a file without its directory.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
