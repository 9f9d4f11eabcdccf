//! Scripted faults: the rules that a test sets, and counts of the device's operations.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use forebay_device::{DeviceErrorKind, DeviceOp};
use parking_lot::Mutex;

/// The range of a whole device.
pub const ANYWHERE: Range<u64> = 0..u64::MAX;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A read.
    Read,
    /// Any operation that changes the content.
    Write,
    /// A discard. Rules for writes apply to it as well.
    Discard,
    /// A sync.
    Sync,
}

impl OpKind {
    /// All kinds; every operation has one of them.
    pub const ALL: [OpKind; 3] = [OpKind::Read, OpKind::Write, OpKind::Sync];

    fn of(op: &DeviceOp) -> Self {
        match op {
            DeviceOp::Read { .. } => OpKind::Read,
            DeviceOp::Discard { .. } => OpKind::Discard,
            DeviceOp::Sync => OpKind::Sync,
            _ => OpKind::Write,
        }
    }

    fn covers(self, other: OpKind) -> bool {
        self == other || (self, other) == (OpKind::Write, OpKind::Discard)
    }
}

/// The effect of a rule.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    Fails(DeviceErrorKind),
    Hangs,
    Panics,
}

const FAILS: Fault = Fault::Fails(DeviceErrorKind::Io);

struct Rule {
    kind: OpKind,
    range: Range<u64>,
    /// Number of further operations to which the rule applies.
    left: u64,
    fault: Fault,
    /// Whether a write to the range removes the rule.
    until_written: bool,
}

/// Counts of the operations that the device has carried out.
#[derive(Default)]
struct DeviceTotals {
    bytes_read: u64,
    writes: u64,
    discards: u64,
    syncs: u64,
    /// Operations that failed because of a rule.
    failed: u64,
}

/// Operations that hang, with their wakers.
#[derive(Default)]
struct Hung {
    ops: BTreeMap<u64, (String, Waker)>,
    last: u64,
}

type Observer = Arc<dyn Fn(&DeviceOp) + Send + Sync>;

/// The faults of one device. The first rule that matches an operation applies.
#[derive(Default)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    hung: Mutex<Hung>,
    counts: Mutex<DeviceTotals>,
    observer: Mutex<Option<Observer>>,
    fenced: AtomicBool,
    protected: AtomicBool,
}

impl Faults {
    fn add(&self, kind: OpKind, range: Range<u64>, left: u64, fault: Fault) {
        self.rules.lock().push(Rule { kind, range, left, fault, until_written: false });
    }

    /// Makes every operation of these kinds fail.
    pub fn fail(&self, kinds: &[OpKind]) {
        kinds.iter().for_each(|kind| self.fail_in(*kind, ANYWHERE));
    }

    /// Makes every operation of this kind that overlaps `range` fail.
    pub fn fail_in(&self, kind: OpKind, range: Range<u64>) {
        self.fail_next(kind, range, u64::MAX);
    }

    /// Makes the next `times` operations of this kind that overlap `range` fail.
    pub fn fail_next(&self, kind: OpKind, range: Range<u64>, times: u64) {
        self.add(kind, range, times, FAILS);
    }

    /// Makes every read of `range` fail until a part of it is written.
    pub fn make_unreadable(&self, range: Range<u64>) {
        let (kind, left, until_written) = (OpKind::Read, u64::MAX, true);
        self.rules.lock().push(Rule { kind, range, left, fault: FAILS, until_written });
    }

    /// Makes operations of this kind fail as not supported.
    pub fn refuse(&self, kind: OpKind) {
        self.add(kind, ANYWHERE, u64::MAX, Fault::Fails(DeviceErrorKind::NotSupported));
    }

    /// Makes the next `times` operations of this kind that overlap `range` panic, in the task that
    /// starts them.
    pub fn panic_in(&self, kind: OpKind, range: Range<u64>, times: u64) {
        self.add(kind, range, times, Fault::Panics);
    }

    /// Makes every operation fail permanently, as on a device that another machine has taken over.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
        for kind in OpKind::ALL {
            self.add(kind, ANYWHERE, u64::MAX, Fault::Fails(DeviceErrorKind::Gone));
        }
    }

    /// Returns whether [`Faults::fence`] was called.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Makes every write fail as on a write-protected device. `told`: the device also reports that
    /// it is write-protected. [`Faults::heal`] ends the protection.
    pub fn protect(&self, told: bool) {
        self.protected.store(told, Ordering::Relaxed);
        let fault = Fault::Fails(DeviceErrorKind::ReadOnly);
        self.add(OpKind::Write, ANYWHERE, u64::MAX, fault);
    }

    /// Returns whether the device reports that it is write-protected.
    pub(crate) fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Relaxed)
    }

    /// Makes every operation of these kinds hang. [`Faults::heal`] lets the operations continue.
    pub fn hang(&self, kinds: &[OpKind]) {
        kinds.iter().for_each(|kind| self.add(*kind, ANYWHERE, u64::MAX, Fault::Hangs));
    }

    /// Removes all rules and wakes the tasks whose operations hang.
    pub fn heal(&self) {
        self.protected.store(false, Ordering::Relaxed);
        self.rules.lock().clear();
        let hung = std::mem::take(&mut self.hung.lock().ops);
        hung.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// Calls `observer` with each operation right before the device carries it out.
    pub fn observe(&self, observer: impl Fn(&DeviceOp) + Send + Sync + 'static) {
        *self.observer.lock() = Some(Arc::new(observer));
    }

    /// Returns the number of bytes read by operations that were carried out.
    pub fn bytes_read(&self) -> u64 {
        self.counts.lock().bytes_read
    }

    /// Returns the number of writes that were carried out.
    pub fn writes(&self) -> u64 {
        self.counts.lock().writes
    }

    /// Returns the number of syncs that were carried out.
    pub fn syncs(&self) -> u64 {
        self.counts.lock().syncs
    }

    /// Returns the number of operations that failed because of a rule.
    pub fn failed(&self) -> u64 {
        self.counts.lock().failed
    }

    /// Makes every operation of these kinds fail as on a device to which no path leads.
    pub fn cut_off(&self, kinds: &[OpKind]) {
        let fault = Fault::Fails(DeviceErrorKind::Unreachable);
        kinds.iter().for_each(|kind| self.add(*kind, ANYWHERE, u64::MAX, fault));
    }

    /// Returns whether a discard was requested, successful or not.
    pub fn has_seen_discards(&self) -> bool {
        self.counts.lock().discards > 0
    }

    /// Describes the operations that hang.
    pub fn hung(&self) -> Vec<String> {
        self.hung.lock().ops.values().map(|(what, _)| what.clone()).collect()
    }

    /// Returns a new number for an operation that hangs.
    pub(crate) fn new_hung(&self) -> u64 {
        let mut hung = self.hung.lock();
        hung.last += 1;
        hung.last
    }

    /// Registers the waker of an operation that hangs.
    pub(crate) fn set_hung(&self, number: u64, op: &DeviceOp, waker: &Waker) {
        let place = op.range().map_or(String::new(), |range| format!(" of {range:?}"));
        let what = format!("{}{place}", op.what());
        self.hung.lock().ops.insert(number, (what, waker.clone()));
    }

    /// Removes an operation that no longer hangs.
    pub(crate) fn remove_hung(&self, number: u64) {
        self.hung.lock().ops.remove(&number);
    }

    /// Returns the fault that applies to an operation, and counts the operation against the rule.
    pub(crate) fn apply(&self, op: &DeviceOp) -> Option<Fault> {
        let kind = OpKind::of(op);
        let range = op.range().unwrap_or(0..1);
        let range = range.start..range.end.max(range.start + 1);
        let asked = matches!(op, DeviceOp::Discard { len, .. } if *len > 0);
        self.counts.lock().discards += u64::from(asked);
        let mut rules = self.rules.lock();
        let matches =
            |rule: &Rule| rule.left > 0 && rule.kind.covers(kind) && overlap(&rule.range, &range);
        let rule = rules.iter_mut().find(|rule| matches(rule))?;
        rule.left -= 1;
        if matches!(rule.fault, Fault::Fails(_)) {
            self.counts.lock().failed += 1;
        }
        Some(rule.fault)
    }

    /// Counts an operation that the device is about to carry out.
    pub(crate) fn note(&self, op: &DeviceOp) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(op);
        }
        let range = op.range().unwrap_or(0..0);
        let mut counts = self.counts.lock();
        match OpKind::of(op) {
            OpKind::Read => counts.bytes_read += range.end - range.start,
            OpKind::Sync => counts.syncs += 1,
            OpKind::Write | OpKind::Discard => {
                counts.writes += 1;
                drop(counts);
                let is_mended = |rule: &Rule| rule.until_written && overlap(&rule.range, &range);
                self.rules.lock().retain(|rule| !is_mended(rule));
            }
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
