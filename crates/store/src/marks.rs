//! Logging the marks of blocks that became clean or are gone.

use std::rc::Rc;

use forebay_lane::yield_now;

use crate::appender::Closed;
use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::planted::{self, PlantedBug};
use crate::store::Class;

/// Records of marks that a lane makes before its other tasks run.
const MARK_RECORDS_AT_ONCE: usize = 4;

impl StoreLane {
    /// Appends nearly all marks that are pending now. Other tasks of the lane run in between,
    /// whereas a round appends the rest in one step.
    pub(crate) async fn append_most_marks(self: &Rc<Self>, durably: bool) {
        let log = &self.store().log;
        for _ in 0..log.marks_pending() / (MARK_RECORDS_AT_ONCE * log.layout().max_marks) {
            let appended = {
                let _closing = log.closing.lock();
                self.append_marks(durably, MARK_RECORDS_AT_ONCE)
            };
            if !appended {
                return;
            }
            yield_now().await;
        }
    }

    /// Appends pending marks in at most `records` closed records. Returns `false` if there is no
    /// room for more.
    pub(crate) fn append_marks(self: &Rc<Self>, durably: bool, records: usize) -> bool {
        let store = self.store();
        for _ in 0..records {
            let marks = store.log.take_marks(store.log.layout().max_marks);
            if marks.is_empty() {
                return true;
            }
            let mut closed = Closed::default();
            let appended = [Class::Foreground, Class::Background].into_iter().any(|class| {
                let (appender, reserve) = self.appender(class);
                let mut appender = store.appenders.lock(appender);
                let (log, segments) = (&store.log, &store.segments);
                appender.append_marks(log, segments, reserve, durably, &marks, &mut closed)
            });
            self.submit(closed);
            if !appended {
                // A checkpoint needs no room in the log, and makes these marks superfluous.
                store.log.return_marks(marks);
                store.space_wanted.notify_all();
                return false;
            }
        }
        true
    }

    /// Waits until a crash can lose no mark pushed before this call, so that removed versions do
    /// not come back (invariants 5 and 6).
    ///
    /// # Errors
    /// The cache device failed, now or earlier.
    pub async fn sync_marks(self: &Rc<Self>) -> Result<(), StoreError> {
        let wanted = self.store().log.marks_pushed();
        if self.store().log.marks_durable() >= wanted || planted::has(PlantedBug::MarksNotSettled) {
            return Ok(());
        }
        self.commit().await?;
        if self.store().log.marks_durable() < wanted {
            self.checkpoint(false).await?;
        }
        Ok(())
    }
}
