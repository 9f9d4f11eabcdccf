//! The experiments of two of the reports, with their job parameters.
//!
//! 000, EnhanceIO's announcement: 4 KiB, 90 % reads, zipf 1.2, 4 jobs of depth 8, after a sequential
//! read of 90 % of the file. 003, dm-writeboost against bcache: 4 KiB random writes, jobs x depth.

use clap::ValueEnum;

use super::fio::{Job, Pattern};

/// A report whose experiments are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Of {
    /// EnhanceIO against bcache and dm-cache
    #[value(name = "000")]
    Mail,
    /// dm-writeboost against bcache
    #[value(name = "003")]
    Writeboost,
}

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Experiment {
    pub(crate) report: &'static str,
    pub(crate) name: &'static str,
    pattern: Pattern,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
}

impl Experiment {
    /// Its job on the first `size` bytes.
    pub(crate) fn job(&self, size: u64, seconds: u64) -> Job {
        Job { pattern: self.pattern, jobs: self.jobs, depth: self.depth, size, seconds }
    }
}

/// The experiments of a report, or of both.
pub(crate) fn list(only: Option<Of>) -> Vec<Experiment> {
    let write = |name, jobs, depth| Experiment {
        report: "003",
        name,
        pattern: Pattern::Write,
        jobs,
        depth,
    };
    let all = [
        Experiment {
            report: "000",
            name: "mix",
            pattern: Pattern::Mixed { reads: 90, zipf: 1.2 },
            jobs: 4,
            depth: 8,
        },
        write("1x4", 1, 4),
        write("1x32", 1, 32),
        write("4x4", 4, 4),
        write("4x32", 4, 32),
    ];
    let wanted = only.map(|only| if only == Of::Mail { "000" } else { "003" });
    all.into_iter().filter(|one| wanted.is_none_or(|report| one.report == report)).collect()
}

/// The warm-up: a sequential read of 90 % of the file, 4 KiB each, eight in flight.
pub(crate) fn warm_up(file: u64) -> Job {
    let size = file / 10 * 9 / 4096 * 4096;
    Job { pattern: Pattern::ReadOnce, jobs: 1, depth: 8, size, seconds: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_in_one_report() {
        let (mail, boost) = (list(Some(Of::Mail)), list(Some(Of::Writeboost)));
        assert_eq!((mail.len(), boost.len()), (1, 4));
        assert_eq!(list(None), [mail, boost].concat());
        for one in list(None).iter().filter(|one| one.report == "003") {
            assert_eq!(one.name, format!("{}x{}", one.jobs, one.depth));
        }
    }

    #[test]
    fn the_warm_up_reads_nine_tenths_in_whole_blocks() {
        let job = warm_up(10 << 20);
        assert_eq!((job.size, job.pattern), ((9 << 20), Pattern::ReadOnce));
    }
}
