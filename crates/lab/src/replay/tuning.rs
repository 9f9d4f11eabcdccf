//! Settings of the cache that change what a replay finds most, by the names that the operator has for
//! them.

use std::time::Duration;

use forebay_core::Admission;
use forebay_core::units::format_size;
use forebay_engine::VolumeSettings;
use serde::Serialize;

use crate::error::LabResult;

use super::{size, usage};

/// What is not given is as in a new volume.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Settings of the volume")]
pub(super) struct Tuning {
    /// Share of the cache that may be dirty before writeback starts
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    dirty_high: Option<u8>,
    /// Share down to which it then goes on
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    dirty_low: Option<u8>,
    /// How long a block may be dirty; 0: for ever
    #[arg(long, value_name = "SECONDS")]
    dirty_age: Option<u32>,
    /// After so long without a request everything is written back; 0: never
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u32>,
    /// Writes to the origin that writeback keeps in flight
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    writeback_depth: Option<u32>,
    /// Clean blocks between dirty ones that are written along
    #[arg(long, value_name = "SIZE")]
    writeback_gap: Option<String>,
    /// Which blocks enter when they are missed: always, second-hit, ghost:1 to ghost:16
    #[arg(long, value_name = "RULE")]
    admission: Option<Admission>,
    /// A miss brings in its neighbours in the aligned range of this size
    #[arg(long, value_name = "SIZE")]
    promote: Option<String>,
}

impl Tuning {
    /// Puts these settings in.
    ///
    /// # Errors
    /// They make no sense.
    pub(super) fn apply(&self, settings: &mut VolumeSettings) -> LabResult<()> {
        let writeback = &mut settings.writeback;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        writeback.dirty_high = self.dirty_high.unwrap_or(writeback.dirty_high);
        writeback.dirty_low = self.dirty_low.unwrap_or(writeback.dirty_low);
        writeback.max_age = self.dirty_age.map_or(writeback.max_age, seconds);
        writeback.idle = self.idle.map_or(writeback.idle, seconds);
        writeback.depth = self.writeback_depth.unwrap_or(writeback.depth);
        if let Some(gap) = &self.writeback_gap {
            writeback.gap_bytes = u32::try_from(size(gap)?)
                .map_err(|_| usage(format!("--writeback-gap {gap} is above 1M")))?;
        }
        writeback.validate().map_err(usage)?;
        settings.admission = self.admission.unwrap_or(settings.admission);
        if let Some(text) = &self.promote {
            let most = VolumeSettings::MOST_PROMOTED;
            let bytes = size(text)?;
            if bytes != 0 && !(bytes.is_power_of_two() && (2048..=most).contains(&bytes)) {
                let most = format_size(most);
                return Err(usage(format!("--promote {text} is no power of two, 2K to {most}")));
            }
            settings.promote = bytes;
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
    pub(super) fn of(settings: &VolumeSettings) -> Self {
        let writeback = &settings.writeback;
        Tuned {
            dirty_high: writeback.dirty_high,
            dirty_low: writeback.dirty_low,
            dirty_age_seconds: writeback.max_age.as_secs(),
            idle_seconds: writeback.idle.as_secs(),
            writeback_depth: writeback.depth,
            writeback_gap: writeback.gap_bytes,
            admission: settings.admission.to_string(),
            promote: settings.promote,
        }
    }
}
