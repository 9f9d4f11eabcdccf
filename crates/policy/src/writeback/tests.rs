//! The pacer over its whole matrix, against a model that is written as the table in the docs.

use super::*;

const SECOND: u64 = 1_000_000_000;
const NOW: Nanos = Nanos(10_000 * SECOND);

fn seconds_ago(seconds: u64) -> Nanos {
    Nanos(NOW.0 - seconds * SECOND)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Level {
    Nothing,
    BelowLow,
    Between,
    AboveHigh,
}

/// Every combination of what the decision depends on.
#[test]
fn the_whole_matrix() {
    use Level::*;
    let mut cases = 0;
    for level in [Nothing, BelowLow, Between, AboveHigh] {
        for was_above in [false, true] {
            for running in [false, true] {
                for draining in [false, true] {
                    for space_wanted in [false, true] {
                        for (max_age, oldest) in [
                            (0, None),
                            (0, Some(5000)),
                            (600, None),
                            (600, Some(599)),
                            (600, Some(600)),
                            (600, Some(5000)),
                        ] {
                            for (idle, last) in [(0, 5000), (3, 0), (3, 2), (3, 3), (3, 5000)] {
                                let settings = WritebackSettings {
                                    running,
                                    max_age: Duration::from_secs(max_age),
                                    idle: Duration::from_secs(idle),
                                    ..WritebackSettings::default()
                                };
                                let mut pacer = Pacer::new(settings);
                                pacer.above = was_above;
                                let dirty_blocks = match level {
                                    Nothing => 0,
                                    BelowLow => 399,
                                    Between => 450,
                                    AboveHigh => 500,
                                };
                                let state = DirtyState {
                                    dirty_blocks,
                                    capacity_blocks: 1000,
                                    oldest_dirty: oldest.map(seconds_ago),
                                    last_foreground: seconds_ago(last),
                                    draining,
                                    space_wanted,
                                };
                                let above = level == AboveHigh || level == Between && was_above;
                                let aged = max_age > 0 && oldest.is_some_and(|age| age >= max_age);
                                let rests = idle > 0 && last >= idle;
                                let trigger = [
                                    (draining, Trigger::Draining),
                                    (space_wanted, Trigger::Space),
                                    (running && above, Trigger::Watermark),
                                    (running && aged, Trigger::Age),
                                    (running && rests, Trigger::Idle),
                                ]
                                .into_iter()
                                .find_map(|(holds, trigger)| {
                                    (holds && level != Nothing).then_some(trigger)
                                });

                                let decision = pacer.decide(NOW, &state);
                                let case = (&state, pacer.settings());
                                assert_eq!(pacer.trigger(), trigger, "{case:?}");
                                match (decision, trigger) {
                                    (
                                        Decision::Write { urgency: Urgency::Urgent },
                                        Some(Trigger::Draining | Trigger::Space),
                                    ) => {}
                                    (
                                        Decision::Write { urgency: Urgency::Background },
                                        Some(Trigger::Watermark | Trigger::Age | Trigger::Idle),
                                    ) => {}
                                    (Decision::Idle { look_again }, None) => {
                                        assert!(
                                            look_again > NOW && look_again <= NOW + LOOK_AGAIN,
                                            "{case:?}"
                                        );
                                    }
                                    _ => panic!("{decision:?} for {trigger:?} at {case:?}"),
                                }
                                assert_eq!(pacer.above, above, "{case:?}");
                                cases += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 4 * 2 * 2 * 2 * 2 * 6 * 5);
}

fn pure_watermarks(dirty_high: u8, dirty_low: u8) -> Pacer {
    Pacer::new(WritebackSettings {
        dirty_high,
        dirty_low,
        max_age: Duration::ZERO,
        idle: Duration::ZERO,
        ..WritebackSettings::default()
    })
}

fn writes(pacer: &mut Pacer, dirty_blocks: u64) -> bool {
    let state = DirtyState { dirty_blocks, capacity_blocks: 100, ..DirtyState::default() };
    matches!(pacer.decide(NOW, &state), Decision::Write { .. })
}

/// Every pair of watermarks: up from nothing to full, and down again.
#[test]
fn hysteresis_for_every_pair_of_watermarks() {
    for high in 0..=100u8 {
        for low in 0..=high {
            let mut pacer = pure_watermarks(high, low);
            for dirty in 0..=100u64 {
                let expected = dirty > 0 && dirty >= u64::from(high);
                assert_eq!(writes(&mut pacer, dirty), expected, "{low}..{high}, up to {dirty}");
            }
            for dirty in (0..=100u64).rev() {
                let expected = dirty > u64::from(low) || (dirty > 0 && dirty >= u64::from(high));
                assert_eq!(writes(&mut pacer, dirty), expected, "{low}..{high}, down to {dirty}");
            }
        }
    }
}

#[test]
fn the_next_look_is_at_the_nearest_deadline() {
    let mut pacer = Pacer::new(WritebackSettings::default());
    let mut look = |age_left: u64, idle_left: u64| {
        let state = DirtyState {
            dirty_blocks: 1,
            capacity_blocks: 100,
            oldest_dirty: Some(Nanos(NOW.0 - 600 * SECOND + age_left)),
            last_foreground: Nanos(NOW.0 - 3 * SECOND + idle_left),
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
    let mut pacer = Pacer::new(WritebackSettings {
        max_age: Duration::MAX,
        idle: Duration::MAX,
        dirty_high: 255,
        dirty_low: 255,
        ..WritebackSettings::default()
    });
    let state = DirtyState {
        dirty_blocks: u64::MAX - 1,
        capacity_blocks: u64::MAX,
        oldest_dirty: Some(Nanos(0)),
        ..DirtyState::default()
    };
    assert!(matches!(pacer.decide(NOW, &state), Decision::Idle { .. }));
    let full = DirtyState { dirty_blocks: u64::MAX, ..state };
    assert!(matches!(pacer.decide(NOW, &full), Decision::Write { .. }));
    let empty = DirtyState { capacity_blocks: 0, draining: true, ..DirtyState::default() };
    assert!(matches!(pacer.decide(NOW, &empty), Decision::Idle { .. }));
}

#[test]
fn settings_are_checked() {
    let defaults = WritebackSettings::default;
    assert_eq!(defaults().validate(), Ok(()));
    for (settings, valid) in [
        (WritebackSettings { dirty_high: 100, dirty_low: 100, ..defaults() }, true),
        (WritebackSettings { dirty_high: 0, dirty_low: 0, ..defaults() }, true),
        (WritebackSettings { dirty_high: 101, ..defaults() }, false),
        (WritebackSettings { dirty_low: 101, ..defaults() }, false),
        (WritebackSettings { dirty_low: 51, ..defaults() }, false),
        (WritebackSettings { depth: 0, ..defaults() }, false),
    ] {
        assert_eq!(settings.validate().is_ok(), valid, "{settings:?}");
    }
}
