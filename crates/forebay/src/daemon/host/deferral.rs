//! Deferred writes of served volumes: when they begin and end, and when all are written down.

use std::time::Duration;

use forebay_admin::{ApiError, VolumeName};
use forebay_engine::{Exports, Settings};
use forebay_ram::{Deferral, write_down};

use super::EngineHost;
use super::ram::deferral;
use crate::daemon::operations::Work;

/// Time until data that could not be written down is tried again at the daemon's end.
const AGAIN: Duration = Duration::from_millis(500);

fn gone(name: &VolumeName) -> ApiError {
    ApiError::failed(format!("'{name}' is not served any more"))
}

impl EngineHost {
    /// Begins to defer the writes of a volume that has come up, if its settings say so.
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

    /// Defers the writes of a volume as these settings say.
    pub(super) fn defer_again(&self, name: &VolumeName, settings: &Settings) {
        let Some(ram) = self.served.ram.get(name) else { return };
        let (before, how) = (ram.tier().deferral(), deferral(settings));
        ram.tier().defer_writes(how);
        let ignores = |how: Option<Deferral>| how.is_some_and(|how| how.ignore_flush);
        if ignores(how) && !ignores(before) {
            tracing::warn!(volume = %name, "ignore_flush is on: a crash loses data that clients believe to be durable");
        }
    }

    /// Writes down all deferred writes of a volume.
    ///
    /// # Errors
    /// The cache or the origin does not take them, or the work was cancelled; they still wait in RAM.
    pub(super) fn write_down(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let Some(ram) = self.served.ram.get(name) else { return Ok(()) };
        let tier = ram.tier().clone();
        if !tier.has_deferred() {
            return Ok(());
        }
        let own = name.clone();
        self.lanes.watch(work, 1, move |state, left| async move {
            let volume = state.engines().iter().find_map(|engine| engine.open(own.as_str()));
            let volume = volume.ok_or_else(|| gone(&own))?;
            left.set(tier.deferred_bytes());
            let written = write_down::all_in_background(&tier, &volume, &state.context.lane).await;
            left.set(tier.deferred_bytes());
            written.map_err(|error| {
                ApiError::failed(format!(
                    "{error}: {} bytes of deferred writes of '{own}' are in RAM alone",
                    tier.deferred_bytes()
                ))
            })
        })
    }

    /// As [`EngineHost::write_down`], again and again until it succeeds or the work is cancelled.
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
            std::thread::sleep(AGAIN);
        }
    }

    /// Defers no more writes of a volume, and writes down those that wait. If that fails, writes are
    /// deferred as before.
    ///
    /// # Errors
    /// As for [`EngineHost::write_down`].
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
}
