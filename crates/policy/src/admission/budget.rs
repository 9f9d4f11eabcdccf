//! A daily limit on the bytes written to the cache device, because flash wears out by writing.
//!
//! A token bucket. It fills over time and is emptied by every byte written to the cache device for
//! the volume; while it is empty, fills are refused. Dirty data is never refused, so the bucket can
//! run a debt, which is worked off before the next fill.
//!
//! The bucket holds a 24th of the limit and the rest arrives evenly over the day. So fills stay
//! within the limit in any 24 hours, apart from fills in flight when the bucket ran empty.

use std::time::Duration;

use forebay_core::Nanos;

/// The period to which the limit applies.
pub const PERIOD: Duration = Duration::from_secs(86_400);

/// The bucket holds the limit divided by this.
const BURST: i128 = 24;

/// One byte in the bucket's unit: bytes times nanoseconds of the period.
const BYTE: i128 = PERIOD.as_nanos() as i128;

/// State since the limit was set.
#[derive(Clone, Copy, Debug)]
struct BudgetState {
    limit: u64,
    /// The level of the bucket in units of [`BYTE`]; a negative level is a debt.
    level: i128,
    at: Nanos,
    /// Bytes written up to `at`.
    written: u64,
}

/// The budget of one volume. The caller provides the time and the count of bytes written.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteBudget(Option<BudgetState>);

impl WriteBudget {
    /// Returns whether a fill may be written now. `limit`: bytes per day, 0 for no limit;
    /// `written`: bytes written to the cache device for the volume so far, for any reason.
    ///
    /// The bucket is full when a limit is set; bytes written earlier do not count.
    pub fn allows(&mut self, limit: u64, now: Nanos, written: u64) -> bool {
        if limit == 0 {
            self.0 = None;
            return true;
        }
        let most = i128::from(limit) * BYTE;
        let burst = most / BURST;
        let bucket = self.0.get_or_insert(BudgetState { limit, level: burst, at: now, written });
        let passed = i128::try_from(now.since(bucket.at).as_nanos()).unwrap_or(i128::MAX);
        // The old limit applies up to now, and the new one from now on.
        let rate = i128::from(bucket.limit) - i128::from(bucket.limit) / BURST;
        let filled = rate.saturating_mul(passed);
        let emptied = i128::from(written.saturating_sub(bucket.written)) * BYTE;
        // A debt of more than one day is forgiven, because it is not from this day.
        let level = bucket.level.saturating_add(filled).saturating_sub(emptied).clamp(-most, burst);
        *bucket = BudgetState { limit, level, at: now, written };
        level > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = PERIOD.as_secs();

    fn at(seconds: u64) -> Nanos {
        Nanos(1) + Duration::from_secs(seconds)
    }

    #[test]
    fn without_a_limit_nothing_is_refused_or_counted() {
        let mut budget = WriteBudget::default();
        for second in 0..10 {
            assert!(budget.allows(0, at(second), second << 50));
        }
        assert!(budget.allows(1 << 30, at(10), 9 << 50));
        // A changed limit keeps the bucket; removing the limit and setting one again makes a new
        // bucket.
        assert!(!budget.allows(1 << 30, at(11), 10 << 50));
        assert!(!budget.allows(2 << 30, at(12), 10 << 50));
        assert!(budget.allows(0, at(13), 10 << 50));
        assert!(budget.allows(2 << 30, at(14), 10 << 50));
    }

    /// Fills as often as allowed, in steps of different lengths and amounts.
    #[test]
    fn fills_of_a_day_reach_but_never_exceed_the_limit() {
        for (limit, fill, step) in [
            (1 << 30, 4096, 1),
            (100 << 30, 1 << 20, 1),
            (1 << 40, 4096 * 256, 1),
            (1 << 20, 4096, 60),
        ] {
            let mut budget = WriteBudget::default();
            let mut written = 0;
            // Bytes written by the end of each step, for five days.
            let mut history = vec![0];
            for second in (0..5 * DAY).step_by(step) {
                // As many fills as a fast client would request in that time.
                for _ in 0..100 {
                    if !budget.allows(limit, at(second), written) {
                        break;
                    }
                    written += fill;
                }
                history.push(written);
            }
            let day = DAY as usize / step;
            let worst = history.windows(day + 1).map(|day| day[day.len() - 1] - day[0]).max();
            let worst = worst.expect("five days");
            assert!(worst <= limit + fill, "{limit}: {worst} in a day");
            let last = written - history[history.len() - 1 - day];
            let reachable = limit.min(100 * fill * day as u64);
            assert!(last >= reachable / 100 * 95, "{limit}: {last} in the last day");
        }
    }

    #[test]
    fn dirty_writes_run_up_a_debt_of_at_most_a_day() {
        let limit = 24 << 30;
        for (dirty, hours) in [(1u64 << 30, 1), (3 << 30, 3), (25 << 30, 25), (1 << 50, 25)] {
            let mut budget = WriteBudget::default();
            assert!(budget.allows(limit, at(0), 0));
            let first = (0..100 * 3600)
                .step_by(60)
                .find(|second| budget.allows(limit, at(1 + second), dirty))
                .expect("some time");
            // The first GiB was in the bucket, so the bucket refills slightly below the limit.
            let expected = (hours - 1) * 3600 * 24 / 23;
            assert!((expected..=expected + 3700).contains(&first), "{dirty}: {first} s");
        }
    }

    #[test]
    fn absurd_numbers_do_no_harm() {
        let mut budget = WriteBudget::default();
        for limit in [1, 4096, u64::MAX] {
            for now in [0, 1, u64::MAX, 5] {
                for written in [0, u64::MAX, 7] {
                    budget.allows(limit, Nanos(now), written);
                }
            }
        }
    }
}
