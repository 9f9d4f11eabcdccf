//! The step before the first write to each sample of the origin: the cache device durably stops
//! listing the sample as untouched.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_store::planted::{self, PlantedBug};

use crate::io::notes::NoteKeeper;
use crate::lane::LaneVolume;

/// Marks samples of a volume's origin before they are written.
#[derive(Clone, Copy)]
pub(crate) struct FirstWrite<'a>(pub(crate) &'a LaneVolume);

impl FirstWrite<'_> {
    /// Marks the samples in a range as touched. Called before each write to the origin.
    pub(crate) async fn before_origin_write(self, range: Range<u64>) {
        let samples = &self.0.volume.untouched;
        let bits = samples.within(&range);
        if bits == 0 {
            return;
        }
        samples.wanted.add(bits);
        let _turn = samples.gate.enter().await;
        if samples.within(&range) == 0 {
            // An earlier holder of the gate has marked the samples of all waiters.
            return;
        }
        let wanted = samples.wanted.get();
        if planted::has(PlantedBug::SampleStaysUntouched) {
            samples.untouched.remove(wanted);
            return;
        }
        // Barrier for invariants 12 and 17: before our own write to a sample may begin, the cache
        // device durably stops calling it untouched.
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
                // Set before the note is written, so that `give_up_samples` updates the device
                // before the note is taken back.
                samples.given_up.store(true, Ordering::SeqCst);
                // The device has failed or hangs. It is enough if a note or the device can still
                // record that the samples are worthless. Otherwise the next start takes our own
                // write for an external one, which needs the operator's decision and loses nothing.
                let told = NoteKeeper(self.0).distrust().await;
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
