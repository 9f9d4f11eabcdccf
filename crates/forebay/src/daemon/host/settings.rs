//! Settings: what the operator says and what the engine takes.

use forebay_admin::Settings;
use forebay_core::Mode;
use forebay_engine::VolumeSettings;

use crate::daemon::host_api::Definition;

/// Settings of a volume for the engine.
pub(super) fn of(volume: &Definition) -> VolumeSettings {
    VolumeSettings { version: volume.version, ..for_engine(&volume.settings) }
}

/// Settings for the engine. What the operator cannot set has its default.
fn for_engine(settings: &Settings) -> VolumeSettings {
    let mut out = VolumeSettings {
        mode: settings.mode,
        durability: settings.durability,
        policy: settings.policy,
        sequential_cutoff: settings.sequential_cutoff,
        admission: settings.admission,
        write_budget: settings.write_budget,
        promote: settings.promote,
        congested_read: settings.congested_read_threshold,
        congested_write: settings.congested_write_threshold,
        ordered: settings.ordered,
        commit_interval: settings.commit_interval,
        ..VolumeSettings::default()
    };
    let writeback = &mut out.writeback;
    writeback.running = settings.writeback_running;
    writeback.dirty_high = settings.dirty_high;
    writeback.dirty_low = settings.dirty_low;
    writeback.max_age = settings.dirty_age;
    writeback.idle = settings.idle;
    writeback.depth = settings.writeback_depth;
    writeback.cache_dirty_high = settings.cache_dirty_high;
    writeback.cache_dirty_low = settings.cache_dirty_low;
    writeback.gap_bytes = settings.writeback_gap;
    writeback.rate_min = settings.writeback_rate_min;
    writeback.rate_max = settings.writeback_rate_max;
    writeback.latency = settings.writeback_latency;
    writeback.quiet_hours = settings.quiet_hours;
    out
}

/// Settings as the engine has them, for the operator.
pub(super) fn for_operator(settings: &VolumeSettings) -> Settings {
    Settings {
        mode: settings.mode,
        policy: settings.policy,
        durability: settings.durability,
        sequential_cutoff: settings.sequential_cutoff,
        admission: settings.admission,
        write_budget: settings.write_budget,
        promote: settings.promote,
        congested_read_threshold: settings.congested_read,
        congested_write_threshold: settings.congested_write,
        dirty_high: settings.writeback.dirty_high,
        dirty_low: settings.writeback.dirty_low,
        dirty_age: settings.writeback.max_age,
        idle: settings.writeback.idle,
        writeback_running: settings.writeback.running,
        writeback_depth: settings.writeback.depth,
        ordered: settings.ordered,
        cache_dirty_high: settings.writeback.cache_dirty_high,
        cache_dirty_low: settings.writeback.cache_dirty_low,
        writeback_gap: settings.writeback.gap_bytes,
        writeback_rate_min: settings.writeback.rate_min,
        writeback_rate_max: settings.writeback.rate_max,
        writeback_latency: settings.writeback.latency,
        quiet_hours: settings.writeback.quiet_hours,
        commit_interval: settings.commit_interval,
    }
}

/// Whether blocks may stay dirty in this mode.
pub(super) fn keeps_dirty(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writeonly)
}

#[cfg(test)]
mod tests {
    use forebay_admin::{Assignments, KNOBS};

    use super::*;

    #[test]
    fn every_knob_reaches_the_engine_and_comes_back() {
        let all = "mode=wo policy=fifo durability=strict sequential_cutoff=1M admission=ghost:4 \
             write_budget=1T promote=64K congested_read_threshold=2ms \
             congested_write_threshold=20ms dirty_high=60 \
             dirty_low=30 dirty_age=1m idle=5s writeback_running=off writeback_depth=7 ordered=on \
             commit_interval=250ms cache_dirty_high=80 cache_dirty_low=20 writeback_gap=16K \
             writeback_rate_min=1M writeback_rate_max=9M writeback_latency=7ms \
             quiet_hours=22:00-06:00";
        assert_eq!(all.split_whitespace().count(), KNOBS.len());
        let mut settings = Settings::default();
        let changes = Assignments::parse(all.split_whitespace()).expect("good");
        changes.apply(&mut settings).expect("they fit together");
        assert_eq!(for_operator(&for_engine(&settings)), settings);
        assert_eq!(for_engine(&Settings::default()), VolumeSettings::default());
    }
}
