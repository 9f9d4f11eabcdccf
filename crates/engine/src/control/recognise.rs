//! Checks whether an origin is the one that a volume had, in the state in which the volume left it.
//! Nothing is written here.

use forebay_core::Since;
use forebay_device::Device;
use forebay_format::VolumeRecord;
use forebay_store::planted::{self, PlantedBug};

use crate::control::samples::SampledOrigin;
use crate::error::{EngineError, EngineErrorKind, Obstacle};
pub use crate::state::origin_check::{OriginCheck, Sign, Verdict};

/// Compares a volume's record with its origin and with samples of the origin, taken with the size
/// in the record. `trusted`: the record's samples are up to date.
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
        // Samples could miss the other volume's writes.
        let changed = Verdict::Changed(Sign::OtherVolume);
        return Ok(difference().map_or(changed, Verdict::Other));
    }
    if let Some(expected) = record.fingerprint {
        // After an orderly stop the content decides for files, because files are moved. A disk
        // keeps its serial numbers wherever it is attached: a clone has the same content, and dirty
        // blocks belong to one of the two. All blank files have the same content.
        if look.fingerprint()? != expected {
            return Ok(difference().map_or(Verdict::Changed(Sign::Samples), Verdict::Other));
        }
        let since = look.since(&record.left);
        return Ok(match (difference(), since) {
            (Some(difference), _)
                if !difference.of_place || look.starts_differ(&record.left) || look.is_blank() =>
            {
                Verdict::Other(difference)
            }
            (Some(_), _) => Verdict::Unclear("it was moved"),
            (None, Since::Written(how)) if !planted::has(PlantedBug::EvidenceIgnored) => {
                Verdict::Changed(Sign::System(how))
            }
            (None, _) if look.starts_differ(&record.left) => Verdict::Changed(Sign::Starts),
            (None, Since::Unknown(why)) => Verdict::Unclear(why),
            (None, Since::Unwritten | Since::Written(_)) => Verdict::Same,
        });
    }
    if let Some(difference) = difference() {
        return Ok(Verdict::Other(difference));
    }
    let samples = record.samples.as_ref().filter(|_| trusted);
    let contradicted = samples.is_some_and(|samples| look.contradicts(samples));
    Ok(match contradicted {
        true => Verdict::Changed(Sign::Samples),
        false => Verdict::Unclear("the volume was not stopped in order"),
    })
}

impl Verdict {
    /// Returns whether the origin counts as the one that the volume had, unchanged.
    pub fn is_same(&self) -> bool {
        matches!(self, Verdict::Same | Verdict::Unclear(_))
    }

    /// Checks whether a volume may start on this origin without force, given the number of its
    /// dirty blocks.
    ///
    /// # Errors
    /// [`EngineErrorKind::DataAtRisk`] if there are dirty blocks and the origin has changed;
    /// [`EngineErrorKind::Refused`] if it is another device.
    pub fn allow(&self, volume: &str, origin: &str, dirty: u64) -> Result<(), EngineError> {
        let newer = format!("the cache has {dirty} newer blocks of '{volume}'");
        let ways_out = format!(
            "'forebay start --force {volume}' writes them over it, 'forebay delete --discard-dirty {volume}' loses them"
        );
        let (kind, obstacle, message) = match (self, dirty) {
            (Verdict::Same | Verdict::Unclear(_), _) | (Verdict::Changed(_), 0) => return Ok(()),
            (Verdict::Changed(sign), _) => (
                EngineErrorKind::DataAtRisk,
                Obstacle::OriginChanged,
                format!(
                    "the origin {origin} was written elsewhere ({sign}) while {newer}; {ways_out}"
                ),
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
