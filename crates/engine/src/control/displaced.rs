//! Devices to which their paths do not lead any more: what may be reported as safe all the same, and how a volume
//! stops (invariants 20 and 36).
//!
//! To look at a path may take for ever ([`forebay_device::Device::displaced`]). So the caller does that, away from the
//! lanes, and asks here what follows from what it found.

use forebay_device::Displaced;
use forebay_store::planted::{self, PlantedBug};

/// What precedes the stop of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeStop {
    /// Nothing: what only the cache device has is found there again.
    Nothing,
    /// A drain: the cache device may not be found again.
    Drain,
}

/// What is not safe under the path of a device although the volume has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftUnsafe {
    /// Everything: the path of the origin has come apart from it during the stop.
    Origin(Displaced),
    /// Dirty blocks that only a cache device has to which no path leads.
    OnCacheDevice(Displaced),
}

/// Returns whether the data that a drain has written may be reported as safe. `origin`: what a look at the path of
/// the origin after the drain has found.
///
/// # Errors
/// The path leads elsewhere.
pub fn after_drain(origin: Option<Displaced>) -> Result<(), Displaced> {
    if planted::has(PlantedBug::DisplacedDrained) {
        return Ok(());
    }
    // Barrier for invariants 20 and 36: nothing is reported as safe at a path that leads elsewhere.
    origin.map_or(Ok(()), Err)
}

/// Returns what has to precede the stop of a volume, which nobody gave up, by what a look at the paths of its devices
/// has just found.
///
/// # Errors
/// The path of the origin leads elsewhere: a stop would close the origin, and may lose it with that.
pub fn before_stop(
    origin: Option<Displaced>,
    cache: Option<Displaced>,
) -> Result<BeforeStop, Displaced> {
    if let Some(origin) = origin.filter(|_| !planted::has(PlantedBug::DisplacedStopped)) {
        return Err(origin);
    }
    match cache.filter(|_| !planted::has(PlantedBug::DisplacedCacheKept)) {
        Some(_) => Ok(BeforeStop::Drain),
        None => Ok(BeforeStop::Nothing),
    }
}

/// Returns whether the stop of a volume, which nobody gave up, may be reported as one that left everything safe.
/// `origin` and `cache`: what a look at the paths after the stop has found, while the devices were still open.
///
/// # Errors
/// A path has come apart from its device since the stop began.
pub fn after_stop(
    origin: Option<Displaced>,
    cache: Option<Displaced>,
    dirty_blocks: u64,
) -> Result<(), LeftUnsafe> {
    if planted::has(PlantedBug::DisplacedMeanwhile) {
        return Ok(());
    }
    match (origin, cache) {
        (Some(origin), _) => Err(LeftUnsafe::Origin(origin)),
        (None, Some(cache)) if dirty_blocks > 0 => Err(LeftUnsafe::OnCacheDevice(cache)),
        (None, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::DisplacedKind;

    use super::*;

    fn found(is: bool) -> Option<Displaced> {
        let (kind, what) = (DisplacedKind::Removed, "was removed".to_owned());
        is.then(|| Displaced { kind, what, readable_at: "/proc/1/fd/3".into() })
    }

    #[test]
    fn nothing_is_safe_under_a_path_that_leads_elsewhere() {
        assert_eq!(after_drain(None), Ok(()));
        assert!(after_drain(found(true)).is_err());
        for (origin, cache, dirty) in [
            (false, false, 0),
            (false, false, 5),
            (false, true, 0),
            (false, true, 5),
            (true, false, 0),
            (true, false, 5),
            (true, true, 0),
            (true, true, 5),
        ] {
            let before = before_stop(found(origin), found(cache));
            let after = after_stop(found(origin), found(cache), dirty);
            let case = format!("origin {origin}, cache {cache}, {dirty} dirty");
            if origin {
                assert!(before.is_err(), "{case}");
                assert!(matches!(after, Err(LeftUnsafe::Origin(_))), "{case}");
                continue;
            }
            let first = if cache { BeforeStop::Drain } else { BeforeStop::Nothing };
            assert_eq!(before, Ok(first), "{case}");
            let is_unsafe = matches!(after, Err(LeftUnsafe::OnCacheDevice(_)));
            assert_eq!(is_unsafe, cache && dirty > 0, "{case}");
            assert_eq!(after.is_ok(), !is_unsafe, "{case}");
        }
    }
}
