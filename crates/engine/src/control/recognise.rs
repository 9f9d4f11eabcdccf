//! Recognises whether an origin is the one that a volume had, as the volume left it. Nothing is
//! written here.

use forebay_core::identity::Difference;
use forebay_device::Device;
use forebay_format::VolumeRecord;

use crate::control::samples::SampledOrigin;
use crate::error::{EngineError, EngineErrorKind, Obstacle};

/// How an origin relates to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the volume's origin, unchanged as far as can be told.
    Same,
    /// It is the volume's origin, but an external writer has changed it.
    Changed,
    /// It is another device.
    Other(Difference),
}

/// Compares a volume's record with its origin, and with samples of that, taken with the size in the record.
/// `trusted`: the record's samples are up to date.
///
/// # Errors
/// A sample that is needed cannot be read.
pub fn recognise(
    record: &VolumeRecord,
    look: &SampledOrigin,
    origin: &dyn Device,
    trusted: bool,
) -> Result<Verdict, EngineError> {
    let identity = origin.identity();
    let difference = || record.identity.as_ref()?.difference(identity.as_ref()?);
    if origin.holder().is_some_and(|holder| holder != record.uuid) {
        // Samples could miss what the other volume has written.
        return Ok(difference().map_or(Verdict::Changed, Verdict::Other));
    }
    if let Some(expected) = record.fingerprint {
        // After an orderly stop the content decides, because files are moved, and disks are put
        // into other machines.
        return Ok(match look.fingerprint()? == expected {
            true => Verdict::Same,
            false => difference().map_or(Verdict::Changed, Verdict::Other),
        });
    }
    if let Some(difference) = difference() {
        return Ok(Verdict::Other(difference));
    }
    let samples = record.samples.as_ref().filter(|_| trusted);
    let contradicted = samples.is_some_and(|samples| look.contradicts(samples));
    Ok(if contradicted { Verdict::Changed } else { Verdict::Same })
}

impl Verdict {
    /// Checks whether a volume may start on this origin without force, given the number of its
    /// dirty blocks.
    ///
    /// # Errors
    /// [`EngineErrorKind::DataAtRisk`] if there are dirty blocks and the origin is not as it was left;
    /// [`EngineErrorKind::Refused`] if it is another device.
    pub fn allow(&self, volume: &str, origin: &str, dirty: u64) -> Result<(), EngineError> {
        let newer = format!("the cache has {dirty} newer blocks of '{volume}'");
        let ways_out = format!(
            "'forebay start --force {volume}' writes them over it, 'forebay delete --discard-dirty {volume}' loses them"
        );
        let (kind, obstacle, message) = match (self, dirty) {
            (Verdict::Same, _) | (Verdict::Changed, 0) => return Ok(()),
            (Verdict::Changed, _) => (
                EngineErrorKind::DataAtRisk,
                Obstacle::OriginChanged,
                format!("the origin {origin} was written elsewhere while {newer}; {ways_out}"),
            ),
            (Verdict::Other(difference), 0) => (
                EngineErrorKind::Refused,
                Obstacle::OtherOrigin(difference.clone()),
                format!(
                    "the origin {origin} is not the one that '{volume}' had: its {difference}; name that one, or take this one as it is with 'forebay start --force {volume}'"
                ),
            ),
            (Verdict::Other(difference), _) => (
                EngineErrorKind::DataAtRisk,
                Obstacle::OtherOrigin(difference.clone()),
                format!(
                    "the origin {origin} is not the one that '{volume}' had: its {difference}, and {newer}; {ways_out}"
                ),
            ),
        };
        Err(EngineError::caused(kind, message, obstacle))
    }
}
