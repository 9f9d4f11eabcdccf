//! Events that no command causes: a device fails or does not answer, and recovers; data is lost.

use std::time::Duration;

use forebay_admin::{EventKind, VolumeName, VolumeState};
use forebay_core::units::format_size;
use forebay_threads::Instant;

use super::Volumes;
use crate::events::NewEvent;
use crate::host_api::{Condition, Trouble};

/// Time without trouble after which a volume counts as recovered, and least time between two events
/// with the cause of its degradation. Devices that fail intermittently must not displace other
/// events.
const SETTLED: Duration = Duration::from_secs(5);

/// Least time between two events about lost data of a volume.
const LOST_EVERY: Duration = Duration::from_secs(60);

/// A change in the condition of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A start or stop waits for this device.
    Waits(String),
    /// A device does not answer.
    Hangs(Trouble, String),
    Degraded(Trouble, String),
    /// The volume was degraded for this time.
    Recovered(Duration),
    /// All data that is lost.
    Lost {
        ranges: u64,
        bytes: u64,
    },
}

/// A volume that is degraded.
struct DegradedVolume {
    since: Instant,
    /// When the trouble was seen last.
    seen: Instant,
    told: (Trouble, Instant),
    hang_told: bool,
}

/// Conditions of a volume that were reported already.
#[derive(Default)]
pub(super) struct Noticed {
    bad: Option<DegradedVolume>,
    waits: bool,
    /// Numbers of failed reads of the cache device and of the origin at the last check.
    errors: Option<(u64, u64)>,
    /// Lost bytes in the last report, and the time of that report.
    lost: Option<(u64, Instant)>,
}

impl Noticed {
    /// Compares a condition with those reported before.
    pub(super) fn look(&mut self, now: Instant, condition: &Condition) -> Vec<Notice> {
        let mut found = Vec::new();
        match &condition.waits_for {
            Some(device) if !self.waits => found.push(Notice::Waits(device.clone())),
            _ => {}
        }
        self.waits = condition.waits_for.is_some();
        // A volume that is being stopped is not judged any more.
        if condition.state != VolumeState::Stopping {
            found.extend(self.trouble(now, condition));
        }
        found.extend(self.losses(now, condition));
        found
    }

    fn trouble(&mut self, now: Instant, condition: &Condition) -> Vec<Notice> {
        let mut found = Vec::new();
        let passing = self.new_errors(condition);
        let Some((trouble, error)) = condition.trouble.as_ref().or(passing.as_ref()) else {
            if let Some(bad) = self.bad.take_if(|bad| now - bad.seen >= SETTLED) {
                found.push(Notice::Recovered(bad.seen - bad.since));
            }
            return found;
        };
        let degraded = || Notice::Degraded(*trouble, error.clone());
        let bad = self.bad.get_or_insert_with(|| {
            found.push(degraded());
            DegradedVolume { since: now, seen: now, told: (*trouble, now), hang_told: false }
        });
        bad.seen = now;
        let (told, at) = bad.told;
        if told != *trouble && now - at >= SETTLED {
            found.push(degraded());
            bad.told = (*trouble, now);
        }
        if trouble.is_hang() && !bad.hang_told {
            bad.hang_told = true;
            found.push(Notice::Hangs(*trouble, error.clone()));
        }
        found
    }

    /// Returns a trouble that appeared and disappeared since the last check.
    fn new_errors(&mut self, condition: &Condition) -> Option<(Trouble, String)> {
        let now = (condition.failed_cache_reads, condition.failed_origin_reads);
        let before = self.errors.replace(now).unwrap_or(now);
        let of = |count: u64, device: &str, trouble: Trouble| {
            let said = format!("{count} reads of {device} failed; the log says which");
            (count > 0).then_some((trouble, said))
        };
        of(now.1.saturating_sub(before.1), "the origin", Trouble::OriginFailed).or_else(|| {
            of(now.0.saturating_sub(before.0), "the cache device", Trouble::CacheErrors)
        })
    }

    fn losses(&mut self, now: Instant, condition: &Condition) -> Option<Notice> {
        let Condition { lost_ranges: ranges, lost_bytes: bytes, .. } = *condition;
        if bytes == 0 {
            self.lost = None;
            return None;
        }
        let is_news = self.lost.is_none_or(|(told, at)| bytes > told && now - at >= LOST_EVERY);
        is_news.then(|| {
            self.lost = Some((bytes, now));
            Notice::Lost { ranges, bytes }
        })
    }
}

impl Volumes {
    /// Records an event about a volume.
    pub(super) fn tell_noticed(&self, name: &VolumeName, notice: Notice) {
        let (cache, origin) = self
            .state
            .volume(name)
            .map(|entry| (entry.volume.cache, entry.volume.origin))
            .unwrap_or_default();
        let device = |trouble: Trouble| match trouble {
            Trouble::CacheFailed
            | Trouble::CacheDisplaced
            | Trouble::CacheHangs
            | Trouble::CacheErrors
            | Trouble::DataLost => &cache,
            Trouble::OriginFenced
            | Trouble::OriginDisplaced
            | Trouble::OriginShrunk
            | Trouble::OriginReadOnly
            | Trouble::OriginFailed
            | Trouble::OriginHangs => &origin,
        };
        self.tell(
            name,
            match notice {
                Notice::Waits(device) => NewEvent::new(
                    EventKind::SlowDevice,
                    format!("volume '{name}' waits for {device}, which does not answer"),
                )
                .device(&device),
                Notice::Hangs(trouble, error) => {
                    NewEvent::new(EventKind::SlowDevice, error).device(device(trouble))
                }
                Notice::Degraded(trouble, error) => NewEvent::new(
                    EventKind::Degraded,
                    format!("volume '{name}' is degraded: {error}"),
                )
                .device(device(trouble))
                .with("cause", trouble.name())
                .with("error", error),
                Notice::Recovered(after) => NewEvent::new(
                    EventKind::Recovered,
                    format!(
                        "volume '{name}' is served normally again, after {} s",
                        after.as_secs()
                    ),
                )
                .with("seconds", after.as_secs()),
                Notice::Lost { ranges, bytes } => NewEvent::new(
                    EventKind::DataLost,
                    format!(
                        "{} of dirty data of volume '{name}' cannot be read any more; 'forebay show' names the ranges",
                        format_size(bytes)
                    ),
                )
                .device(&cache)
                .with("ranges", ranges)
                .with("bytes", bytes),
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(trouble: Option<Trouble>) -> Condition {
        let trouble = trouble.map(|trouble| (trouble, "why".to_owned()));
        Condition { trouble, ..Condition::of(VolumeState::Running) }
    }

    /// Returns the kinds of notices for troubles that are seen at intervals of one second.
    fn kinds(troubles: &[Option<Trouble>]) -> Vec<&'static str> {
        let (begin, mut noticed) = (Instant::now(), Noticed::default());
        let mut found = Vec::new();
        for (second, trouble) in troubles.iter().enumerate() {
            let now = begin + Duration::from_secs(second as u64);
            found.extend(noticed.look(now, &condition(*trouble)).iter().map(|it| match it {
                Notice::Waits(_) => "waits",
                Notice::Hangs(..) => "hangs",
                Notice::Degraded(trouble, _) => trouble.name(),
                Notice::Recovered(_) => "recovered",
                Notice::Lost { .. } => "lost",
            }));
        }
        found
    }

    #[test]
    fn a_volume_recovers_only_after_a_while_in_good_order() {
        let fails = Some(Trouble::OriginFailed);
        assert_eq!(kinds(&[None, fails, fails, fails]), ["origin-failed"]);
        let flutters: Vec<_> = [fails, None, None].into_iter().cycle().take(60).collect();
        assert_eq!(kinds(&flutters), ["origin-failed"]);
        let [good, bad] = [[None; 10], [fails; 10]];
        let turns = [good, bad, good, bad].concat();
        assert_eq!(kinds(&turns), ["origin-failed", "recovered", "origin-failed"]);
    }

    #[test]
    fn another_reason_is_told_and_a_device_that_hangs_by_name() {
        let (hangs, fails) = (Some(Trouble::OriginHangs), Some(Trouble::CacheFailed));
        let all = [[hangs; 3].as_slice(), &[fails; 9]].concat();
        assert_eq!(kinds(&all), ["origin-hangs", "hangs", "cache-failed"]);
        let swings: Vec<_> = [hangs, fails].into_iter().cycle().take(60).collect();
        assert!(kinds(&swings).len() <= 60 / 5 + 2, "{:?}", kinds(&swings));
    }

    #[test]
    fn only_new_errors_degrade_a_volume() {
        let (begin, mut noticed) = (Instant::now(), Noticed::default());
        let mut look = |second: u64, failed_cache_reads, failed_origin_reads| {
            let now = begin + Duration::from_secs(second);
            noticed.look(
                now,
                &Condition { failed_cache_reads, failed_origin_reads, ..condition(None) },
            )
        };
        assert_eq!(look(0, 3, 5), []);
        assert!(
            matches!(&look(1, 3, 7)[..], [Notice::Degraded(Trouble::OriginFailed, said)] if said.contains("2 reads"))
        );
        assert_eq!(look(2, 3, 7), []);
        assert!(matches!(look(8, 3, 7)[..], [Notice::Recovered(_)]));
        assert!(matches!(look(9, 4, 7)[..], [Notice::Degraded(Trouble::CacheErrors, _)]));
        // The volume was started again.
        assert!(matches!(look(20, 0, 0)[..], [Notice::Recovered(_)]));
    }

    #[test]
    fn losses_are_reported_at_once_and_then_once_a_minute() {
        let (begin, mut noticed) = (Instant::now(), Noticed::default());
        let mut told = Vec::new();
        for second in 0..150 {
            let lost = Condition { lost_bytes: second * 512, lost_ranges: 1, ..condition(None) };
            told.extend(noticed.look(begin + Duration::from_secs(second), &lost));
        }
        let bytes = |bytes| Notice::Lost { ranges: 1, bytes };
        assert_eq!(told, [bytes(512), bytes(61 * 512), bytes(121 * 512)]);
    }

    #[test]
    fn a_start_that_waits_is_told_once() {
        let (now, mut noticed) = (Instant::now(), Noticed::default());
        let waits_for = Some("/dev/slow".to_owned());
        let waits = Condition { waits_for, ..Condition::of(VolumeState::Recovering) };
        assert_eq!(noticed.look(now, &waits), [Notice::Waits("/dev/slow".into())]);
        assert_eq!(noticed.look(now, &waits), []);
        assert_eq!(noticed.look(now, &condition(None)), []);
        assert_eq!(noticed.look(now, &waits).len(), 1);
    }
}
