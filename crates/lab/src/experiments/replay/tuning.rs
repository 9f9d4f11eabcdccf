//! Settings of the cache that change what a replay finds most, by the names that the operator has
//! for them.

use std::time::Duration;

use forebay_core::{Admission, parse_size};
use forebay_settings::{Setting, Settings};
use serde::Serialize;

use crate::error::LabResult;

use super::usage;

/// Settings on the command line; the others are as in a new volume.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Settings of the volume")]
pub(super) struct Tuning {
    /// Share of the cache that may be dirty before writeback starts
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    dirty_high: Option<u8>,
    /// Share down to which it then goes on
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    dirty_low: Option<u8>,
    /// Age at which a dirty block is written back; 0: never for its age
    #[arg(long, value_name = "SECONDS")]
    dirty_age: Option<u32>,
    /// After so long without a request everything is written back; 0: never
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u32>,
    /// Writes to the origin that writeback keeps in flight
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    writeback_depth: Option<u32>,
    /// Clean blocks between dirty ones that are written along
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    writeback_gap: Option<u64>,
    /// Rule of admission for missed blocks: always, second-hit, ghost:1 to ghost:16
    #[arg(long, value_name = "RULE")]
    admission: Option<Admission>,
    /// A miss brings in its neighbours in the aligned range of this size
    #[arg(long, value_name = "SIZE")]
    promote: Option<String>,
}

impl Tuning {
    /// Puts these settings in.
    pub(super) fn apply(&self, settings: &mut Settings) -> LabResult<()> {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        settings.dirty_high = self.dirty_high.unwrap_or(settings.dirty_high);
        settings.dirty_low = self.dirty_low.unwrap_or(settings.dirty_low);
        settings.dirty_age = self.dirty_age.map_or(settings.dirty_age, seconds);
        settings.idle = self.idle.map_or(settings.idle, seconds);
        settings.writeback_depth = self.writeback_depth.unwrap_or(settings.writeback_depth);
        if let Some(gap) = self.writeback_gap {
            settings.writeback_gap = u32::try_from(gap)
                .map_err(|_| usage(format!("--writeback-gap {gap} is above 1M")))?;
        }
        settings.validate().map_err(usage)?;
        settings.admission = self.admission.unwrap_or(settings.admission);
        if let Some(text) = &self.promote {
            let promote = Setting::find("promote").map_err(usage)?;
            promote.read(settings, text).map_err(usage)?;
        }
        Ok(())
    }
}

/// The same of a volume, as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Tuned {
    dirty_high: u8,
    dirty_low: u8,
    dirty_age_seconds: u64,
    idle_seconds: u64,
    writeback_depth: u32,
    writeback_gap: u32,
    admission: String,
    promote: u64,
}

impl Tuned {
    pub(super) fn of(settings: &Settings) -> Self {
        Tuned {
            dirty_high: settings.dirty_high,
            dirty_low: settings.dirty_low,
            dirty_age_seconds: settings.dirty_age.as_secs(),
            idle_seconds: settings.idle.as_secs(),
            writeback_depth: settings.writeback_depth,
            writeback_gap: settings.writeback_gap,
            admission: settings.admission.to_string(),
            promote: settings.promote,
        }
    }
}
