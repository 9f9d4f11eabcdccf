//! Tests of everything together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::channel::{RecvTimeoutError, TryRecvError};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Runs threads that increment a number under a lock, send on a channel and sleep now and then.
fn talkers() -> u64 {
    let (sum, (tell, hear)) = (Arc::new(Mutex::new(0)), sync_channel(2));
    for number in 1..=4u64 {
        let (sum, tell) = (sum.clone(), tell.clone());
        let run = move || {
            for round in 0..5 {
                *sum.lock() += number;
                if round == number {
                    sleep(SECOND * number as u32);
                }
                tell.send(number).expect("heard");
            }
        };
        drop(spawn(&format!("talker-{number}"), run).expect("thread"));
    }
    drop(tell);
    let heard = hear.iter().fold(0, |all, number| all * 3 % 1_000_003 + number);
    heard * 1000 + *sum.lock()
}

#[test]
fn a_seed_repeats_a_run_and_so_do_its_decisions() {
    let mut traces = BTreeSet::new();
    for seed in 0..20 {
        let plan = Plan::seed(seed).early(seed % 2 == 1);
        let first = Simulation::run(plan.clone(), talkers);
        let second = Simulation::run(plan, talkers);
        let text = first.decisions.to_string();
        let plan = Plan::repeat(text.parse().expect("its own text")).early(seed % 2 == 1);
        let third = Simulation::run(plan, talkers);
        for other in [second, third] {
            assert_eq!(
                (first.trace, first.steps, first.time),
                (other.trace, other.steps, other.time)
            );
            assert_eq!((&first.result, other.failures.len()), (&other.result, 0));
        }
        assert!(first.time == SECOND * 4 || seed % 2 == 1);
        traces.insert(first.trace);
    }
    assert!(traces.len() > 15, "seeds differ: {}", traces.len());
}

/// Returns the results of all runs, and their number.
fn all_runs<T: Ord + Send + 'static>(most: usize, run: fn() -> T) -> (BTreeSet<T>, usize) {
    let (mut all, mut results, mut count) = (Enumeration::new(most), BTreeSet::new(), 0);
    while let Some(plan) = all.next_plan() {
        let outcome = Simulation::run(plan, run);
        all.note(&outcome.decisions);
        results.insert(outcome.unwrap());
        count += 1;
    }
    (results, count)
}

/// Threads write letters.
fn letters<const N: usize>(letters: [&'static str; N]) -> String {
    let text = Arc::new(Mutex::new(String::new()));
    let write = |letters: &'static str| {
        let text = text.clone();
        let run = move || letters.chars().for_each(|letter| text.lock().push(letter));
        spawn("writer", run).expect("thread")
    };
    let threads = letters.map(write);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let text = text.lock();
    text.clone()
}

#[test]
fn an_enumeration_finds_every_order() {
    let (orders, count) = all_runs(usize::MAX, || letters(["ab", "xy"]));
    let expected = ["abxy", "axby", "axyb", "xaby", "xayb", "xyab"];
    assert_eq!(orders, expected.map(str::to_owned).into());
    assert!(count < 10_000, "{count} runs");
    // Without preemption, a thread runs to its end before another one runs.
    let (orders, _) = all_runs(0, || letters(["ab", "k", "xy"]));
    let expected = ["abkxy", "abxyk", "kabxy", "kxyab", "xyabk", "xykab"];
    assert_eq!(orders, expected.map(str::to_owned).into());
}

/// Has a thread check a flag and then wait, without holding the lock in between.
fn loses_a_wake_up() {
    let shared = Arc::new((Mutex::new(false), Condvar::new()));
    let other = shared.clone();
    let waits = move || {
        let (flag, changed) = &*other;
        let is_set = *flag.lock();
        if !is_set {
            drop(changed.wait(flag.lock()));
        }
    };
    let thread = spawn("waiter", waits).expect("thread");
    *shared.0.lock() = true;
    shared.1.notify_all();
    thread.join().expect("no panic");
}

#[test]
fn a_lost_wake_up_is_a_deadlock() {
    let mut all = Enumeration::new(2);
    let (mut good, mut deadlocks) = (0, 0);
    while let Some(plan) = all.next_plan() {
        let outcome = Simulation::run(plan, loses_a_wake_up);
        all.note(&outcome.decisions);
        match &outcome.failures[..] {
            [] => good += 1,
            [Failure::Deadlock(waiting)] => {
                deadlocks += 1;
                let text = outcome.failures[0].to_string();
                assert!(text.contains("'first' waits for the end of a thread at "), "{text}");
                assert!(text.contains("'waiter' waits for an event at "), "{text}");
                assert!(waiting.iter().all(|waiting| waiting.at.file() == file!()), "{text}");
                let again = Simulation::run(Plan::repeat(outcome.decisions), loses_a_wake_up);
                assert_eq!((again.trace, again.failures), (outcome.trace, outcome.failures));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(good > 0 && deadlocks > 0, "{good} good, {deadlocks} deadlocks");
    let by_seed = |seed| !Simulation::run(seed, loses_a_wake_up).failures.is_empty();
    assert!((0..200).any(by_seed), "by chance as well");
}

#[test]
fn locks_in_both_orders_are_a_deadlock() {
    let both = || {
        let [one, two] = [(); 2].map(|()| Arc::new(Mutex::new(())));
        let (first, second) = (one.clone(), two.clone());
        let thread = spawn("other", move || {
            let _second = second.lock();
            let _first = first.lock();
        });
        let held = one.lock();
        drop(two.lock());
        drop(held);
        thread.expect("thread").join().expect("no panic");
    };
    let found =
        (0..100).map(|seed| Simulation::run(seed, both)).find(|run| !run.failures.is_empty());
    let text = found.expect("a deadlock").failures[0].to_string();
    assert_eq!(text.matches("waits for a lock").count(), 2, "{text}");
}

#[test]
fn a_lock_goes_to_those_who_wait_for_it() {
    for seed in 0..20 {
        let outcome = Simulation::run(Plan::seed(seed).every_lock(seed % 2 == 0), || {
            let lock = Arc::new(Mutex::new(0));
            let threads = [(); 5].map(|()| {
                let lock = lock.clone();
                let run = move || {
                    let mut held = lock.lock();
                    let before = *held;
                    sleep(SECOND);
                    *held = before + 1;
                };
                spawn("holder", run).expect("thread")
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert_eq!(*lock.lock(), 5);
        });
        assert_eq!(outcome.time, SECOND * 5);
        outcome.unwrap();
    }
}

#[test]
fn virtual_time_costs_no_real_time() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let begin = std::time::Instant::now();
    let outcome = Simulation::run(1, || {
        let (begin, clock) = (Instant::now(), Simulation::current().expect("simulated").clock());
        let (tell, hear) = channel::<()>();
        assert_eq!(hear.recv_timeout(DAY), Err(RecvTimeoutError::Timeout));
        assert_eq!(begin.elapsed(), DAY);
        let (lock, changed) = (Mutex::new(0), Condvar::new());
        let (guard, waited) = changed.wait_timeout(lock.lock(), DAY);
        assert!(waited.timed_out());
        let (_guard, waited) = changed.wait_timeout_while(guard, DAY, |count| *count == 0);
        assert!(waited.timed_out());
        sleep(DAY);
        Parker::new().park(Some(DAY));
        assert_eq!(hear.try_recv(), Err(TryRecvError::Empty));
        drop(tell);
        assert_eq!(hear.recv_timeout(DAY), Err(RecvTimeoutError::Disconnected));
        assert_eq!(
            (begin.elapsed(), clock.now().since(forebay_core::Nanos(0))),
            (DAY * 5, DAY * 5)
        );
    });
    assert_eq!(outcome.time, DAY * 5);
    outcome.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn time_passes_for_threads_that_spin_and_for_no_others() {
    for seed in 0..50 {
        let outcome = Simulation::run(seed, || {
            let flag = Arc::new(Mutex::new(false));
            let set = flag.clone();
            let worker = spawn("worker", || (0..500).for_each(|_| step())).expect("thread");
            let sleeper = move || {
                sleep(SECOND * 3600);
                *set.lock() = true;
            };
            let sleeper = spawn("sleeper", sleeper).expect("thread");
            let begin = Instant::now();
            while !*flag.lock() {
                assert!(worker.is_finished() || begin.elapsed().is_zero(), "work takes no time");
                yield_now();
            }
            sleeper.join().expect("no panic");
        });
        assert_eq!(outcome.time, SECOND * 3600);
        outcome.unwrap();
    }
}

#[test]
fn a_limit_ends_early_only_if_the_plan_says_so() {
    let timed_out = |early: bool| {
        let run = || {
            let (tell, hear) = channel();
            drop(spawn("sender", move || tell.send(())).expect("thread"));
            hear.recv_timeout(SECOND).is_err()
        };
        let runs =
            (0..500).map(|seed| Simulation::run(Plan::seed(seed).early(early), run).unwrap());
        runs.filter(|timed_out| *timed_out).count()
    };
    assert_eq!(timed_out(false), 0);
    let early = timed_out(true);
    assert!(0 < early && early < 250, "{early}");
}

/// Counts how often it is dropped.
struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for ever, in one of the possible ways.
fn block(way: usize, lock: &Mutex<()>, changed: &Condvar, other: JoinHandle<()>) {
    let ((tell, hear), (full, _kept)) = (channel::<()>(), sync_channel(1));
    full.send(()).expect("space");
    match way {
        0 => drop(lock.lock()),
        1 => drop(changed.wait(Mutex::new(()).lock())),
        2 => drop(changed.wait_timeout(Mutex::new(()).lock(), SECOND * 3600)),
        3 => drop(changed.wait_timeout_while(Mutex::new(()).lock(), SECOND * 3600, |()| true)),
        4 => drop(hear.recv()),
        5 => drop(hear.recv_timeout(SECOND * 3600)),
        6 => drop(full.send(())),
        7 => sleep(SECOND * 3600),
        8 => drop(other.join()),
        9 => Parker::new().park(None),
        _ => loop {
            yield_now();
        },
    }
    drop(tell);
}

#[test]
fn a_crash_ends_threads_wherever_they_wait() {
    for seed in 0..50 {
        let (gone, count) = (Arc::<AtomicUsize>::default(), 22);
        let counted = gone.clone();
        let outcome = Simulation::run(seed, move || {
            let shared = Arc::new((Mutex::new(()), Condvar::new()));
            let holder = shared.clone();
            let (tell, hear) = channel();
            let hold = move || {
                let _held = holder.0.lock();
                tell.send(()).expect("heard");
                sleep(SECOND * 3600);
            };
            drop(spawn("holder", hold).expect("thread"));
            hear.recv().expect("it is held");
            for way in 0..count {
                let (shared, flag) = (shared.clone(), Counts(counted.clone()));
                let sleeps = spawn("sleeper", || sleep(SECOND * 3600)).expect("thread");
                let run = move || {
                    let _flag = flag;
                    let caught = unwind::catch(|| block(way % 11, &shared.0, &shared.1, sleeps));
                    panic!("still there: {caught:?}");
                };
                drop(spawn(&format!("way-{way}"), run).expect("thread"));
            }
            if seed % 2 == 0 {
                (0..1000).for_each(|_| step());
            }
            Simulation::current().expect("simulated").crash();
            assert_eq!(counted.load(Ordering::SeqCst), count);
            // The lock is free, and the caller can start further threads.
            drop(shared.0.lock());
            spawn("next", || sleep(SECOND)).expect("thread").join().expect("no panic");
        });
        assert!(outcome.failures.is_empty(), "seed {seed}: {:?}", outcome.failures);
        assert!(outcome.time <= SECOND * 2);
    }
}

/// Calls every function that waits, while it is dropped.
struct Waits(Receiver<()>, Arc<Mutex<()>>, Option<JoinHandle<()>>, Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        let end = Instant::now() + SECOND * 60;
        while Instant::now() < end {
            sleep(SECOND);
        }
        let changed = Condvar::new();
        let held = self.1.lock();
        let (held, waited) = changed.wait_timeout_while(held, SECOND, |()| true);
        assert!(waited.timed_out());
        drop(changed.wait(held));
        assert!(self.0.recv().is_err());
        assert!(self.0.recv_timeout(SECOND).is_err());
        if let Some(thread) = self.2.take() {
            drop(thread.join());
        }
        self.3.store(true, Ordering::SeqCst);
    }
}

#[test]
fn drops_of_a_crash_wait_for_nothing() {
    for seed in 0..50 {
        let outcome = Simulation::run(seed, || {
            let lock = Arc::new(Mutex::new(()));
            let ended = [(); 3].map(|()| Arc::<AtomicBool>::default());
            let mut tells = Vec::new();
            for ended in &ended {
                let (tell, hear) = channel();
                tells.push(tell);
                let sleeps = spawn("sleeper", || sleep(SECOND * 3600)).expect("thread");
                let waits = Waits(hear, lock.clone(), Some(sleeps), ended.clone());
                let own = lock.clone();
                let run = move || {
                    let _waits = waits;
                    let _held = own.lock();
                    sleep(SECOND * 3600);
                };
                drop(spawn("waits", run).expect("thread"));
            }
            sleep(SECOND);
            Simulation::current().expect("simulated").crash();
            assert!(ended.iter().all(|ended| ended.load(Ordering::SeqCst)));
            assert_eq!(Instant::now().saturating_duration_since(Instant::now()), Duration::ZERO);
        });
        assert!(outcome.failures.is_empty(), "seed {seed}: {:?}", outcome.failures);
        assert_eq!(outcome.time, SECOND);
    }
}

/// Acquires a lock when it is dropped, and waits for the end of a thread while holding it.
struct JoinsLocked(Arc<Mutex<()>>, Option<JoinHandle<()>>);

impl Drop for JoinsLocked {
    fn drop(&mut self) {
        let _held = self.0.lock();
        if let Some(thread) = self.1.take() {
            drop(thread.join());
        }
    }
}

#[test]
fn drops_that_wait_for_each_other_end() {
    for seed in 0..20 {
        let outcome = Simulation::run(seed, || {
            let lock = Arc::new(Mutex::new(()));
            let sleeps = |drops: JoinsLocked| {
                let run = move || {
                    let _drops = drops;
                    sleep(SECOND * 3600);
                };
                spawn("drops", run).expect("thread")
            };
            // The first thread joins a later one, so that the first to unwind has the lock and
            // waits for the second.
            let (tell, hear) = channel();
            let own = lock.clone();
            let first = move || {
                let _drops = JoinsLocked(own, hear.recv().ok());
                sleep(SECOND * 3600);
            };
            drop(spawn("drops", first).expect("thread"));
            tell.send(sleeps(JoinsLocked(lock, None))).expect("heard");
            sleep(SECOND);
        });
        assert!(outcome.failures.is_empty(), "seed {seed}: {:?}", outcome.failures);
    }
}

#[test]
fn a_thread_that_does_not_end_is_left_and_told_of() {
    struct Stays;
    impl Drop for Stays {
        fn drop(&mut self) {
            loop {
                yield_now();
            }
        }
    }
    let outcome = Simulation::run(0, || {
        let stays = Stays;
        let run = move || {
            let _stays = stays;
            sleep(SECOND * 3600);
        };
        drop(spawn("stays", run).expect("thread"));
        sleep(SECOND);
    });
    assert_eq!(outcome.result, Some(()));
    let [Failure::Left(waiting)] = &outcome.failures[..] else { panic!("{:?}", outcome.failures) };
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].thread, "stays");
}

#[test]
fn panics_are_told_of_and_joined() {
    let outcome = Simulation::run(7, || {
        let thread = spawn("bad", || panic!("on purpose")).expect("thread");
        let joined: std::thread::Result<()> = thread.join();
        assert!(joined.is_err_and(|payload| unwind::message(&*payload) == "on purpose"));
        assert!(catch(|| panic!("caught")).is_err());
        5
    });
    assert_eq!(outcome.result, Some(5));
    let expected = Failure::Panic { thread: "bad".to_owned(), message: "on purpose".to_owned() };
    assert_eq!(outcome.failures, [expected]);
}

#[test]
fn a_run_without_end_is_ended() {
    let spins = || loop {
        yield_now();
    };
    let outcome = Simulation::run(Plan::seed(1).most_steps(1000), spins);
    assert!(matches!(outcome.failures[..], [Failure::Endless(_)]), "{:?}", outcome.failures);
    let waits = || loop {
        sleep(SECOND);
    };
    let outcome = Simulation::run(Plan::seed(1).most_time(SECOND * 1000), waits);
    assert!(matches!(outcome.failures[..], [Failure::Endless(_)]), "{:?}", outcome.failures);
}

#[test]
fn real_threads_find_the_same() {
    assert!(Simulation::current().is_none());
    let result = adders();
    assert_eq!(result, Simulation::run(3, adders).unwrap());
    let (lock, changed) = (Mutex::new(0), Condvar::new());
    let (guard, waited) = changed.wait_timeout(lock.lock(), Duration::from_millis(1));
    assert!(waited.timed_out());
    assert!(lock.try_lock().is_none());
    drop(guard);
    let parker = Parker::new();
    let unparker = parker.unparker();
    let thread = spawn("unparks", move || unparker.unpark()).expect("thread");
    parker.park(None);
    thread.join().expect("no panic");
    let (tell, hear) = sync_channel(1);
    assert_eq!(tell.try_send(1), Ok(()));
    assert_eq!(tell.try_send(2), Err(channel::TrySendError::Full(2)));
    assert_eq!(hear.recv_timeout(SECOND), Ok(1));
    assert_eq!(hear.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
    drop(hear);
    assert!(tell.send(3).is_err());
    assert!(Instant::now() >= Instant::now() - SECOND);
}

fn adders() -> u64 {
    let (sum, (tell, hear)) = (Arc::new((Mutex::new(0), Condvar::new())), sync_channel(1));
    let threads = [1, 2, 3].map(|number| {
        let (sum, tell) = (sum.clone(), tell.clone());
        let run = move || {
            for _ in 0..100 {
                *sum.0.lock() += number;
                sum.1.notify_all();
                tell.send(number).expect("heard");
            }
        };
        spawn("adds", run).expect("thread")
    });
    drop(tell);
    let heard: u64 = hear.into_iter().sum();
    let all = sum.1.wait_while(sum.0.lock(), |sum| *sum < 600);
    assert_eq!(*all, heard);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    heard
}
