//! Repetitions become rows: means and standard deviations.

use serde::Serialize;

use crate::fio::Measured;
use crate::output::Row;
use crate::statistics::{deviation, mean};

/// A mean and its standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) sd: f64,
}

impl Spread {
    /// Summarises any number of values; the deviation of a single one is 0.
    pub(crate) fn of(values: &[f64]) -> Self {
        Spread { mean: mean(values), sd: deviation(values).unwrap_or(0.0) }
    }
}

/// One job in one direction, all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Job {
    /// Run of the job file: `4 MB`, say; empty if there is one only.
    pub(crate) variant: String,
    pub(crate) job: String,
    pub(crate) direction: &'static str,
    pub(crate) repetitions: usize,
    pub(crate) bytes_per_second: Spread,
    pub(crate) iops: Spread,
    pub(crate) mean_us: Spread,
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    /// Bytes of all repetitions.
    pub(crate) total_bytes: u64,
    pub(crate) total_ios: u64,
}

impl Row for Job {
    const COLUMNS: &'static str = "RUN=variant | JOB=job | DIRECTION=direction | B/s=bytes_per_second.mean:bytes | \
        +-=bytes_per_second.sd:bytes | IOPS=iops.mean:0 | +-=iops.sd:0 | \
        MEAN=mean_us.mean:latency | P50=p50_us.mean:latency | P99=p99_us.mean:latency | \
        TOTAL=total_bytes:bytes";
}

/// Measurements so far.
#[derive(Default)]
pub(crate) struct Rows(Vec<(String, Vec<Measured>)>);

impl Rows {
    /// Adds one run of fio.
    pub(crate) fn add(&mut self, variant: &str, measured: Vec<Measured>) {
        for one in measured {
            let same = |(label, others): &&mut (String, Vec<Measured>)| {
                let first = others.first();
                label == variant
                    && first.is_some_and(|first| {
                        first.job == one.job && first.direction == one.direction
                    })
            };
            match self.0.iter_mut().find(same) {
                Some((_, others)) => others.push(one),
                None => self.0.push((variant.to_owned(), vec![one])),
            }
        }
    }

    /// One row for each job, direction and run of the job file.
    pub(crate) fn finish(self) -> Vec<Job> {
        self.0.into_iter().filter_map(|(variant, all)| row(variant, &all)).collect()
    }
}

fn row(variant: String, all: &[Measured]) -> Option<Job> {
    let first = all.first()?;
    let spread =
        |field: fn(&Measured) -> f64| Spread::of(&all.iter().map(field).collect::<Vec<f64>>());
    Some(Job {
        variant,
        job: first.job.clone(),
        direction: first.direction,
        repetitions: all.len(),
        bytes_per_second: spread(|one| one.bytes_per_second),
        iops: spread(|one| one.iops),
        mean_us: spread(|one| one.mean_us),
        p50_us: spread(|one| one.p50_us),
        p99_us: spread(|one| one.p99_us),
        total_bytes: all.iter().map(|one| one.total_bytes).sum(),
        total_ios: all.iter().map(|one| one.total_ios).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(job: &str, direction: &'static str, iops: f64) -> Measured {
        Measured {
            job: job.to_owned(),
            direction,
            bytes_per_second: iops * 4096.0,
            iops,
            mean_us: 10.0,
            p50_us: 9.0,
            p99_us: 2_500.0,
            total_bytes: 4096,
            total_ios: 1,
        }
    }

    #[test]
    fn repetitions_of_the_same_job_come_together() {
        let mut rows = Rows::default();
        for iops in [90.0, 100.0, 110.0] {
            rows.add("", vec![measured("mixed", "read", iops), measured("mixed", "write", 1.0)]);
        }
        rows.add("4 MB", vec![measured("mixed", "read", 5.0)]);
        let rows = rows.finish();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].iops, Spread { mean: 100.0, sd: 10.0 });
        assert_eq!((rows[0].repetitions, rows[0].total_ios, rows[1].direction), (3, 3, "write"));
        assert_eq!((rows[2].variant.as_str(), rows[2].iops.sd), ("4 MB", 0.0));
    }
}
