//! The daemon's memory limit, and its use.
//!
//! Memory is counted before it is allocated. Memory that a cache needs for as long as it is open is
//! *held*: if it does not fit, the cache is not opened. Memory for the work of clients is *taken*:
//! if it does not fit, the client waits. A part of the limit cannot be held, so that requests
//! always make progress.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::notify::{Notified, Notify};

const MIB: u64 = 1 << 20;

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// The program, its lanes and the buffers that they keep for reuse.
    Process,
    /// Indexes and segment tables.
    Index,
    /// State of replacement policies and of admission.
    Policy,
    /// Log buffers.
    LogBuffers,
    /// Buffers of writeback, reclaim and checkpoints.
    Background,
    /// RAM devices.
    RamDevices,
    /// Libraries that connect devices of other machines.
    RemoteDevices,
    /// RAM tiers.
    RamTiers,
    /// Clients' connections: their buffers, including those in the kernel.
    Connections,
    /// Requests in progress.
    Requests,
}

impl MemoryUse {
    /// Every use.
    pub const ALL: [MemoryUse; 10] = [
        MemoryUse::Process,
        MemoryUse::Index,
        MemoryUse::Policy,
        MemoryUse::LogBuffers,
        MemoryUse::Background,
        MemoryUse::RamDevices,
        MemoryUse::RemoteDevices,
        MemoryUse::RamTiers,
        MemoryUse::Connections,
        MemoryUse::Requests,
    ];
}

/// A request for memory that exceeds the limit. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The purpose of the memory, as in a message.
    pub what: String,
    /// The requested size.
    pub needed: u64,
    /// The size that is available.
    pub left: u64,
    /// The limit.
    pub limit: u64,
    /// The smallest sufficient limit.
    pub enough: u64,
    /// The largest possible limit.
    pub most: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(MIB);
        let (needed, limit, enough) = (mib(self.needed), mib(self.limit), mib(self.enough));
        write!(
            f,
            "{} needs {needed} MiB of memory, and the limit of {limit} MiB leaves {} MiB for it: ",
            self.what,
            self.left / MIB,
        )?;
        if self.enough > self.most {
            let most = self.most / MIB;
            return write!(
                f,
                "choose a smaller device or RAM tier, or larger blocks; --memory-limit can be at most {most}M here"
            );
        }
        write!(
            f,
            "give --memory-limit {enough}M or more; a running daemon takes 'forebay memory --limit {enough}M', which lasts until it ends"
        )
    }
}

impl std::error::Error for OverLimit {}

/// A limit that is lower than the memory in use allows. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLow {
    /// The memory in use that cannot be returned now.
    pub held: u64,
    /// The lowest possible limit.
    pub least: u64,
}

/// The memory of a daemon, shared by all of its lanes.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicU64,
    /// The largest limit that it can get.
    most: u64,
    /// Only one change of the limit at a time.
    changes: Mutex<()>,
    used: [AtomicU64; MemoryUse::ALL.len()],
    held: AtomicU64,
    freed: Notify,
    waiting: AtomicUsize,
}

impl Default for MemoryBudget {
    /// Returns a budget without a limit.
    fn default() -> Self {
        Self::new(u64::MAX >> 2)
    }
}

impl MemoryBudget {
    /// The smallest usable limit of a daemon, in bytes.
    pub const LEAST: u64 = 256 * MIB;
    /// Least memory reserved for clients, in bytes: the largest request, some 44 MiB, fits into the
    /// part for requests.
    const LEAST_TAKEN: u64 = 96 * MIB;
    /// Optional uses leave at least `1 / SPARED` of the limit for caches that are opened later.
    const SPARED: u64 = 16;
    /// Requests up to this size, in bytes, may use some memory that larger ones may not.
    const SMALL: u64 = 256 << 10;

    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        MemoryBudget {
            limit: AtomicU64::new(limit),
            most: u64::MAX,
            changes: Mutex::default(),
            used: Default::default(),
            held: AtomicU64::new(0),
            freed: Notify::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Returns the budget with the largest limit that it can get, in bytes, for advice.
    #[must_use]
    pub fn up_to(self, most: u64) -> Self {
        MemoryBudget { most, ..self }
    }

    /// Returns the lowest limit that it can get now, in bytes.
    pub fn least_limit(&self) -> u64 {
        Self::enough_for(self.held.load(Ordering::SeqCst))
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Changes the limit. Clients keep the memory that they have taken: with a lower limit, new
    /// requests wait until enough of it has been returned.
    ///
    /// # Errors
    /// More memory is held than the new limit allows; nothing has changed then.
    pub fn set_limit(&self, limit: u64) -> Result<(), TooLow> {
        let _change = self.changes.lock();
        let before = self.limit.swap(limit, Ordering::SeqCst);
        // A concurrent hold either sees the new limit or is counted here.
        let held = self.held.load(Ordering::SeqCst);
        // Memory held for a limited time may exceed the limit. It must not prevent a higher limit,
        // which leaves more room.
        if limit < before && held > self.holdable() {
            self.limit.store(before, Ordering::SeqCst);
            return Err(TooLow { held, least: Self::enough_for(held) });
        }
        self.freed.notify_all();
        Ok(())
    }

    /// Returns the lowest limit with which this many bytes can be held.
    fn enough_for(held: u64) -> u64 {
        let least = held.saturating_add(Self::LEAST_TAKEN);
        least.max(held.div_ceil(3).saturating_mul(4)).max(Self::LEAST)
    }

    /// Returns the bytes in use for one purpose.
    pub fn used(&self, by: MemoryUse) -> u64 {
        self.used[by as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes in use for all purposes.
    pub fn total(&self) -> u64 {
        MemoryUse::ALL.into_iter().map(|by| self.used(by)).sum()
    }

    /// Returns the bytes of the limit that are not held.
    pub fn not_held(&self) -> u64 {
        self.takable()
    }

    /// Returns the bytes that can be held; the rest of the limit is for clients.
    fn holdable(&self) -> u64 {
        let limit = self.limit();
        limit.saturating_sub((limit / 4).max(Self::LEAST_TAKEN))
    }

    /// Holds `bytes` until the result is dropped. Clients share the rest.
    ///
    /// # Errors
    /// Not enough memory is left. `what` is the subject of the error's sentence.
    pub fn hold(
        self: &Arc<Self>,
        by: MemoryUse,
        bytes: u64,
        what: &str,
    ) -> Result<MemoryHold, OverLimit> {
        let mut hold = MemoryHold::none(self, by);
        hold.grow(bytes, what)?;
        Ok(hold)
    }

    /// Returns the bytes of the limit that clients can take.
    fn takable(&self) -> u64 {
        self.limit().saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// Takes `bytes` if at most `most` bytes are then taken for this use.
    fn take(&self, by: MemoryUse, bytes: u64, most: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let taken = &self.used[by as usize];
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes `bytes` for a request of a client that already has `own` bytes, if `own` bytes would
    /// still remain after that: so however many clients take memory without returning it, some is
    /// left for the next one.
    pub fn take_for_request(&self, bytes: u64, own: u64) -> bool {
        let most = self.takable() / 16 * if bytes <= Self::SMALL { 10 } else { 9 };
        self.take(MemoryUse::Requests, bytes, most.saturating_sub(own))
    }

    /// Returns whether a request of `bytes` can get its memory once all others have returned
    /// theirs. Always `true` for requests of moderate size, because memory that is in their way is
    /// held only for a limited time.
    pub fn can_have(&self, bytes: u64) -> bool {
        let most = |takable: u64| takable / 16 * 9;
        bytes <= most(Self::LEAST_TAKEN) || bytes <= most(self.takable())
    }

    /// Takes `bytes` for a connection from the part of the limit that requests cannot take; with
    /// `spare`, only from the first half of it.
    pub fn take_for_connection(&self, bytes: u64, spare: bool) -> bool {
        let most = self.takable() / 16 * if spare { 3 } else { 6 };
        self.take(MemoryUse::Connections, bytes, most)
    }

    /// Takes memory like [`MemoryBudget::take_for_connection`], for a connection from another
    /// machine. A part is left to connections from this machine.
    pub fn take_for_remote_connection(&self, bytes: u64) -> bool {
        self.take(MemoryUse::Connections, bytes, self.takable() / 16 * 5)
    }

    /// Returns memory that was taken.
    pub fn give(&self, by: MemoryUse, bytes: u64) {
        // Subtract before checking for waiters: a waiter that is not counted yet will see the
        // memory.
        self.used[by as usize].fetch_sub(bytes, Ordering::SeqCst);
        if self.has_waiters() {
            self.freed.notify_all();
        }
    }

    /// Returns whether a request waits for memory.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Starts waiting for memory: call this, try again, and await the result if that fails.
    pub fn listen(&self) -> MemoryWait<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        MemoryWait { budget: self, freed: self.freed.listen() }
    }
}

/// A wait for memory, see [`MemoryBudget::listen`].
pub struct MemoryWait<'a> {
    budget: &'a MemoryBudget,
    freed: Notified<'a>,
}

impl MemoryWait<'_> {
    /// Completes when memory has been returned since [`MemoryBudget::listen`].
    pub async fn freed(mut self) {
        (&mut self.freed).await;
    }
}

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        self.budget.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Held memory; returned when this is dropped.
#[derive(Debug)]
pub struct MemoryHold {
    budget: Arc<MemoryBudget>,
    by: MemoryUse,
    bytes: u64,
}

impl MemoryHold {
    /// Makes an empty hold.
    pub fn none(budget: &Arc<MemoryBudget>, by: MemoryUse) -> Self {
        MemoryHold { budget: budget.clone(), by, bytes: 0 }
    }

    /// Holds `bytes` more if the total held is then at most `most`. If not, returns the bytes that
    /// are held already.
    fn grow_to(&mut self, bytes: u64, most: impl Fn(&MemoryBudget) -> u64) -> Result<(), u64> {
        let budget = &self.budget;
        let more = |held: u64| held.checked_add(bytes).filter(|held| *held <= most(budget));
        let before = budget.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)?;
        if before + bytes > most(budget) {
            // The limit was lowered meanwhile, so the memory is returned.
            return Err(budget.held.fetch_sub(bytes, Ordering::SeqCst) - bytes);
        }
        budget.used[self.by as usize].fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        Ok(())
    }

    /// Holds `bytes` more for an optional use, if enough memory is left to open another cache.
    pub fn grow_spare(&mut self, bytes: u64) -> bool {
        let most = |budget: &MemoryBudget| {
            budget.holdable().saturating_sub(budget.limit() / MemoryBudget::SPARED)
        };
        self.grow_to(bytes, most).is_ok()
    }

    /// Turns memory that was held for a limited time into a permanent hold for an optional use, as
    /// [`MemoryHold::grow_spare`] does. Returns `false` if there is not enough for that, and then
    /// holds nothing.
    pub fn keep_spare(&mut self) -> bool {
        let bytes = self.bytes;
        self.shrink(bytes);
        bytes <= self.budget.limit() / MemoryBudget::SPARED && self.grow_spare(bytes)
    }

    /// Holds `bytes` more for a limited time, from memory that future clients could take.
    ///
    /// # Errors
    /// Like [`MemoryBudget::hold`].
    pub fn grow_for_a_while(&mut self, bytes: u64, what: &str) -> Result<(), OverLimit> {
        let most = |budget: &MemoryBudget| {
            let taken = budget.total().saturating_sub(budget.held.load(Ordering::Relaxed));
            budget.limit().saturating_sub(taken.max(MemoryBudget::LEAST_TAKEN / 2))
        };
        self.grow_or_say(bytes, most, what)
    }

    /// Reduces the hold by `bytes`, or to nothing if it has less.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.used[self.by as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.budget.held.fetch_sub(bytes, Ordering::SeqCst);
        if self.budget.has_waiters() {
            self.budget.freed.notify_all();
        }
    }

    /// Holds `bytes` more.
    ///
    /// # Errors
    /// Holds `bytes` more, like [`MemoryBudget::hold`]. On an error the hold is unchanged.
    pub fn grow(&mut self, bytes: u64, what: &str) -> Result<(), OverLimit> {
        self.grow_or_say(bytes, MemoryBudget::holdable, what)
    }

    fn grow_or_say(
        &mut self,
        bytes: u64,
        most: impl Fn(&MemoryBudget) -> u64,
        what: &str,
    ) -> Result<(), OverLimit> {
        self.grow_to(bytes, &most).map_err(|held| OverLimit {
            what: what.into(),
            needed: bytes,
            left: most(&self.budget).saturating_sub(held),
            limit: self.budget.limit(),
            enough: MemoryBudget::enough_for(held.saturating_add(bytes)),
            most: self.budget.most,
        })
    }

    /// Moves the whole hold to a new one.
    #[must_use]
    pub fn take(&mut self) -> MemoryHold {
        let bytes = std::mem::take(&mut self.bytes);
        MemoryHold { budget: self.budget.clone(), by: self.by, bytes }
    }

    /// Adds the memory of another hold of the same use and budget.
    pub fn merge(&mut self, mut other: MemoryHold) {
        debug_assert!(self.by == other.by && Arc::ptr_eq(&self.budget, &other.budget));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 512 * MIB;

    #[test]
    fn holds_are_merged_and_returned_once() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let hold = |bytes| budget.hold(MemoryUse::Index, bytes, "a part").expect("fits");
        let mut whole = hold(3 * MIB);
        whole.merge(hold(4 * MIB));
        assert_eq!((whole.bytes(), budget.used(MemoryUse::Index)), (7 * MIB, 7 * MIB));
        drop(whole);
        assert_eq!((budget.total(), budget.used(MemoryUse::Index)), (0, 0));
    }

    #[test]
    fn held_memory_leaves_room_for_clients_and_names_the_remedy() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let mut held = budget.hold(MemoryUse::Index, 300 * MIB, "the index").expect("fits");
        let error = budget.hold(MemoryUse::Policy, 100 * MIB, "cache x").expect_err("does not");
        assert_eq!((error.needed, error.left), (100 * MIB, 84 * MIB));
        assert!(error.to_string().contains("cache x needs 100 MiB"), "{error}");
        assert!(error.to_string().contains("--memory-limit 534M"), "{error}");
        let small = Arc::new(MemoryBudget::new(LIMIT).up_to(533 * MIB));
        let error = small.hold(MemoryUse::Index, 400 * MIB, "a cache").expect_err("too much");
        let error = error.to_string();
        assert!(error.contains("at most 533M here") && !error.contains("534M"), "{error}");
        let larger = Arc::new(MemoryBudget::new(534 * MIB));
        let _held = larger.hold(MemoryUse::Index, 400 * MIB, "both").expect("what was said");
        held.grow(84 * MIB, "the index").expect("exactly");
        held.grow(1, "the index").expect_err("not a byte more");
        assert_eq!((budget.used(MemoryUse::Index), budget.total()), (384 * MIB, 384 * MIB));
        drop(held);
        assert_eq!((budget.used(MemoryUse::Index), budget.total()), (0, 0));
    }

    #[test]
    fn the_limit_can_be_changed_as_far_as_what_is_held_allows() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let mut held = budget.hold(MemoryUse::RamTiers, 384 * MIB, "a tier").expect("fits");
        held.grow(MIB, "a tier").expect_err("no more than that");
        budget.set_limit(2 * LIMIT).expect("more");
        held.grow(384 * MIB, "a tier").expect("fits now");
        let error = budget.set_limit(2 * LIMIT - MIB).expect_err("too low");
        assert_eq!(error, TooLow { held: 768 * MIB, least: 2 * LIMIT });
        assert_eq!(budget.limit(), 2 * LIMIT);
        held.shrink(384 * MIB);
        budget.set_limit(LIMIT).expect("little enough is held");
        held.grow(MIB, "a tier").expect_err("no more than before");
    }

    #[test]
    fn clients_that_give_nothing_back_leave_something_to_others() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let mut own = [0u64; 16];
        for own in &mut own {
            while budget.take_for_request(MIB, *own) {
                *own += MIB;
            }
        }
        assert!(own[0] > LIMIT / 4 && own[0] <= LIMIT / 3, "{own:?}");
        assert!(budget.total() <= LIMIT / 16 * 9);
        assert!(budget.take_for_request(64 << 10, 0), "nothing is left: {own:?}");
        // Connections have their share, however much requests take.
        while budget.take_for_request(4096, 0) {}
        assert!(budget.take_for_connection(LIMIT / 16 * 3, true));
        assert!(!budget.take_for_connection(4096, true), "half of it is not spare any more");
        assert!(budget.take_for_remote_connection(LIMIT / 16 * 2));
        assert!(!budget.take_for_remote_connection(4096), "the rest is for this machine");
        assert!(budget.take_for_connection(LIMIT / 16, false));
        assert!(!budget.take_for_connection(4096, false), "there is no more");
        assert_eq!(budget.total(), LIMIT);
    }

    #[test]
    fn requests_beyond_all_memory_are_recognised() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        assert!(budget.can_have(LIMIT / 16 * 9) && !budget.can_have(LIMIT / 16 * 9 + 1));
        assert!(budget.take_for_request(LIMIT / 16 * 9, 0), "what it can have, it gets");
        assert!(budget.can_have(LIMIT / 16 * 9), "others give theirs back");
        let _held = budget.hold(MemoryUse::Index, LIMIT / 4 * 3, "a cache").expect("it fits");
        assert!(!budget.can_have(LIMIT / 16 * 9), "a cache stays");
        let mut more = MemoryHold::none(&budget, MemoryUse::Background);
        budget.give(MemoryUse::Requests, LIMIT / 16 * 9);
        more.grow_for_a_while(48 * MIB, "work").expect("it fits");
        assert!(budget.can_have(44 * MIB), "the work ends");
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let budget = Arc::new(MemoryBudget::default());
        let _held = budget.hold(MemoryUse::Index, 1 << 50, "much").expect("fits");
        assert!(budget.take_for_request(1 << 50, 1 << 50));
        assert!(budget.take_for_connection(1 << 50, true));
    }

    #[test]
    fn kept_memory_leaves_room_for_another_cache() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let kept = |bytes| {
            let mut hold = MemoryHold::none(&budget, MemoryUse::Background);
            hold.grow_for_a_while(bytes, "work").expect("there is enough");
            (hold.keep_spare(), budget.used(MemoryUse::Background))
        };
        assert_eq!(kept(LIMIT / 16), (true, LIMIT / 16));
        assert_eq!(kept(LIMIT / 16 + 1), (false, 0), "it is a larger part of the limit");
        let _cache = budget.hold(MemoryUse::Index, LIMIT / 16 * 11, "a cache").expect("it fits");
        assert_eq!(kept(MIB), (false, 0), "the last sixteenth is spared");
        assert_eq!(budget.used(MemoryUse::Background), 0);
    }
}
