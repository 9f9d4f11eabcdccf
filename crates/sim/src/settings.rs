//! The settings of simulated volumes, chosen at random.

use std::time::Duration;

use forebay_core::{Admission, Laziness, QuietHours, Rotational};
use forebay_engine::Settings;

use crate::system::Machine;
use crate::trace::mix;

/// Chooses the admission settings: half of the cases admit everything, and the others use all
/// combinations of restrictions.
pub(crate) fn choose_entry(settings: &mut Settings, rng: &mut fastrand::Rng) {
    settings.admission = Admission::Always;
    settings.write_budget = 0;
    settings.promote = 0;
    (settings.congested_read_threshold, settings.congested_write_threshold) =
        (Duration::ZERO, Duration::ZERO);
    if rng.bool() {
        return;
    }
    if rng.bool() {
        settings.admission = Admission::Ghost(rng.u8(1..=4));
    }
    if rng.u32(0..3) == 0 {
        // The budget ranges from almost nothing to more than a world writes.
        settings.write_budget = 1 << rng.u32(0..40);
    }
    if rng.bool() {
        settings.promote = 2048 << rng.u32(0..=9);
    }
    // Operations on the simulated cache device take 20 us and more.
    let threshold = |rng: &mut fastrand::Rng| match rng.u32(0..3) {
        0 => Duration::from_micros(8 << rng.u32(0..12)),
        _ => Duration::ZERO,
    };
    settings.congested_read_threshold = threshold(rng);
    settings.congested_write_threshold = threshold(rng);
}

/// Chooses the limits: none in three of four volumes, and in the others limits that make few or
/// most requests wait.
fn choose_limits(settings: &mut Settings, seed: u64) {
    // The generator of the other settings is not used, because that would change their choice for
    // each seed.
    let mut rng = fastrand::Rng::with_seed(mix(seed, 0x11317));
    if rng.u32(0..4) > 0 {
        return;
    }
    if rng.bool() {
        settings.limit_iops = 500 << rng.u32(0..8);
    }
    if rng.bool() {
        settings.limit_bandwidth = (4 << 20) << rng.u32(0..8);
    }
}

/// Chooses shares of the cache for two of three volumes.
fn choose_shares(settings: &mut Settings, seed: u64) {
    // A separate generator is used, as for the limits.
    let mut rng = fastrand::Rng::with_seed(mix(seed, 0x5a2e));
    if rng.u32(0..3) > 0 {
        settings.share_max = rng.u8(1..=100);
        settings.share_min = rng.u8(0..=settings.share_max.min(60));
    }
}

/// Chooses lazy writeback in one of three volumes.
fn choose_laziness(settings: &mut Settings, seed: u64) {
    // A separate generator is used, as for the limits.
    if fastrand::Rng::with_seed(mix(seed, 0x1a2)).u32(0..3) == 0 {
        settings.writeback = Laziness::Lazy;
    }
}

/// Sets in one of four volumes whether the origin is rotational, even if the origin reports
/// otherwise.
pub(crate) fn choose_rotational(settings: &mut Settings, seed: u64) {
    // A separate generator is used, as for the limits.
    settings.rotational = match fastrand::Rng::with_seed(mix(seed, 0x5ee4)).u32(0..8) {
        0 => Rotational::Yes,
        1 => Rotational::No,
        _ => Rotational::Auto,
    };
}

/// Chooses settings with which background work is frequent in some worlds and rare in others.
pub(crate) fn settings(machine: &Machine, volume: u16) -> Settings {
    let setup = &machine.setup;
    let mut rng = fastrand::Rng::with_seed(setup.seed ^ u64::from(volume));
    let (mode, durability) = setup.volumes.get(usize::from(volume)).copied().unwrap_or_default();
    let mut settings = Settings {
        mode,
        durability,
        policy: setup.replacement,
        sequential_cutoff: [0, 64 << 10, 256 << 10, 4 << 20][rng.usize(0..4)],
        commit_interval: Duration::from_millis(rng.u64(5..1_000)),
        ..Settings::default()
    };
    choose_limits(&mut settings, setup.seed ^ u64::from(volume));
    choose_laziness(&mut settings, setup.seed ^ u64::from(volume));
    if setup.shares {
        choose_shares(&mut settings, setup.seed ^ u64::from(volume));
    }
    choose_rotational(&mut settings, setup.seed ^ u64::from(volume));
    settings.ordered = setup.ordered.get(usize::from(volume)).copied().unwrap_or_default();
    choose_entry(&mut settings, &mut rng);
    choose_writeback(&mut settings, &mut rng);
    // The tier has a separate size; here the setting only decides the admission of read data.
    if (setup.ram || setup.deferred) && rng.bool() {
        settings.ram = 1 << 20;
    }
    settings
}

/// Chooses the writeback settings, covering everything that an operator can set.
pub(crate) fn choose_writeback(settings: &mut Settings, rng: &mut fastrand::Rng) {
    let dirty_high = rng.u8(2..=90);
    let cache_dirty_high = rng.u8(2..=95);
    let rate_max = if rng.u32(0..3) > 0 { 0 } else { rng.u64(1..=64) * (64 << 10) };
    settings.writeback_running = rng.u32(0..8) > 0;
    settings.dirty_high = dirty_high;
    settings.dirty_low = rng.u8(0..=dirty_high);
    settings.cache_dirty_high = cache_dirty_high;
    settings.cache_dirty_low = rng.u8(0..=cache_dirty_high);
    settings.dirty_age = Duration::from_millis(rng.u64(0..5_000));
    settings.idle = Duration::from_millis(rng.u64(0..500));
    settings.writeback_depth = rng.u32(1..=64);
    settings.merge_bytes = 4096 << rng.u32(0..=8);
    settings.writeback_gap = [0, 4096, 16 << 10, 64 << 10, 256 << 10][rng.usize(0..5)];
    settings.writeback_rate_min = if rng.bool() { 0 } else { rng.u64(0..=64 << 10) };
    settings.writeback_rate_max = rate_max;
    let latency = if rng.u32(0..3) == 0 { 0 } else { rng.u64(1..100) };
    settings.writeback_latency = Duration::from_millis(latency);
    settings.quiet_hours =
        QuietHours::new(rng.u16(0..24 * 60), rng.u16(0..24 * 60)).filter(|_| rng.u32(0..3) == 0);
}
