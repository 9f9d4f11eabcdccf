//! Deferred writes of served volumes: begins and ends deferral, and writes all deferred data down.

use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::units::format_size;
use forebay_engine::{Exports, Settings};
use forebay_ram::{Deferral, Tier, write_down};

use super::EngineHost;
use super::ram::{RamTier, deferral};
use super::report::last_error;
use crate::work::Work;

/// Pause before data that could not be written down is tried again, at the daemon's end.
const AGAIN: Duration = Duration::from_millis(500);

fn gone(name: &VolumeName) -> ApiError {
    ApiError::failed(format!("'{name}' is not served any more"))
}

fn ignores_flush(how: Option<Deferral>) -> bool {
    how.is_some_and(|how| how.ignore_flush)
}

impl EngineHost {
    /// Begins to defer the writes of a volume that has just been started, if its settings demand
    /// it.
    ///
    /// # Errors
    /// The volume is gone already.
    pub(super) fn begin_deferring(
        &self,
        name: &VolumeName,
        settings: &Settings,
    ) -> Result<(), ApiError> {
        let Some(ram) = self.served.ram.get(name) else { return Ok(()) };
        let (tier, own) = (ram.tier().clone(), name.clone());
        self.lanes.run(0, move |state| async move {
            let volume = state.engines().iter().find_map(|engine| engine.open(own.as_str()));
            let volume = volume.ok_or_else(|| gone(&own))?;
            let lane = &state.context.lane;
            lane.spawn(write_down::keep(tier, volume, lane.clone()));
            Ok::<_, ApiError>(())
        })??;
        self.defer_again(name, settings);
        Ok(())
    }

    /// Defers the writes of a volume according to these settings.
    pub(super) fn defer_again(&self, name: &VolumeName, settings: &Settings) {
        let Some(ram) = self.served.ram.get(name) else { return };
        let (before, how) = (ram.tier().deferral(), deferral(settings));
        ram.tier().defer_writes(how);
        if ignores_flush(how) && !ignores_flush(before) {
            tracing::warn!(volume = %name, "ignore_flush is on: a crash loses data that clients believe to be durable");
        }
    }

    /// Writes down all deferred writes of a volume.
    ///
    /// # Errors
    /// The cache or the origin rejects the data, or the work was cancelled; the data still waits in
    /// RAM.
    pub(super) fn write_down(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let Some(ram) = self.served.ram.get(name) else { return Ok(()) };
        let tier = ram.tier().clone();
        if !tier.has_deferred() {
            return Ok(());
        }
        let own = name.clone();
        let written = self.lanes.watch(work, 1, move |state, left| async move {
            let volume = state.engines().iter().find_map(|engine| engine.open(own.as_str()));
            let volume = volume.ok_or_else(|| gone(&own))?;
            // A write-down is not interrupted: it must end before the next one of the same data
            // begins. Cancellation is checked by the callers.
            let _ = left.set(tier.deferred_bytes());
            let written = write_down::all(&tier, &volume).await;
            let _ = left.set(tier.deferred_bytes());
            written.map_err(|error| ApiError::failed(error.to_string()))
        });
        written.map_err(|error| self.stuck(name, ram.tier(), error))
    }

    /// Adds the cause and the remedy to the error of a write-down.
    fn stuck(&self, name: &VolumeName, tier: &Tier, error: ApiError) -> ApiError {
        if error.kind == ErrorKind::Cancelled {
            return error;
        }
        let cause = self.served.get(name).ok().and_then(|running| last_error(&running));
        ApiError::failed(format!(
            "{} of deferred writes of '{name}' are in RAM alone and cannot be written down: {}; repair the device and try again ('forebay show {name}' has its state), or give them up with 'forebay delete --discard-dirty {name}'",
            format_size(tier.deferred_bytes()),
            cause.unwrap_or(error.message)
        ))
    }

    /// Repeats [`EngineHost::write_down`] until it succeeds or the work is cancelled.
    ///
    /// # Errors
    /// The work was cancelled; the error of the last time.
    pub(super) fn write_down_patiently(
        &self,
        name: &VolumeName,
        work: &Work,
    ) -> Result<(), ApiError> {
        loop {
            let written = self.write_down(name, work);
            if written.is_ok() || work.is_cancelled() {
                return written;
            }
            forebay_threads::sleep(AGAIN);
        }
    }

    /// Stops deferring the writes of a volume, and writes down those that wait. If that fails,
    /// writes are deferred as before.
    ///
    /// # Errors
    /// See [`EngineHost::write_down`].
    pub(super) fn end_deferring(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let Some(ram) = self.served.ram.get(name) else { return Ok(()) };
        let tier = ram.tier();
        let before = tier.deferral();
        tier.defer_writes(None);
        let written = self.write_down(name, work);
        if written.is_err() {
            tier.defer_writes(before);
        }
        written
    }

    /// Changes the tier of a volume according to the settings. The caller must then defer writes
    /// again, by these settings or, after an error, by the old ones.
    ///
    /// # Errors
    /// As for [`EngineHost::write_down`] and [`RamTier::change`].
    pub(super) fn change_tier(
        &self,
        name: &VolumeName,
        ram: &RamTier,
        wanted: &Settings,
        work: &Work,
    ) -> Result<(), ApiError> {
        let how = deferral(wanted);
        if !ignores_flush(how) {
            self.heed_flushes(name, ram.tier(), work)?;
        }
        // Without deferred writes the tier can be replaced.
        if ram.is_replaced_by(wanted) || how.is_none() {
            self.end_deferring(name, work)?;
        }
        ram.change(wanted)
    }

    /// Stops ignoring flushes, and makes the data of ignored flushes durable.
    fn heed_flushes(&self, name: &VolumeName, tier: &Tier, work: &Work) -> Result<(), ApiError> {
        let Some(how) = tier.deferral().filter(|how| how.ignore_flush) else { return Ok(()) };
        // Do this first, so that no flush is ignored after the write-down.
        tier.defer_writes(Some(Deferral { ignore_flush: false, ..how }));
        self.write_down(name, work)?;
        let own = name.clone();
        self.lanes.watch(work, 1, move |state, _| async move {
            let volume = state.open(own.as_str()).ok_or_else(|| gone(&own))?;
            write_down::flush(&volume).await.map_err(|error| {
                ApiError::failed(format!(
                    "'{own}' cannot be flushed: {error}; 'forebay show {own}' has the cause"
                ))
            })
        })
    }
}
