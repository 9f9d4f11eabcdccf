//! Waits for an origin on behalf of an operator, but not forever.

use std::pin::pin;
use std::time::Duration;

use crate::error::{EngineError, EngineErrorKind, Obstacle};
use crate::lane::engine::EngineLane;
use crate::state::volume::Volume;
use forebay_lane::either;

/// Least time that a wait allows an origin which has not answered for long already.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Interval of checks whether an origin still answers.
const ASKED_EVERY: Duration = Duration::from_millis(100);

impl Volume {
    /// Returns an error if the origin has not answered for so long that waiting should end.
    pub(crate) fn unanswered(&self) -> Option<EngineError> {
        let waits = self.waits.given_up()?;
        Some(EngineError::caused(
            EngineErrorKind::Failed,
            format!(
                "the origin {} of '{}' has not answered for {} s",
                self.origin_name,
                self.name,
                waits.as_secs()
            ),
            Obstacle::Unanswered(waits),
        ))
    }
}

impl EngineLane {
    /// Waits for work that needs the origin of a volume.
    ///
    /// # Errors
    /// The origin does not answer.
    pub(crate) async fn patiently<T>(
        &self,
        volume: &Volume,
        work: impl Future<Output = T>,
    ) -> Result<T, EngineError> {
        let (began, mut work) = (self.lane.now(), pin!(work));
        loop {
            let mut result = None;
            let done = std::future::poll_fn(|context| {
                work.as_mut().poll(context).map(|output| result = Some(output))
            });
            either(done, self.lane.sleep(ASKED_EVERY)).await;
            if let Some(result) = result {
                return Ok(result);
            }
            if self.lane.now().since(began) >= LAST_CHANCE
                && let Some(error) = volume.unanswered()
            {
                return Err(error);
            }
        }
    }

    /// Like [`EngineLane::patiently`], but the work continues in the background after an error. A
    /// sync that fails later must still be recorded, because the next one may succeed and prove
    /// nothing.
    ///
    /// # Errors
    /// The origin does not answer.
    pub(crate) async fn patiently_to_its_end<T: 'static>(
        &self,
        volume: &Volume,
        work: impl Future<Output = T> + 'static,
    ) -> Result<T, EngineError> {
        let mut work = Box::pin(work);
        let result = self.patiently(volume, &mut work).await;
        if result.is_err() {
            self.lane.spawn(async move { drop(work.await) });
        }
        result
    }
}
