//! Devices to which their paths no longer lead: which data may still be reported as safe, and how a
//! volume is stopped (invariants 20 and 36).
//!
//! Examining a path may block for ever ([`forebay_device::Device::displaced`]), so the caller does
//! that away from the lanes, and passes the result here.

use forebay_device::Displaced;
use forebay_store::planted::{self, PlantedBug};

/// Steps that must precede the stop of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeStop {
    /// No step: data that only the cache device has will be found there again.
    Nothing,
    /// A drain: the cache device may not be found again.
    Drain,
}

/// Data that is unsafe under the path of a device although the volume has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftUnsafe {
    /// All data: the path of the origin stopped leading to it during the stop.
    Origin(Displaced),
    /// Dirty blocks that exist only on a cache device to which no path leads.
    OnCacheDevice(Displaced),
}

/// Returns whether the data that a drain has written may be reported as safe. `origin`: the result
/// of examining the origin's path after the drain.
///
/// # Errors
/// The path leads to another device.
pub fn after_drain(origin: Option<Displaced>) -> Result<(), Displaced> {
    if planted::has(PlantedBug::DisplacedDrained) {
        return Ok(());
    }
    // Barrier for invariants 20 and 36: nothing is reported as safe at a path that leads elsewhere.
    origin.map_or(Ok(()), Err)
}

/// Returns the steps that must precede a stop, given the results of examining the paths of the
/// volume's devices. Not for a volume that was given up.
///
/// # Errors
/// The path of the origin leads to another device: a stop would close the origin, and its content
/// could be lost.
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

/// Returns whether a stop may be reported as having left everything safe. Not for a volume that was
/// given up. `origin` and `cache`: the results of examining the paths after the stop, while the
/// devices were still open.
///
/// # Errors
/// A path has stopped leading to its device since the stop began.
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
