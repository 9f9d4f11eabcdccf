//! The geometry of the platters: the position of a byte, and seek times.
//!
//! The disk has 2 TB on 303,900 cylinders of 8 tracks. Tracks get shorter towards the hub: there
//! are 15 zones of equal width, the outermost with 1.05 MB per track, the innermost with 56 % of
//! that, so that the mean is 78 %. Bytes are numbered from the outside inwards, so a small device
//! lies wholly in the outermost zone. Each track begins 0.12 revolutions after the end of the
//! previous one, the time of a track switch.
//!
//! All times are in nanoseconds.

/// Time of one revolution at 7,200 rpm.
pub(super) const REVOLUTION: u64 = 8_333_333;
/// Time from the end of one track to the start of the next: the shortest change of track.
pub(super) const TRACK_SWITCH: u64 = 1_000_000;

const CYLINDERS: u64 = 303_900;
const ZONES: u64 = 15;
const ZONE_CYLINDERS: u64 = CYLINDERS / ZONES;
const OUTER_TRACK_SECTORS: f64 = 1_054_667.0 / SECTOR as f64;
const INNER_TO_OUTER: f64 = 0.56;
const SECTOR: u64 = 512;
const HEADS: u64 = 8;

/// Seek times grow with the square root of the distance below this share of all cylinders, and
/// linearly above it.
const SHORT_SEEK: f64 = 0.25;
const THIRD_STROKE: f64 = 8_500_000.0;
const FULL_STROKE: f64 = 16_000_000.0;

#[derive(Clone, Copy, Debug)]
struct Zone {
    first_byte: u64,
    first_track: u64,
    track_bytes: u64,
}

/// Position of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// Number of the track, counted from the outermost track, cylinder by cylinder.
    pub(super) track: u64,
    /// Distance of its cylinder from the outermost.
    pub(super) cylinder: u64,
    /// Time in the revolution at which the byte passes the head, from 0 to [`REVOLUTION`].
    pub(super) angle: u64,
}

/// The platters of one disk.
#[derive(Clone, Debug)]
pub(super) struct DiskGeometry {
    zones: Vec<Zone>,
    heads: u64,
    seek_root: f64,
    seek_slope: f64,
    seek_base: f64,
}

impl DiskGeometry {
    /// Makes platters for `capacity` bytes: the outer part of 2 TB, or 2 TB and up to a tenth more
    /// on additional inner cylinders. A larger disk has more heads.
    pub(super) fn new(capacity: u64) -> Self {
        let track_bytes = |zone: u64| {
            let share = 1.0 - (1.0 - INNER_TO_OUTER) * zone as f64 / (ZONES - 1) as f64;
            (OUTER_TRACK_SECTORS * share).round() as u64 * SECTOR
        };
        let per_head: u64 = (0..ZONES).map(|zone| track_bytes(zone) * ZONE_CYLINDERS).sum();
        let heads = (capacity - capacity / 11).div_ceil(per_head).max(HEADS);
        let mut zones = Vec::with_capacity(ZONES as usize);
        let (mut first_byte, mut first_track) = (0, 0);
        for zone in 0..ZONES {
            let track_bytes = track_bytes(zone);
            zones.push(Zone { first_byte, first_track, track_bytes });
            let tracks = ZONE_CYLINDERS * heads;
            first_byte += tracks * track_bytes;
            first_track += tracks;
        }
        let slope = (FULL_STROKE - THIRD_STROKE) / (2.0 / 3.0);
        let base = FULL_STROKE - slope;
        let root = (base + slope * SHORT_SEEK - TRACK_SWITCH as f64) / SHORT_SEEK.sqrt();
        DiskGeometry {
            zones,
            heads,
            seek_root: root / (CYLINDERS as f64).sqrt(),
            seek_slope: slope / CYLINDERS as f64,
            seek_base: base,
        }
    }

    fn zone_of(&self, offset: u64) -> Zone {
        let after = self.zones.partition_point(|zone| zone.first_byte <= offset);
        self.zones.get(after.saturating_sub(1)).copied().unwrap_or(Zone {
            first_byte: 0,
            first_track: 0,
            track_bytes: SECTOR,
        })
    }

    /// Returns the position of the byte at `offset`.
    pub(super) fn locate(&self, offset: u64) -> Position {
        let zone = self.zone_of(offset);
        let within = offset - zone.first_byte;
        let track = zone.first_track + within / zone.track_bytes;
        // Below 2 MB times 9 million: far from overflow.
        let turn = within % zone.track_bytes * REVOLUTION / zone.track_bytes;
        let angle = (track % REVOLUTION * TRACK_SWITCH + turn) % REVOLUTION;
        Position { track, cylinder: track / self.heads, angle }
    }

    /// Returns the time in which the bytes from `start` to `end` pass the heads, track switches
    /// included. `streaming`: the byte before `start` has just passed, so that a track switch just
    /// before `start` counts too.
    pub(super) fn transfer(&self, start: u64, end: u64, streaming: bool) -> u64 {
        if end <= start {
            return 0;
        }
        let first = if streaming { start.saturating_sub(1) } else { start };
        let switches = self.locate(end - 1).track - self.locate(first).track;
        let mut turning = 0.0;
        let mut at = start;
        while at < end {
            let after = self.zones.partition_point(|zone| zone.first_byte <= at);
            let until = self.zones.get(after).map_or(end, |next| next.first_byte.min(end));
            turning += (until - at) as f64 / self.zone_of(at).track_bytes as f64;
            at = until;
        }
        (turning * REVOLUTION as f64).round() as u64 + switches * TRACK_SWITCH
    }

    /// Returns the time until the head has settled on the track of `to`; 0 if it is there already.
    pub(super) fn seek(&self, from: Position, to: Position) -> u64 {
        if from.track == to.track {
            return 0;
        }
        let distance = from.cylinder.abs_diff(to.cylinder) as f64;
        let time = if distance < SHORT_SEEK * CYLINDERS as f64 {
            TRACK_SWITCH as f64 + self.seek_root * distance.sqrt()
        } else {
            self.seek_base + self.seek_slope * distance
        };
        time.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TB: u64 = 1_000_000_000_000;

    fn seek_over(geometry: &DiskGeometry, cylinders: u64) -> f64 {
        let to = Position { track: cylinders * 8, cylinder: cylinders, angle: 0 };
        geometry.seek(Position::default(), to) as f64 / 1e6
    }

    #[test]
    fn seeks_meet_their_anchors() {
        let geometry = DiskGeometry::new(2 * TB);
        for (cylinders, millis) in
            [(0, 0.0), (1, 1.024), (3_950, 2.50), (11_850, 3.59), (101_300, 8.5), (303_900, 16.0)]
        {
            let seek = seek_over(&geometry, cylinders);
            assert!((seek - millis).abs() < 0.01, "{cylinders} cylinders: {seek} ms");
        }
        let same_cylinder = Position { track: 3, ..Position::default() };
        assert_eq!(geometry.seek(Position::default(), same_cylinder), TRACK_SWITCH);
        let (short, long) = (seek_over(&geometry, 75_974), seek_over(&geometry, 75_975));
        assert!((short - long).abs() < 0.001, "a step from {short} to {long} ms");
    }

    #[test]
    fn a_hundred_gigabytes_are_the_outermost_cylinders() {
        let geometry = DiskGeometry::new(2 * TB);
        assert!(geometry.locate(TB / 10).cylinder.abs_diff(11_850) < 5);
        let last = geometry.locate(2 * TB - 1).cylinder;
        assert!(last.abs_diff(303_900) < 300, "{last}");
        assert_eq!(geometry.locate(TB / 10), DiskGeometry::new(TB / 10).locate(TB / 10));
    }

    #[test]
    fn tracks_follow_each_other_in_space_and_time() {
        for capacity in [1 << 20, TB, 2 * TB, 2 << 40, 30 * TB, u64::MAX] {
            let geometry = DiskGeometry::new(capacity);
            for zone in &geometry.zones {
                for offset in zone.first_byte.saturating_sub(1024)..zone.first_byte + 1024 {
                    let (here, next) = (geometry.locate(offset), geometry.locate(offset + 1));
                    assert!(next.track - here.track <= 1);
                    let ahead = (next.angle + REVOLUTION - here.angle) % REVOLUTION;
                    let switched = if next.track > here.track { TRACK_SWITCH } else { 0 };
                    assert!(ahead.abs_diff(switched) <= 20, "at {offset}: {ahead} ns");
                }
            }
            let last = geometry.locate(capacity - 1);
            assert!(last.cylinder < CYLINDERS * 2, "{capacity} bytes: {last:?}");
        }
    }

    #[test]
    fn transfers_add_up_however_they_are_cut() {
        let geometry = DiskGeometry::new(2 * TB);
        let track = geometry.zones[0].track_bytes;
        assert_eq!(geometry.transfer(0, track, false), REVOLUTION);
        assert_eq!(geometry.transfer(0, track + 1, false), REVOLUTION + TRACK_SWITCH + 8);
        assert_eq!(geometry.transfer(7, 7, true), 0);
        let start = geometry.zones[1].first_byte - 3 * track;
        let end = geometry.zones[1].first_byte + 3 * track;
        let whole = geometry.transfer(start, end, true);
        for step in [4096, 65_536, track] {
            let (mut at, mut sum) = (start, 0);
            while at < end {
                let next = (at + step).min(end);
                sum += geometry.transfer(at, next, true);
                at = next;
            }
            assert!(sum.abs_diff(whole) < 2_000, "{step}: {sum} and {whole}");
        }
    }
}
