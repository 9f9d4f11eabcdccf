//! Simulated disks: their content, which outlives daemons, their health, and the claims on them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::{DeviceErrorKind, DeviceOp, IoBuf, IoData};
use forebay_threads::Instant;
use parking_lot::{Mutex, MutexGuard};

/// Granularity of the content, in bytes.
const PAGE: u64 = 4096;

/// Time within which a command has examined the cache device that it may overwrite.
const FIRST_LOOK: Duration = Duration::from_millis(100);

type Page = Box<[u8]>;

/// The present outcome of operations on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// Operations succeed.
    #[default]
    Good,
    /// Operations, and attempts to open the disk, wait until the health changes.
    Hangs,
    /// Writes and syncs fail; some of the writes have happened nevertheless.
    FailsWrites,
    /// All fail.
    Fails,
}

/// An operation with its data, but without the buffer of its caller.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Read,
    /// Writes bytes at an offset, durably on completion or after the next sync.
    Write {
        offset: u64,
        bytes: Vec<u8>,
        durable: bool,
    },
    Zero(u64, u64),
    Sync,
}

impl Action {
    /// Splits an operation into an action, its offset, and the buffer that is returned to the
    /// caller.
    pub(crate) fn of(op: DeviceOp) -> (Self, u64, Option<IoBuf>) {
        match op {
            DeviceOp::Read { offset, buf } => (Action::Read, offset, Some(buf)),
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                (Action::write(offset, buf.to_vec()), offset, Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) } => {
                let bytes = log.get(range).unwrap_or_default().to_vec();
                (Action::write(offset, bytes), offset, None)
            }
            DeviceOp::DurableWrite { offset, log, range } => {
                let bytes = log.get(range).unwrap_or_default().to_vec();
                (Action::Write { offset, bytes, durable: true }, offset, None)
            }
            DeviceOp::Sync => (Action::Sync, 0, None),
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                (Action::Zero(offset, len), offset, None)
            }
        }
    }

    fn write(offset: u64, bytes: Vec<u8>) -> Self {
        Action::Write { offset, bytes, durable: false }
    }

    fn changes(&self) -> bool {
        matches!(self, Action::Write { .. } | Action::Zero(..))
    }
}

#[derive(Debug, Default)]
struct State {
    size: u64,
    pages: BTreeMap<u64, Page>,
    /// Content that a power cut may restore: pages in their last durable state, or `None` for
    /// zeroes.
    before: BTreeMap<u64, Option<Page>>,
    health: Health,
    /// Whether the content belongs to another user, so that only a command with consent may
    /// overwrite it.
    guarded: bool,
    /// Number of replacements by other systems.
    version: u64,
    /// Commands in progress that may overwrite the disk: the versions that their operators knew,
    /// and when the commands were given.
    consents: Vec<(u64, Instant)>,
    /// Number of claims of the present process.
    claims: u32,
    /// Number of processes that were killed so far.
    process: u64,
    /// Operations that have not ended, and whose callers no longer wait for them.
    late: Vec<Action>,
    complaints: Vec<String>,
}

/// A disk, as long as the world exists.
#[derive(Debug)]
pub(crate) struct Media {
    /// The operators' name of the disk.
    pub(crate) name: String,
    /// The number that identifies the disk.
    pub(crate) number: u64,
    state: Mutex<State>,
}

impl Media {
    pub(crate) fn new(name: &str, number: u64, size: u64) -> Arc<Self> {
        let state = Mutex::new(State { size, ..State::default() });
        Arc::new(Media { name: name.to_owned(), number, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn size(&self) -> u64 {
        self.state().size
    }

    pub(crate) fn health(&self) -> Health {
        self.state().health
    }

    /// Changes the health. Abandoned operations take effect when the disk becomes good again.
    pub(crate) fn set_health(&self, health: Health) {
        let mut state = self.state();
        if state.health == Health::Hangs {
            // Commands that were given while the disk hung examine it only now.
            state.consents.iter_mut().for_each(|(_, given)| *given = Instant::now());
        }
        state.health = health;
        if health == Health::Good {
            for action in std::mem::take(&mut state.late) {
                self.apply(&mut state, &action);
            }
        }
    }

    /// Claims the disk. Returns `None` if it is already claimed.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Arc<DiskClaim>> {
        let mut state = self.state();
        if state.claims > 0 {
            return None;
        }
        state.claims += 1;
        tracing::debug!(disk = self.name, process = state.process, "claimed");
        Some(Arc::new(DiskClaim(self.clone(), state.process)))
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.state().claims > 0
    }

    /// Replaces the content by that of another system, as a tool of that system would, unless the
    /// disk is claimed. The content may then be overwritten only with consent to it. Returns
    /// whether it was replaced.
    pub(crate) fn make_foreign(&self, byte: u8) -> bool {
        let mut state = self.state();
        // Other systems do not overwrite the cache of a volume.
        let is_cache = !state.guarded && !state.pages.is_empty();
        if state.claims > 0 || is_cache || state.health != Health::Good {
            return false;
        }
        state.pages.clear();
        for page in 0..64 {
            state.pages.insert(page, vec![byte; PAGE as usize].into());
        }
        state.before.clear();
        state.guarded = true;
        state.version += 1;
        // A recent command has not examined the disk yet: its consent applies to the content that
        // it will find.
        let version = state.version;
        for (known, given) in &mut state.consents {
            if given.elapsed() < FIRST_LOOK {
                *known = version;
            }
        }
        true
    }

    /// Records that a command in progress may overwrite the disk.
    pub(crate) fn consent(&self) {
        let mut state = self.state();
        let version = state.version;
        state.consents.push((version, Instant::now()));
    }

    /// Ends the consent of a command that has ended. `overwritten`: the previous content is gone
    /// and needs no guard any more.
    pub(crate) fn end_consent(&self, overwritten: bool) {
        let mut state = self.state();
        state.consents.pop();
        state.guarded &= !overwritten;
    }

    /// Executes an action, or fails as the health of the disk demands.
    pub(crate) fn run(
        &self,
        action: &Action,
        offset: u64,
        buf: Option<&mut IoBuf>,
    ) -> Result<(), DeviceErrorKind> {
        let mut state = self.state();
        let is_sync = matches!(action, Action::Sync);
        let fails = match state.health {
            Health::Good | Health::Hangs => false,
            Health::FailsWrites => is_sync || action.changes(),
            Health::Fails => true,
        };
        if fails {
            if state.health == Health::FailsWrites && happens_nevertheless(offset) {
                self.apply(&mut state, action);
            }
            return Err(DeviceErrorKind::Io);
        }
        match (action, buf) {
            (Action::Read, Some(buf)) => state.read(offset, buf),
            _ => self.apply(&mut state, action),
        }
        Ok(())
    }

    fn apply(&self, state: &mut State, action: &Action) {
        let consented =
            !state.guarded || state.consents.iter().any(|(known, _)| *known == state.version);
        if action.changes() && !consented {
            state.complaints.push(format!(
                "{}: content of another system was overwritten without consent",
                self.name
            ));
            state.guarded = false;
        }
        match action {
            Action::Write { offset, bytes, durable } => {
                let pages = state.remember(*offset, bytes.len() as u64);
                state.write(*offset, bytes);
                if *durable {
                    state.before.retain(|page, _| !pages.contains(page));
                }
            }
            Action::Zero(offset, len) => {
                state.remember(*offset, *len);
                state.write(*offset, &vec![0; *len as usize]);
            }
            Action::Sync => state.before.clear(),
            Action::Read => {}
        }
    }

    /// Takes over an operation that its caller has abandoned: it takes effect when the disk
    /// answers.
    pub(crate) fn is_late(&self, action: Action) {
        let mut state = self.state();
        match state.health {
            Health::Hangs => state.late.push(action),
            Health::Good => self.apply(&mut state, &action),
            Health::FailsWrites | Health::Fails => {}
        }
    }

    /// Kills the process: each operation that has not reached the disk may or may not reach it.
    /// `power_cut`: data that is not durable may be lost as well.
    pub(crate) fn crash(&self, rng: &mut fastrand::Rng, power_cut: bool) {
        let mut state = self.state();
        for action in std::mem::take(&mut state.late) {
            if rng.bool() {
                self.apply(&mut state, &action);
            }
        }
        let volatile = if power_cut { std::mem::take(&mut state.before) } else { BTreeMap::new() };
        for (page, before) in volatile {
            if rng.bool() {
                match before {
                    Some(bytes) => state.pages.insert(page, bytes),
                    None => state.pages.remove(&page),
                };
            }
        }
        state.process += 1;
        state.claims = 0;
        // A command that was cut off may have begun to overwrite the disk.
        state.guarded &= std::mem::take(&mut state.consents).is_empty();
    }

    pub(crate) fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.state().complaints)
    }

    /// Reads past all faults.
    pub(crate) fn peek(&self, offset: u64, into: &mut [u8]) {
        self.state().read(offset, into);
    }
}

impl State {
    fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (page, skip) = (at / PAGE, (at % PAGE) as usize);
            let len = (into.len() - done).min(PAGE as usize - skip);
            let part = &mut into[done..done + len];
            match self.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[skip..skip + len]),
                None => part.fill(0),
            }
            done += len;
        }
    }

    /// Saves the durable state of the pages of a range. Returns the numbers of the pages that the
    /// range covers wholly.
    fn remember(&mut self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            if !self.before.contains_key(&page) {
                self.before.insert(page, self.pages.get(&page).cloned());
            }
        }
        offset.div_ceil(PAGE)..end / PAGE
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, skip) = (at / PAGE, (at % PAGE) as usize);
            let len = (bytes.len() - done).min(PAGE as usize - skip);
            let part = &bytes[done..done + len];
            if part.iter().all(|byte| *byte == 0) && !self.pages.contains_key(&page) {
                done += len;
                continue;
            }
            let own = self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            own[skip..skip + len].copy_from_slice(part);
            done += len;
        }
    }
}

/// Keeps other users of a disk out.
#[derive(Debug)]
pub(crate) struct DiskClaim(Arc<Media>, u64);

impl Drop for DiskClaim {
    fn drop(&mut self) {
        let mut state = self.0.state();
        // The claims of a killed process end with it.
        if state.process == self.1 {
            tracing::debug!(disk = self.0.name, "given back");
            state.claims -= 1;
        }
    }
}

/// Returns whether a write takes effect although it is reported as failed, as on a disk whose
/// answer is lost.
fn happens_nevertheless(offset: u64) -> bool {
    (offset / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1
}

/// Returns the duration of an operation.
pub(crate) fn latency(number: u64, offset: u64) -> Nanos {
    // The duration depends on the disk and the offset, and is the same in each run.
    let mixed = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 40;
    Nanos(50_000 + mixed % 400_000)
}
