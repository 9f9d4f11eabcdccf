//! Whether an origin is the one that a volume had, as the volume left it. Nothing is written here.

use forebay_core::Identity;
use forebay_core::identity::Difference;
use forebay_format::VolumeRecord;

use crate::control::samples::Look;
use crate::error::{EngineError, EngineErrorKind};

/// What an origin is to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its origin, as far as anybody can tell.
    Same,
    /// Its origin, which somebody else has written to.
    Changed,
    /// Another device.
    Other(Difference),
}

/// Compares what a volume's record says with what its origin looks like now, given the size that the
/// record names. `trusted`: the record's samples are up to date.
///
/// # Errors
/// A sample cannot be read that has to be.
pub fn recognise(
    record: &VolumeRecord,
    look: &Look,
    identity: Option<&Identity>,
    trusted: bool,
) -> Result<Verdict, EngineError> {
    let difference = || record.identity.as_ref()?.difference(identity?);
    if let Some(expected) = record.fingerprint {
        // After an orderly stop the content decides: people move files, and disks to other machines.
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
    /// Why a volume does not start without force on this origin, given the number of its dirty blocks.
    ///
    /// # Errors
    /// [`EngineErrorKind::DataAtRisk`] if there are dirty blocks and the origin is not as it was left;
    /// [`EngineErrorKind::Refused`] if it is another device.
    pub fn allow(&self, volume: &str, origin: &str, dirty: u64) -> Result<(), EngineError> {
        let newer = format!("the cache has {dirty} newer blocks of '{volume}'");
        let ways_out = format!(
            "'forebay start --force {volume}' writes them over it, 'forebay delete --discard-dirty {volume}' loses them"
        );
        let (kind, message) = match (self, dirty) {
            (Verdict::Same, _) | (Verdict::Changed, 0) => return Ok(()),
            (Verdict::Changed, _) => (
                EngineErrorKind::DataAtRisk,
                format!("the origin {origin} was written elsewhere while {newer}; {ways_out}"),
            ),
            (Verdict::Other(difference), 0) => (
                EngineErrorKind::Refused,
                format!(
                    "the origin {origin} is not the one that '{volume}' had: its {difference}; name that one, or take this one as it is with 'forebay start --force {volume}'"
                ),
            ),
            (Verdict::Other(difference), _) => (
                EngineErrorKind::DataAtRisk,
                format!(
                    "the origin {origin} is not the one that '{volume}' had: its {difference}, and {newer}; {ways_out}"
                ),
            ),
        };
        Err(EngineError::new(kind, message))
    }
}
