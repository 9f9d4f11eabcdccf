//! The route of long sequential writes: around the cache as long as that does not slow their client
//! down.
//!
//! A disk handles a sequential stream well, and every byte that bypasses the cache saves wear of
//! the SSD. But a client that could write faster than the disk is slowed down to the speed of the
//! disk. Which case applies follows from how long the client waits, and from its pace on either
//! route:
//!
//! - The stream bypasses the cache while the origin keeps up with it: for at least a quarter of the
//!   time, none of its writes is in progress there.
//! - If the origin does not keep up, the cache is tried, and stays the route while the stream is a
//!   quarter faster there. So a cache that is no faster than the origin, or full of dirty data, is
//!   not worn without a benefit.
//! - The other route is tried again after ten seconds, and after twice the time whenever that was
//!   in vain.
//!
//! A pace is measured over a window of writes. At first, and after a change of route, the window
//! begins when the client waits only for the new route: when as many writes around the cache have
//! ended as were in progress at a time, or when none is left there.

use std::time::Duration;

use forebay_core::Nanos;

/// A window has at least this many bytes.
const WINDOW_BYTES: u64 = 8 << 20;
/// A window takes at least this long.
const WINDOW_TIME: Duration = Duration::from_millis(50);
/// A client that pauses for longer has not been waiting: a window with such a gap does not count.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// The other route is tried after this time at the earliest.
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Longest time after which the other route is tried, if there is a reason to.
const LAST_RETRY: Duration = Duration::from_secs(640);

/// Destination of long sequential writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// To the origin only.
    #[default]
    Around,
    /// Into the cache, like other writes.
    Cache,
}

/// A number of consecutive writes.
#[derive(Clone, Copy, Debug, Default)]
struct WriteWindow {
    began: Nanos,
    last: Nanos,
    bytes: u64,
    /// Time for which the origin was busy with the stream.
    busy: Duration,
}

/// Chooses the route of a volume's long sequential writes.
#[derive(Debug, Default)]
pub struct StreamRoute {
    route: Route,
    /// Begins with the arrival of a write, which is not counted.
    window: Option<WriteWindow>,
    /// Whether the client waits for the present route alone.
    measuring: bool,
    /// Whether the present route is on trial.
    trial: bool,
    /// Bytes per second around the cache.
    pace_around: u64,
    /// Earliest time of the next trial of the other route.
    retry_at: Nanos,
    retry: Duration,
    /// Number of writes around the cache that have ended since the last change, and the maximum
    /// number in flight.
    ended: u32,
    most: u32,
    /// Number of writes around the cache in progress, and the time since which there has been at
    /// least one.
    under_way: u32,
    busy_since: Nanos,
}

impl StreamRoute {
    /// Returns the route for the next write.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Records that a write around the cache begins.
    pub fn begin(&mut self, now: Nanos) {
        if self.under_way == 0 {
            self.busy_since = now;
        }
        self.under_way += 1;
        self.most = self.most.max(self.under_way);
    }

    /// Records that a write around the cache has ended.
    pub fn end(&mut self, now: Nanos) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0
            && let Some(window) = &mut self.window
        {
            window.busy += now.since(self.busy_since.max(window.began));
        }
        self.ended = self.ended.saturating_add(1);
        let around = self.route == Route::Around && self.ended >= self.most;
        if !self.measuring && (around || self.under_way == 0) {
            self.measuring = true;
        }
    }

    /// Records that long sequential writes of `bytes` in total have arrived, and chooses the route
    /// again.
    pub fn arrived(&mut self, now: Nanos, bytes: u64) {
        if !self.measuring {
            return;
        }
        let begin = WriteWindow { began: now, last: now, bytes: 0, busy: Duration::ZERO };
        let Some(window) = self.window.as_mut().filter(|it| now.since(it.last) <= LONGEST_GAP)
        else {
            self.window = Some(begin);
            return;
        };
        window.last = now;
        window.bytes = window.bytes.saturating_add(bytes);
        let took = now.since(window.began);
        if window.bytes < WINDOW_BYTES || took < WINDOW_TIME {
            return;
        }
        let under_way = now.since(self.busy_since.max(window.began));
        let under_way = if self.under_way > 0 { under_way } else { Duration::ZERO };
        let (busy, bytes) = (window.busy + under_way, window.bytes);
        self.window = Some(begin);
        let pace = u128::from(bytes) * 1_000_000_000 / took.as_nanos();
        let pace = u64::try_from(pace).unwrap_or(u64::MAX);
        let held_up = busy >= took / 4 * 3;
        let pays_off = pace / 5 * 4 >= self.pace_around;
        let may_retry = now >= self.retry_at;
        if self.route == Route::Around {
            self.pace_around = pace;
        }
        match (self.route, self.trial) {
            (Route::Around, true) if held_up => self.settle(Route::Cache, true, now),
            (Route::Around, true) => self.settle(Route::Around, false, now),
            (Route::Around, false) if held_up && may_retry => self.try_out(Route::Cache),
            (Route::Cache, true) if pays_off => self.settle(Route::Cache, false, now),
            (Route::Cache, true) => self.settle(Route::Around, true, now),
            (Route::Cache, false) if !pays_off => self.settle(Route::Around, false, now),
            (Route::Cache, false) if may_retry => self.try_out(Route::Around),
            (Route::Around | Route::Cache, false) => (),
        }
    }

    fn try_out(&mut self, route: Route) {
        self.trial = true;
        self.change_to(route);
    }

    fn change_to(&mut self, route: Route) {
        if self.route != route {
            (self.route, self.window) = (route, None);
            (self.ended, self.most) = (0, self.under_way);
            self.measuring = route == Route::Cache && self.under_way == 0;
        }
    }

    /// Stays on a route until the other one is tried again. `in_vain`: a trial of the other route
    /// has just ended without a gain.
    fn settle(&mut self, route: Route, in_vain: bool, now: Nanos) {
        self.trial = false;
        self.change_to(route);
        self.retry = if in_vain { (self.retry * 2).min(LAST_RETRY) } else { FIRST_RETRY };
        self.retry_at = now + self.retry.max(FIRST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const CHUNK: u64 = 256 << 10;

    /// A client that writes chunks one after the other: `think` time between two chunks, and
    /// `around` or `cache` for each, depending on its route.
    struct Client {
        think: Duration,
        around: Duration,
        cache: Duration,
    }

    /// Runs a client for `seconds`; returns the share of chunks that bypassed the cache, and the
    /// number of changes of the route.
    fn run(stream: &mut StreamRoute, now: &mut Nanos, client: &Client, seconds: u64) -> (f64, u32) {
        let end = *now + Duration::from_secs(seconds);
        let (mut around, mut all, mut changes) = (0, 0, 0);
        while *now < end {
            let route = stream.route();
            stream.arrived(*now, CHUNK);
            if route == Route::Around {
                stream.begin(*now);
                *now = *now + client.around;
                stream.end(*now);
                around += 1;
            } else {
                *now = *now + client.cache;
            }
            all += 1;
            *now = *now + client.think;
            changes += u32::from(stream.route() != route);
        }
        (f64::from(around) / f64::from(all), changes)
    }

    fn client(think: u64, around: u64, cache: u64) -> Client {
        let [think, around, cache] = [think, around, cache].map(Duration::from_micros);
        Client { think, around, cache }
    }

    #[test]
    fn a_stream_that_the_origin_keeps_up_with_goes_round_the_cache() {
        let (mut stream, mut now) = (StreamRoute::default(), Nanos(7));
        // A disk of 100 MB/s, and a client of 60.
        assert_eq!(run(&mut stream, &mut now, &client(1800, 2600, 500), 60), (1.0, 0));
    }

    #[test]
    fn a_client_slowed_by_the_origin_gets_the_cache_at_little_cost() {
        let (mut stream, mut now) = (StreamRoute::default(), Nanos(7));
        let (around, changes) = run(&mut stream, &mut now, &client(50, 2600, 500), 300);
        assert!(around < 0.002, "{around}");
        // Tried again after 10, 20, 40, 80 and 160 s.
        assert!((7..=11).contains(&changes), "{changes}");
    }

    #[test]
    fn a_cache_that_is_no_faster_is_not_worn() {
        for cache in [2600, 2300, 5000] {
            let (mut stream, mut now) = (StreamRoute::default(), Nanos(7));
            let (around, _) = run(&mut stream, &mut now, &client(50, 2600, cache), 300);
            assert!(around > 0.99, "{cache}: {around}");
        }
    }

    #[test]
    fn the_route_follows_the_client_and_the_devices() {
        let (mut stream, mut now) = (StreamRoute::default(), Nanos(7));
        let (fast, slow) = (client(50, 2600, 500), client(3000, 2600, 500));
        run(&mut stream, &mut now, &fast, 60);
        assert_eq!(stream.route(), Route::Cache);
        let (around, _) = run(&mut stream, &mut now, &slow, 60);
        assert!(around > 0.95, "the client has become slow: {around}");
        let (around, _) = run(&mut stream, &mut now, &fast, 60);
        assert!(around < 0.4, "the client has become fast: {around}");
        // The cache is full of dirty data, and accepts writes only as fast as the origin.
        let (around, _) = run(&mut stream, &mut now, &client(50, 2600, 2600), 60);
        assert!(around > 0.95, "the cache has become slow: {around}");
    }

    #[test]
    fn pauses_are_not_taken_for_slowness() {
        let (mut stream, mut now) = (StreamRoute::default(), Nanos(7));
        let fast = client(50, 2600, 500);
        run(&mut stream, &mut now, &fast, 1);
        assert_eq!(stream.route(), Route::Cache);
        for _ in 0..20 {
            now = now + Duration::from_secs(3);
            let (around, _) = run(&mut stream, &mut now, &fast, 1);
            assert!(around < 0.4, "{around}");
        }
    }

    #[test]
    fn many_writes_in_flight_do_not_hide_which_route_is_faster() {
        // 16 MiB in flight, a disk of 107 MB/s, and an SSD of 268.
        let (disk, ssd) = (Duration::from_micros(2450), Duration::from_micros(980));
        let mut stream = StreamRoute::default();
        let (mut in_flight, mut free) = (BTreeSet::new(), [Nanos(7); 2]);
        let (mut now, mut around, mut all) = (Nanos(7), 0, 0);
        for number in 0..300_000 {
            if in_flight.len() == 64
                && let Some((ends, _, route)) = in_flight.pop_first()
            {
                now = ends;
                if route == 0 {
                    stream.end(now);
                }
            }
            stream.arrived(now, CHUNK);
            let (route, takes) = match stream.route() {
                Route::Around => (0, disk),
                Route::Cache => (1, ssd),
            };
            if route == 0 {
                stream.begin(now);
                around += 1;
            }
            free[route] = free[route].max(now) + takes;
            in_flight.insert((free[route], number, route));
            all += 1;
        }
        let share = f64::from(around) / f64::from(all);
        assert!(share < 0.01, "{share}");
    }

    #[test]
    fn a_few_large_writes_have_the_pace_of_many_small_ones() {
        // 16 MiB at a time, at 92 MB/s around the cache and at 212 MB/s through it.
        let (mut stream, mut now, mut around) = (StreamRoute::default(), Nanos(7), 0);
        for _ in 0..1000 {
            stream.arrived(now, 16 << 20);
            if stream.route() == Route::Around {
                stream.begin(now);
                now = now + Duration::from_millis(182);
                stream.end(now);
                around += 1;
            } else {
                now = now + Duration::from_millis(79);
            }
        }
        assert!(around < 20, "{around}");
    }

    #[test]
    fn writes_that_overlap_keep_the_origin_busy_together() {
        let mut stream = StreamRoute::default();
        let ms = |ms: u64| Nanos(1_000_000_000 + ms * 1_000_000);
        stream.begin(ms(0));
        stream.end(ms(1));
        stream.arrived(ms(1), CHUNK);
        let busy = |stream: &StreamRoute| stream.window.map(|window| window.busy);
        stream.begin(ms(2));
        stream.begin(ms(5));
        stream.end(ms(8));
        assert_eq!(busy(&stream), Some(Duration::ZERO));
        stream.end(ms(10));
        assert_eq!(busy(&stream), Some(Duration::from_millis(8)));
        // One more end than begins is harmless.
        stream.end(ms(11));
    }
}
