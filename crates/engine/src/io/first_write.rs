//! What has to be durable before the origin is written to for the first time.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_store::planted::{self, PlantedBug};

use crate::io::notes::Notes;
use crate::lane::LaneVolume;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct FirstWrite<'a>(pub(crate) &'a LaneVolume);

impl FirstWrite<'_> {
    /// To be called before anything writes to a range of the origin, which may be the first time.
    pub(crate) async fn before_origin_write(self, range: Range<u64>) {
        let samples = &self.0.volume.untouched;
        let bits = samples.within(&range);
        if bits == 0 {
            return;
        }
        samples.wanted.add(bits);
        let _turn = samples.gate.enter().await;
        if samples.within(&range) == 0 {
            // Whoever had its turn before has done it for all that were waiting.
            return;
        }
        let wanted = samples.wanted.get();
        if planted::has(PlantedBug::SampleStaysUntouched) {
            samples.untouched.remove(wanted);
            return;
        }
        // Barrier for invariants 12 and 17: no sample is called untouched, on a device that survives
        // whatever comes, once our own write to it may have begun.
        let (store, name) = (self.0.store.clone(), self.0.volume.name.clone());
        let marked = self.0.unless_hung(async move {
            let changed = store.change_volumes(|volumes, _| {
                for record in volumes.iter_mut().filter(|record| record.name == name) {
                    if let Some(samples) = &mut record.samples {
                        samples.untouched &= !wanted;
                    }
                }
                Ok(())
            });
            changed.await
        });
        match marked.await {
            Some(Ok(())) => samples.untouched.remove(wanted),
            Some(Err(_)) | None => {
                // First, so that a note which says it is not taken back before the device has been told.
                samples.given_up.store(true, Ordering::SeqCst);
                // The device has failed or hangs. If its samples can still be called worthless, all is
                // well; if not, the next start takes our own write for somebody else's, which
                // needs the operator's word and loses nothing.
                let told = Notes(self.0).distrust().await;
                tracing::warn!(
                    told,
                    volume = self.0.volume.name,
                    "samples of the origin can no longer be kept"
                );
                samples.untouched.remove(u128::MAX);
            }
        }
    }
}
