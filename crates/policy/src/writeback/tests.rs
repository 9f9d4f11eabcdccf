//! Checks the pacer over its whole matrix, against a model written as the table in the docs.

use forebay_core::QuietHours;

use super::*;

const SECOND: u64 = 1_000_000_000;
const NOW: Nanos = Nanos(10_000 * SECOND);
const NOON: Duration = Duration::from_secs(12 * 3600);

fn seconds_ago(seconds: u64) -> Nanos {
    Nanos(NOW.0 - seconds * SECOND)
}

/// Quiet hours at noon: none, one range that contains noon, one that does not.
fn quiet() -> [Option<QuietHours>; 3] {
    [None, QuietHours::new(11 * 60, 13 * 60), QuietHours::new(22 * 60, 6 * 60)]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Level {
    Nothing,
    BelowLow,
    Between,
    AboveHigh,
}

/// One case and the expected decision according to the table.
struct Case {
    settings: Settings,
    state: DirtyState,
    was_above: (bool, bool),
    level: Level,
    cache_above: bool,
}

impl Case {
    fn above(&self) -> bool {
        self.level == Level::AboveHigh || self.level == Level::Between && self.was_above.0
    }

    fn trigger(&self) -> Option<Trigger> {
        let (settings, state) = (&self.settings, &self.state);
        let running = settings.writeback_running;
        let lazy = settings.writeback == Laziness::Lazy;
        let used = state.origin_used.is_some_and(|used| NOW.since(used) < AWAKE_FOR);
        let age = settings.dirty_age;
        let aged =
            !age.is_zero() && state.oldest_dirty.is_some_and(|oldest| NOW.since(oldest) >= age);
        let rests = !settings.idle.is_zero() && NOW.since(state.last_foreground) >= settings.idle;
        [
            (state.draining, Trigger::Draining),
            (state.space_wanted, Trigger::Space),
            (running && self.above(), Trigger::Watermark),
            (running && self.cache_above, Trigger::CacheWatermark),
            (running && settings.quiet_hours == quiet()[1], Trigger::Quiet),
            (running && lazy && used, Trigger::Awake),
            (running && !lazy && rests, Trigger::Idle),
            (running && !lazy && aged, Trigger::Age),
        ]
        .into_iter()
        .find_map(|(holds, trigger)| (holds && self.level != Level::Nothing).then_some(trigger))
    }

    fn urgency(&self, trigger: Trigger) -> Urgency {
        let outside = self.settings.quiet_hours == quiet()[2];
        let clients = NOW.since(self.state.last_foreground) < Duration::from_secs(10);
        match (trigger, outside) {
            (Trigger::Draining | Trigger::Space, _) => Urgency::Urgent,
            _ if self.settings.writeback == Laziness::Lazy => match clients {
                true => Urgency::Polite,
                false => Urgency::Free,
            },
            (Trigger::Awake, _) => panic!("only with writeback=lazy"),
            (Trigger::Watermark | Trigger::CacheWatermark, _) => Urgency::Polite,
            (Trigger::Quiet, _) | (Trigger::Idle, false) => Urgency::Free,
            (Trigger::Age, false) => Urgency::Polite,
            (Trigger::Idle | Trigger::Age, true) => Urgency::Slow,
        }
    }

    fn check(&self) {
        let mut pacer = Pacer::new(self.settings.clone());
        (pacer.volume.above, pacer.cache.above) = self.was_above;
        let decision = pacer.decide(NOW, &self.state);
        let trigger = self.trigger();
        let case = (&self.state, &self.settings, self.was_above);
        assert_eq!(pacer.trigger(), trigger, "{case:?}");
        match (decision, trigger) {
            (Decision::Write { urgency }, Some(trigger)) => {
                assert_eq!(urgency, self.urgency(trigger), "{case:?}");
            }
            (Decision::Idle { look_again }, None) => {
                assert!(look_again > NOW && look_again <= NOW + LOOK_AGAIN, "{case:?}");
            }
            _ => panic!("{decision:?} for {trigger:?} at {case:?}"),
        }
        assert_eq!(pacer.volume.above, self.above(), "{case:?}");
        assert_eq!(pacer.cache.above, self.cache_above, "{case:?}");
    }
}

const BOTH: [bool; 2] = [false, true];

/// Every combination of the inputs of a decision.
#[test]
fn the_whole_matrix() {
    use Level::{AboveHigh, BelowLow, Between, Nothing};
    let mut cases = 0;
    let levels = [Nothing, BelowLow, Between, AboveHigh]
        .into_iter()
        .flat_map(|level| BOTH.map(|was_above| (level, was_above)));
    let caches = [(0u64, false, false), (550, false, false), (550, true, true), (600, false, true)];
    let switches = BOTH
        .into_iter()
        .flat_map(|running| BOTH.map(|draining| (running, draining)))
        .flat_map(|(running, draining)| BOTH.map(|space| (running, draining, space)));
    let ages = [(0, None), (0, Some(5000)), (600, None), (600, Some(599)), (600, Some(600))];
    let idles = [(0, 5000), (3, 0), (3, 2), (3, 3), (3, 5000)];
    let kinds = [
        (Laziness::Eager, Some(0)),
        (Laziness::Lazy, None),
        (Laziness::Lazy, Some(9)),
        (Laziness::Lazy, Some(10)),
    ];
    for (level, was_above) in levels {
        for (running, draining, space_wanted) in switches.clone() {
            for (cache_dirty_blocks, cache_was_above, cache_above) in caches {
                for (max_age, oldest) in ages {
                    for (idle, last) in idles {
                        for (quiet_hours, (writeback, used)) in
                            quiet().into_iter().flat_map(|quiet| kinds.map(|kind| (quiet, kind)))
                        {
                            let settings = Settings {
                                writeback_running: running,
                                dirty_age: Duration::from_secs(max_age),
                                idle: Duration::from_secs(idle),
                                quiet_hours,
                                writeback,
                                ..Settings::default()
                            };
                            let dirty_blocks = match level {
                                Nothing => 0,
                                BelowLow => 399,
                                Between => 450,
                                AboveHigh => 500,
                            };
                            let state = DirtyState {
                                dirty_blocks,
                                cache_dirty_blocks,
                                capacity_blocks: 1000,
                                share_blocks: 1000,
                                oldest_dirty: oldest.map(seconds_ago),
                                last_foreground: seconds_ago(last),
                                origin_used: used.map(seconds_ago),
                                draining,
                                space_wanted,
                                time_of_day: NOON,
                            };
                            let was_above = (was_above, cache_was_above);
                            Case { settings, state, was_above, level, cache_above }.check();
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 4 * 2 * 8 * 4 * 5 * 5 * 3 * 4);
}

fn lazy(quiet_hours: Option<QuietHours>) -> Pacer {
    Pacer::new(Settings { writeback: Laziness::Lazy, quiet_hours, ..Settings::default() })
}

/// A lazy sweep continues until nothing is dirty, whatever started it, and then leaves the disk
/// alone.
#[test]
fn a_lazy_sweep_goes_on_until_nothing_is_dirty() {
    let few = DirtyState {
        dirty_blocks: 1,
        capacity_blocks: 1000,
        share_blocks: 1000,
        ..DirtyState::default()
    };
    let starts = [
        (DirtyState { draining: true, ..few }, Trigger::Awake),
        (DirtyState { space_wanted: true, ..few }, Trigger::Awake),
        (DirtyState { dirty_blocks: 500, ..few }, Trigger::Watermark),
        (DirtyState { cache_dirty_blocks: 600, ..few }, Trigger::CacheWatermark),
        (DirtyState { origin_used: Some(NOW), ..few }, Trigger::Awake),
    ];
    for (start, goes_on_as) in starts {
        let mut pacer = lazy(None);
        assert!(matches!(pacer.decide(NOW, &few), Decision::Idle { .. }), "{start:?}");
        assert!(matches!(pacer.decide(NOW, &start), Decision::Write { .. }), "{start:?}");
        let later = NOW + Duration::from_secs(600);
        for _ in 0..3 {
            assert!(matches!(pacer.decide(later, &few), Decision::Write { .. }), "{start:?}");
            assert_eq!(pacer.trigger(), Some(goes_on_as));
        }
        pacer.decide(later, &DirtyState { dirty_blocks: 0, ..few });
        assert!(matches!(pacer.decide(later, &few), Decision::Idle { .. }), "{start:?}");
    }
}

#[test]
fn lazy_quiet_hours_have_one_sweep() {
    let mut pacer = lazy(quiet()[1]);
    let mut trigger = |hour: u64, dirty_blocks| {
        let time_of_day = Duration::from_secs(hour * 3600);
        let capacity_blocks = 1000;
        let state = DirtyState {
            dirty_blocks,
            capacity_blocks,
            share_blocks: capacity_blocks,
            time_of_day,
            ..DirtyState::default()
        };
        pacer.decide(NOW, &state);
        pacer.trigger()
    };
    for _ in 0..2 {
        assert_eq!(trigger(10, 9), None);
        assert_eq!(trigger(11, 9), Some(Trigger::Quiet));
        assert_eq!(trigger(12, 2), Some(Trigger::Quiet));
        assert_eq!(trigger(12, 0), None);
        assert_eq!(trigger(12, 5), None);
        assert_eq!(trigger(14, 5), None);
    }
    assert_eq!(trigger(11, 0), None);
    assert_eq!(trigger(12, 5), None, "nothing was dirty when they began");
}

fn pure_watermarks(dirty_high: u8, dirty_low: u8) -> Pacer {
    Pacer::new(Settings {
        dirty_high,
        dirty_low,
        cache_dirty_high: dirty_high,
        cache_dirty_low: dirty_low,
        dirty_age: Duration::ZERO,
        idle: Duration::ZERO,
        ..Settings::default()
    })
}

/// Returns whether the volume's own dirty blocks, or those of other volumes, start writeback.
fn writes(pacer: &mut Pacer, dirty_blocks: u64, of_others: bool) -> bool {
    let (own, all) = if of_others { (1, dirty_blocks) } else { (dirty_blocks, 0) };
    let state = DirtyState {
        dirty_blocks: own,
        cache_dirty_blocks: all,
        capacity_blocks: 100,
        share_blocks: 100,
        ..DirtyState::default()
    };
    matches!(pacer.decide(NOW, &state), Decision::Write { .. })
}

/// Every pair of watermarks, from empty to full and back.
#[test]
fn hysteresis_for_every_pair_of_watermarks() {
    for high in 0..=100u8 {
        for low in 0..=high {
            let mut pacer = pure_watermarks(high, low);
            for dirty in 0..=100u64 {
                let expected = dirty > 0 && dirty >= u64::from(high);
                let found = writes(&mut pacer, dirty, false);
                assert_eq!(found, expected, "{low}..{high}, up to {dirty}");
            }
            for dirty in (0..=100u64).rev() {
                let expected = dirty > u64::from(low) || (dirty > 0 && dirty >= u64::from(high));
                let found = writes(&mut pacer, dirty, false);
                assert_eq!(found, expected, "{low}..{high}, down to {dirty}");
            }
            // If the whole cache is above its watermark, one dirty block of the volume is enough.
            let mut pacer = pure_watermarks(high.max(2), low.max(1));
            let (high, low) = (u64::from(high.max(2)), u64::from(low.max(1)));
            assert!(!writes(&mut pacer, high - 1, true) && writes(&mut pacer, high, true));
            assert!(writes(&mut pacer, low + 1, true) || low + 1 > high);
            assert!(!writes(&mut pacer, low.min(high - 1), true), "{low}..{high}");
        }
    }
}

#[test]
fn the_next_look_is_at_the_nearest_deadline() {
    let mut pacer = Pacer::new(Settings::default());
    let mut look = |age_left: u64, idle_left: u64| {
        let state = DirtyState {
            dirty_blocks: 1,
            capacity_blocks: 100,
            share_blocks: 100,
            oldest_dirty: Some(Nanos(NOW.0 - 600 * SECOND + age_left)),
            last_foreground: Nanos(NOW.0 - 10 * SECOND + idle_left),
            ..DirtyState::default()
        };
        match pacer.decide(NOW, &state) {
            Decision::Idle { look_again } => look_again.0 - NOW.0,
            Decision::Write { .. } => 0,
        }
    };
    assert_eq!(look(7, 9), 7);
    assert_eq!(look(9, 7), 7);
    assert_eq!(look(5 * SECOND, 2 * SECOND), SECOND);
    assert_eq!(look(0, 7), 0);
    assert_eq!(look(7, 0), 0);
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let mut pacer = Pacer::new(Settings {
        dirty_age: Duration::MAX,
        idle: Duration::MAX,
        dirty_high: 255,
        dirty_low: 255,
        cache_dirty_high: 255,
        ..Settings::default()
    });
    let state = DirtyState {
        dirty_blocks: u64::MAX - 1,
        cache_dirty_blocks: u64::MAX - 1,
        capacity_blocks: u64::MAX,
        share_blocks: u64::MAX,
        oldest_dirty: Some(Nanos(0)),
        ..DirtyState::default()
    };
    assert!(matches!(pacer.decide(NOW, &state), Decision::Idle { .. }));
    let full = DirtyState { dirty_blocks: u64::MAX, ..state };
    assert!(matches!(pacer.decide(NOW, &full), Decision::Write { .. }));
    let empty =
        DirtyState { capacity_blocks: 0, share_blocks: 0, draining: true, ..DirtyState::default() };
    assert!(matches!(pacer.decide(NOW, &empty), Decision::Idle { .. }));
}

#[test]
fn a_volume_that_may_have_more_may_have_it_in_the_cache_too() {
    let settings =
        |dirty_high, dirty_low| Settings { dirty_high, dirty_low, ..Settings::default() };
    assert_eq!(settings(50, 40).cache_watermarks(), (50, 60));
    assert_eq!(settings(60, 10).cache_watermarks(), (50, 60));
    assert_eq!(settings(80, 10).cache_watermarks(), (50, 80));
    assert_eq!(settings(80, 70).cache_watermarks(), (70, 80));
}
