//! The rate of writeback while clients use the same origin.
//!
//! [`RateControl`] is a proportional-integral controller, like bcache's for its dirty target. It
//! drives this error to zero:
//!
//! ```text
//! error = pressure - slowdown
//! pressure = (dirty share - dirty_low) / (dirty_high - dirty_low), from 0 to 4
//! slowdown = log2(latency of foreground requests on the origin / latency setting), from -1 to 3
//! ```
//!
//! So client latency on the origin is held at the setting while little is dirty and at twice the
//! setting at the high watermark; well beyond that writeback takes precedence. If no client uses
//! the origin, the slowdown is -1 and the rate grows until the origin is saturated.
//!
//! The controller works on the logarithm of the rate, so that the same gains fit origins from 1
//! MB/s to some GB/s. It is in velocity form, without a sum that could wind up: limits apply to the
//! rate itself. The rate never grows beyond twice the achieved rate, so that it falls quickly when
//! clients come back.
//!
//! [`TokenBucket`] limits writeback to a rate, in bursts: a disk does several queued writes in
//! address order faster than the same writes one by one.

use std::time::Duration;

use forebay_core::Nanos;
use forebay_settings::Settings;

use crate::writeback::Urgency;

/// Proportional gain: change of the logarithm of the rate per change of the error.
const PROPORTIONAL: f64 = 0.05;

/// Integral gain: the same change per second for which the error lasts.
const INTEGRAL: f64 = 0.3;

/// The rate is changed at most this often.
const INTERVAL: Duration = Duration::from_millis(100);

/// A longer pause counts as this.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Bytes per second that are always allowed, so that there is something to measure: bcache's
/// minimum.
const LEAST: f64 = 4096.0;

/// Bytes per second that no origin reaches.
const MOST: f64 = 1e11;

/// Length of a burst, as time at the limited rate.
const BURST: Duration = Duration::from_millis(200);

/// Measurements since the previous call of [`RateControl::look`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of the cache occupied by the volume's dirty blocks, in percent.
    pub dirty_percent: f64,
    /// Mean latency of foreground requests on the origin; `None` if there were none.
    pub latency: Option<Duration>,
    /// Bytes written back.
    pub written: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct RateControl {
    /// Bytes per second.
    rate: f64,
    /// Achieved rate, averaged over some seconds.
    achieved: f64,
    error: f64,
    looked: Option<Nanos>,
}

impl Default for RateControl {
    fn default() -> Self {
        RateControl { rate: LEAST, achieved: 0.0, error: 0.0, looked: None }
    }
}

impl RateControl {
    /// Returns whether [`RateControl::look`] is due.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.looked.is_none_or(|looked| now.since(looked) >= INTERVAL)
    }

    /// Updates the rate of polite writeback from new measurements.
    pub fn look(&mut self, now: Nanos, settings: &Settings, load: &Load) {
        let step = self.looked.map_or(INTERVAL, |looked| now.since(looked));
        self.looked = Some(now);
        let error = pressure(settings, load.dirty_percent) - slowdown(settings, load.latency);
        if step > LONGEST_STEP {
            // Writeback has paused. It starts slowly, because clients may have come meanwhile.
            (self.rate, self.error, self.achieved) = (LEAST, error, 0.0);
        }
        let seconds = step.min(LONGEST_STEP).as_secs_f64().max(1e-3);
        self.achieved += (load.written as f64 / seconds - self.achieved) * (seconds / 2.0).min(1.0);
        let change = PROPORTIONAL * (error - self.error) + INTEGRAL * error * seconds;
        self.error = error;
        let wanted = self.rate * change.exp();
        let reachable = self.rate.max(2.0 * self.achieved);
        let (least, most) = limits(settings);
        self.rate = wanted.min(reachable.max(4.0 * least)).clamp(least, most);
    }

    /// Returns the rate for writeback in bytes per second; `None` for as fast as the origin can.
    pub fn rate(&self, urgency: Urgency, settings: &Settings) -> Option<u64> {
        let (least, most) = limits(settings);
        let ceiling = (settings.writeback_rate_max > 0).then_some(settings.writeback_rate_max);
        match urgency {
            Urgency::Urgent => None,
            Urgency::Free => ceiling,
            Urgency::Polite if settings.writeback_latency.is_zero() => ceiling,
            Urgency::Polite => Some(self.rate.clamp(least, most) as u64),
            Urgency::Slow => Some(least as u64),
        }
    }
}

/// Returns the lowest and the highest rate.
fn limits(settings: &Settings) -> (f64, f64) {
    let most = if settings.writeback_rate_max > 0 {
        (settings.writeback_rate_max as f64).max(LEAST)
    } else {
        MOST
    };
    ((settings.writeback_rate_min as f64).clamp(LEAST, most), most)
}

fn pressure(settings: &Settings, dirty_percent: f64) -> f64 {
    let (low, high) = (f64::from(settings.dirty_low), f64::from(settings.dirty_high));
    ((dirty_percent - low) / (high - low).max(1.0)).clamp(0.0, 4.0)
}

fn slowdown(settings: &Settings, latency: Option<Duration>) -> f64 {
    let wanted = settings.writeback_latency.as_secs_f64();
    match latency {
        Some(latency) if wanted > 0.0 => {
            (latency.as_secs_f64() / wanted).max(1e-9).log2().clamp(-1.0, 3.0)
        }
        _ => -1.0,
    }
}

/// Limits writes to a rate.
#[derive(Clone, Debug, Default)]
pub struct TokenBucket {
    /// Bytes that may be written; negative after overdrafts.
    credit: f64,
    filled: Nanos,
}

impl TokenBucket {
    /// Returns the time at which the next bytes may be written at `rate` bytes per second; `None`
    /// for now.
    pub fn wait(&mut self, now: Nanos, rate: Option<u64>) -> Option<Nanos> {
        let Some(rate) = rate else {
            (self.credit, self.filled) = (0.0, now);
            return None;
        };
        let rate = (rate as f64).max(1.0);
        let burst = rate * BURST.as_secs_f64();
        let passed = now.since(self.filled).as_secs_f64();
        self.filled = now;
        self.credit = (self.credit + passed * rate).min(burst);
        // A debt of more than one second stems from a higher rate.
        self.credit = self.credit.max(-rate);
        if self.credit > 0.0 {
            return None;
        }
        Some(now + Duration::from_secs_f64((burst - self.credit) / rate))
    }

    /// Deducts written bytes.
    pub fn take(&mut self, bytes: u64) {
        self.credit -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100_000_000;

    fn settings() -> Settings {
        Settings { writeback_latency: Duration::from_millis(50), ..Settings::default() }
    }

    /// An origin that takes `capacity` bytes per second, with clients whose requests take `alone`
    /// seconds without writeback, and longer the busier the origin is.
    struct Plant {
        capacity: f64,
        alone: f64,
        clients: bool,
    }

    /// Returns the mean rate achieved in the last ten of `seconds` seconds.
    fn run(control: &mut RateControl, plant: &Plant, dirty: f64, seconds: u64) -> f64 {
        let settings = settings();
        let (mut sum, mut count) = (0.0, 0.0);
        let start = control.looked.map_or(STEP, |at| at.0);
        for step in 1..=seconds * 10 {
            let rate = control.rate(Urgency::Polite, &settings).unwrap_or(u64::MAX) as f64;
            let achieved = rate.min(plant.capacity);
            let used = (achieved / plant.capacity).min(0.95);
            let latency = plant.alone / (1.0 - used);
            let load = Load {
                dirty_percent: dirty,
                latency: plant.clients.then(|| Duration::from_secs_f64(latency)),
                written: (achieved / 10.0) as u64,
            };
            control.look(Nanos(start + step * STEP), &settings, &load);
            if step > (seconds - 10) * 10 {
                sum += achieved;
                count += 1.0;
            }
        }
        sum / count
    }

    #[test]
    fn clients_get_the_promised_latency_and_writeback_the_rest() {
        // At the low watermark the latency equals the setting, at the high one twice the setting.
        for capacity in [1e6, 1e7, 1e9] {
            for (dirty, latency) in [(40.0, 0.050), (45.0, 0.075), (50.0, 0.100)] {
                let plant = Plant { capacity, alone: 0.010, clients: true };
                let rate = run(&mut RateControl::default(), &plant, dirty, 120);
                let expected = capacity * (1.0 - plant.alone / latency);
                let off = (rate / expected - 1.0).abs();
                assert!(off < 0.05, "{capacity} at {dirty} %: {rate}, not {expected}");
            }
        }
    }

    #[test]
    fn where_nobody_is_in_the_way_it_is_as_fast_as_the_origin() {
        for capacity in [1e6, 1e8] {
            let plant = Plant { capacity, alone: 0.0, clients: false };
            let rate = run(&mut RateControl::default(), &plant, 45.0, 30);
            assert!(rate > 0.99 * capacity, "{rate}");
        }
    }

    #[test]
    fn clients_that_come_back_are_noticed_within_seconds() {
        let mut control = RateControl::default();
        run(&mut control, &Plant { capacity: 1e7, alone: 0.02, clients: false }, 42.0, 30);
        let busy = Plant { capacity: 1e7, alone: 0.02, clients: true };
        let rate = run(&mut control, &busy, 42.0, 15);
        assert!(rate < 0.75 * 1e7, "{rate}");
    }

    #[test]
    fn the_floor_and_the_ceiling_hold() {
        let slow = Plant { capacity: 1e7, alone: 1.0, clients: true };
        let mut control = RateControl::default();
        assert_eq!(run(&mut control, &slow, 40.0, 60), f64::from(128 << 10));
        // A very dirty cache takes precedence even so.
        assert!(run(&mut control, &slow, 90.0, 60) > 0.9e7);
        let limited = Settings { writeback_rate_max: 1 << 20, ..settings() };
        let idle = Load { dirty_percent: 90.0, latency: None, written: 1 << 20 };
        for step in 0..1000 {
            control.look(Nanos(step * STEP), &limited, &idle);
            assert!(control.rate(Urgency::Polite, &limited) <= Some(1 << 20));
        }
        for (urgency, expected) in [
            (Urgency::Urgent, None),
            (Urgency::Free, Some(1 << 20)),
            (Urgency::Polite, Some(1 << 20)),
            (Urgency::Slow, Some(128 << 10)),
        ] {
            assert_eq!(control.rate(urgency, &limited), expected, "{urgency:?}");
        }
        let off =
            Settings { writeback_latency: Duration::ZERO, writeback_rate_min: 0, ..settings() };
        assert_eq!(control.rate(Urgency::Polite, &off), None);
        assert_eq!(control.rate(Urgency::Free, &off), None);
        assert_eq!(control.rate(Urgency::Slow, &off), Some(4096));
    }

    #[test]
    fn after_a_rest_it_begins_slowly() {
        let mut control = RateControl::default();
        run(&mut control, &Plant { capacity: 1e8, alone: 0.0, clients: false }, 45.0, 30);
        let before = control.rate;
        control.look(Nanos(u64::MAX / 2), &settings(), &Load::default());
        assert!(before > 9e7 && control.rate <= 1e6, "{before} {}", control.rate);
    }

    #[test]
    fn extreme_numbers_stay_numbers() {
        let mut control = RateControl::default();
        let odd = Settings {
            writeback_rate_min: u64::MAX,
            writeback_rate_max: 1,
            dirty_low: 255,
            dirty_high: 0,
            writeback_latency: Duration::from_nanos(1),
            ..settings()
        };
        for (now, latency) in [(0, Duration::MAX), (1, Duration::ZERO), (u64::MAX, Duration::MAX)] {
            let load = Load { dirty_percent: 1e9, latency: Some(latency), written: u64::MAX };
            control.look(Nanos(now), &odd, &load);
            assert!(control.rate.is_finite() && control.rate >= LEAST, "{}", control.rate);
        }
    }

    #[test]
    fn a_bucket_gives_what_the_rate_says_however_large_the_pieces() {
        for piece in [4096u64, 1 << 20] {
            for rate in [128u64 << 10, 10 << 20] {
                let mut bucket = TokenBucket::default();
                let (mut now, mut written) = (Nanos(0), 0);
                while now < Nanos(100_000_000_000) {
                    match bucket.wait(now, Some(rate)) {
                        Some(at) => {
                            assert!(at > now);
                            now = at;
                        }
                        None => {
                            bucket.take(piece);
                            written += piece;
                        }
                    }
                }
                let most = (rate * 100 + rate).max(8 * piece);
                // A debt beyond one second is forgiven, so larger pieces go faster.
                let least = if piece > rate { rate } else { rate * 99 };
                assert!(written >= least && (piece > rate || written <= most), "{written}");
            }
        }
        let mut bucket = TokenBucket::default();
        bucket.take(u64::MAX);
        assert_eq!(bucket.wait(Nanos(5), None), None);
        assert_eq!(bucket.wait(Nanos(6), Some(u64::MAX)), None);
    }

    #[test]
    fn an_error_counts_by_how_long_it_lasts_however_often_one_looks() {
        for steps in [1, 4, 10] {
            // Halfway between the watermarks, with the latency at the setting.
            let load = Load {
                dirty_percent: 45.0,
                latency: Some(settings().writeback_latency),
                written: 1 << 30,
            };
            let looked = Some(Nanos(0));
            let mut control = RateControl { rate: 1e6, achieved: 1e9, error: 0.5, looked };
            for step in 1..=steps {
                control.look(Nanos(step * 1_000_000_000 / steps), &settings(), &load);
            }
            let expected = 1e6 * (INTEGRAL * 0.5).exp();
            assert!((control.rate / expected - 1.0).abs() < 1e-6, "{steps}: {}", control.rate);
        }
    }

    #[test]
    fn a_look_is_due_at_once_and_then_after_each_interval() {
        let mut control = RateControl::default();
        assert!(control.is_due(Nanos(5)));
        let load = Load { dirty_percent: 1.0, latency: None, written: 0 };
        control.look(Nanos(5), &settings(), &load);
        let next = 5 + INTERVAL.as_nanos() as u64;
        assert!(!control.is_due(Nanos(5)) && !control.is_due(Nanos(next - 1)));
        assert!(control.is_due(Nanos(next)));
    }
}
