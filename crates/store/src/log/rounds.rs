//! Rounds: one commit or write of the log serves all callers that arrive together.

use forebay_lane::Notify;
use parking_lot::Mutex;

/// Maximum number of commits in flight if none needs a sync: one closes records and writes while
/// another waits.
pub(super) const COMMITS_WITHOUT_SYNC: usize = 3;
/// The most write rounds in flight. They are short, and a single one at a time gathers more callers
/// for each header: with 32 callers on a disk, one completes a sixth more of them per second than
/// three.
pub(super) const WRITES: usize = 1;
/// Most ample rounds in flight. Callers that were answered together return together, and if all of
/// them waited for one round, the device would be idle meanwhile.
pub(super) const AMPLE_ROUNDS: usize = 16;
/// A round is ample if the caller's open record has this many blocks: enough to be worth a header.
pub(crate) const AMPLE: usize = 16;

#[derive(Default)]
struct State {
    started: u64,
    /// Rounds in flight.
    running: usize,
    /// Number of ample rounds in flight.
    ample: usize,
    /// Whether the last round to begin expected to need no sync.
    without_sync: bool,
    ended_well: u64,
    failed: bool,
    /// Lanes on which a caller gathers others before it begins a round; one bit per lane.
    gathering: u64,
}

impl State {
    /// Returns the caller's next step on a lane, unless it could begin a round.
    fn known(&self, wanted: u64, lane: u64) -> Option<Round> {
        if self.ended_well >= wanted {
            return Some(Round::Covered(self.ended_well));
        }
        if self.failed {
            return Some(Round::Failed);
        }
        // A round that covers the caller is in flight, or will be soon.
        (self.started >= wanted || self.gathering & lane != 0).then_some(Round::Wait)
    }

    /// Returns whether one more round may be in flight.
    fn has_room(&self, most: usize, without_sync: bool, ample: bool) -> bool {
        let most = match (without_sync && self.without_sync, ample) {
            (false, _) => 1,
            (true, true) => AMPLE_ROUNDS,
            // An ample round is in flight, so the caller waits: its record will be ample soon as
            // well.
            (true, false) if self.ample > 0 => 1,
            (true, false) => most,
        };
        self.running < most
    }
}

/// Numbers rounds, and decides which caller runs one and which callers wait.
pub(crate) struct Rounds {
    /// Name of one round, for messages.
    pub(crate) name: &'static str,
    /// Maximum number of rounds in flight if none needs a sync.
    most: usize,
    state: Mutex<State>,
    /// Notified when a round ended.
    pub(crate) ended: Notify,
}

/// A round in flight.
#[derive(Clone, Copy)]
pub(crate) struct RoundTicket {
    pub(crate) number: u64,
    /// Whether no record closed before needs a sync.
    pub(crate) without_sync: bool,
    ample: bool,
}

/// The result of [`Rounds::join`].
pub(crate) enum Round {
    /// The caller may begin a round: it lets other ready tasks append first, then calls
    /// [`Rounds::begin`].
    Gather,
    /// The caller runs this round.
    Run(RoundTicket),
    /// A round that covers the caller succeeded.
    Covered(u64),
    /// A round in flight covers the caller, or there are as many as are allowed: wait for
    /// [`Rounds::ended`].
    Wait,
    /// A round failed; no later one succeeds.
    Failed,
}

impl Rounds {
    pub(crate) fn new(name: &'static str, most: usize) -> Self {
        Rounds { name, most, state: Mutex::default(), ended: Notify::default() }
    }

    /// Joins a round, or makes the caller gather for one. `wanted` must be 0 at first; after
    /// [`Round::Wait`], pass the same variable again. A round covers a caller if it began after the
    /// caller's first call. `ample` is called only if the caller may have to run a round.
    ///
    /// `without_sync`: the round will need no sync. Several such rounds may be in flight, so that
    /// one closes and writes while another waits. Each covers everything that was closed before it
    /// finished closing, so the order in which they end does not matter.
    pub(crate) fn join(
        &self,
        wanted: &mut u64,
        lane: u16,
        without_sync: impl FnOnce() -> bool,
        ample: impl FnOnce() -> bool,
    ) -> Round {
        let bit = bit_of(lane);
        {
            let state = self.state.lock();
            if *wanted == 0 {
                *wanted = state.started + 1;
            }
            if let Some(round) = state.known(*wanted, bit) {
                return round;
            }
        }
        // Called without the lock of the rounds, because `ample` may take a lock that is held when
        // the lock of the rounds is taken.
        let ample = ample();
        let mut state = self.state.lock();
        if let Some(round) = state.known(*wanted, bit) {
            return round;
        }
        if !state.has_room(self.most, without_sync(), ample) {
            return Round::Wait;
        }
        state.gathering |= bit;
        Round::Gather
    }

    /// Begins the round for which the caller has gathered, unless another lane was faster or there
    /// is no room any more.
    pub(crate) fn begin(
        &self,
        gathering: Gathering<'_>,
        wanted: u64,
        without_sync: impl FnOnce() -> bool,
        ample: bool,
    ) -> Round {
        let mut state = self.state.lock();
        // If this caller runs no round, dropping `gathering` wakes its waiters: the round that
        // covers this caller may have begun before they arrived, and have ended.
        if let Some(round) = state.known(wanted, 0) {
            return round;
        }
        let without_sync = without_sync();
        if !state.has_room(self.most, without_sync, ample) {
            return Round::Wait;
        }
        // The waiters of `gathering` now wait for the end of this round, so it is not dropped.
        state.gathering &= !bit_of(gathering.lane);
        std::mem::forget(gathering);
        state.running += 1;
        state.ample += usize::from(ample);
        state.without_sync = without_sync;
        state.started += 1;
        Round::Run(RoundTicket { number: state.started, without_sync, ample })
    }

    /// Ends a round; a failure is the end of all rounds.
    pub(crate) fn end(&self, round: RoundTicket, well: bool) {
        {
            let mut state = self.state.lock();
            state.running -= 1;
            state.ample -= usize::from(round.ample);
            if well {
                state.ended_well = state.ended_well.max(round.number);
            } else {
                state.failed = true;
            }
        }
        self.ended.notify_all();
    }

    /// Returns the number of the round that will cover everything done before this call.
    pub(crate) fn next(&self) -> u64 {
        self.state.lock().started + 1
    }

    /// Returns the highest number of a successful round.
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().ended_well
    }
}

fn bit_of(lane: u16) -> u64 {
    1 << (lane % 64)
}

/// A caller that gathers others on its lane: they wait for its round. If it is dropped, one of them
/// takes its place.
pub(crate) struct Gathering<'a> {
    rounds: &'a Rounds,
    lane: u16,
}

impl<'a> Gathering<'a> {
    /// Call this after [`Round::Gather`].
    pub(crate) fn new(rounds: &'a Rounds, lane: u16) -> Self {
        Gathering { rounds, lane }
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.rounds.state.lock().gathering &= !bit_of(self.lane);
        self.rounds.ended.notify_all();
    }
}

/// Ends a round when dropped; a round that is dropped without a result has failed.
pub(crate) struct RoundEnding<'a> {
    rounds: &'a Rounds,
    round: RoundTicket,
    well: bool,
}

impl<'a> RoundEnding<'a> {
    pub(crate) fn new(rounds: &'a Rounds, round: RoundTicket) -> Self {
        RoundEnding { rounds, round, well: false }
    }

    pub(crate) fn end(mut self, well: bool) {
        self.well = well;
    }
}

impl Drop for RoundEnding<'_> {
    fn drop(&mut self) {
        self.rounds.end(self.round, self.well);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Joins, and begins at once if that is possible.
    fn begin(rounds: &Rounds, wanted: &mut u64, without_sync: bool, ample: bool) -> Round {
        match rounds.join(wanted, 0, || without_sync, || ample) {
            Round::Gather => {
                rounds.begin(Gathering::new(rounds, 0), *wanted, || without_sync, ample)
            }
            other => other,
        }
    }

    fn run(rounds: &Rounds, without_sync: bool, ample: bool) -> Option<RoundTicket> {
        match begin(rounds, &mut 0, without_sync, ample) {
            Round::Run(ticket) => Some(ticket),
            Round::Wait => None,
            Round::Gather | Round::Covered(_) | Round::Failed => {
                panic!("nobody has run a round for this caller")
            }
        }
    }

    #[test]
    fn callers_of_a_lane_wait_for_the_one_that_gathers() {
        let rounds = Rounds::new("a round", COMMITS_WITHOUT_SYNC);
        let join = |wanted: &mut u64, lane| rounds.join(wanted, lane, || false, || false);
        let (mut first, mut second, mut other) = (0, 0, 0);
        assert!(matches!(join(&mut first, 0), Round::Gather));
        assert!(matches!(join(&mut second, 0), Round::Wait), "the first one gathers");
        assert!(matches!(join(&mut other, 1), Round::Gather), "no lane waits for another one");
        let begin =
            |lane, wanted| rounds.begin(Gathering::new(&rounds, lane), wanted, || false, false);
        let Round::Run(round) = begin(1, other) else { panic!("none is on its way") };
        assert!(matches!(begin(0, first), Round::Wait), "the other lane's round covers it");
        rounds.end(round, true);
        assert!(matches!(join(&mut first, 0), Round::Covered(1)));
        assert!(matches!(join(&mut second, 0), Round::Covered(1)));

        // A round of another lane begins and ends while this one gathers. A caller that arrived in
        // between is not covered, and learns that no lane is gathering any more.
        let (mut before, mut between, mut other) = (0, 0, 0);
        assert!(matches!(join(&mut before, 0), Round::Gather));
        assert!(matches!(join(&mut other, 1), Round::Gather));
        let Round::Run(round) = begin(1, other) else { panic!("none is on its way") };
        assert!(matches!(join(&mut between, 0), Round::Wait));
        rounds.end(round, true);
        let mut told = std::pin::pin!(rounds.ended.listen());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(told.as_mut().poll(&mut context).is_pending());
        assert!(matches!(begin(0, before), Round::Covered(2)));
        assert!(told.as_mut().poll(&mut context).is_ready());
        assert!(matches!(join(&mut between, 0), Round::Gather));
        drop(Gathering::new(&rounds, 0));

        // The third caller gathers and is dropped.
        let (mut third, mut fourth) = (0, 0);
        assert!(matches!(join(&mut third, 0), Round::Gather));
        assert!(matches!(join(&mut fourth, 0), Round::Wait));
        drop(Gathering::new(&rounds, 0));
        assert!(matches!(join(&mut fourth, 0), Round::Gather));
    }

    #[test]
    fn a_round_covers_whoever_came_before_it_began() {
        let rounds = Rounds::new("a round", COMMITS_WITHOUT_SYNC);
        let begin = |wanted: &mut u64| begin(&rounds, wanted, false, false);
        assert_eq!((rounds.next(), rounds.last()), (1, 0));
        let first = run(&rounds, false, false).expect("none is on its way");
        assert_eq!((first.number, first.without_sync), (1, false));
        assert_eq!(rounds.next(), 2);

        // This caller arrived after the round began, so it waits for the next round.
        let mut late = 0;
        assert!(matches!(begin(&mut late), Round::Wait));
        assert_eq!(late, 2);
        rounds.end(first, true);
        assert_eq!(rounds.last(), 1);
        let Round::Run(second) = begin(&mut late) else {
            panic!("the first round does not cover it")
        };
        assert_eq!((second.number, late), (2, 2));
        // Another caller of the same time waits for the same round.
        assert!(matches!(begin(&mut 2), Round::Wait));
        rounds.end(second, true);
        assert!(matches!(begin(&mut 2), Round::Covered(2)));
        assert!(matches!(begin(&mut 1), Round::Covered(2)));
    }

    #[test]
    fn after_a_failed_round_none_ends_well() {
        let rounds = Rounds::new("a round", COMMITS_WITHOUT_SYNC);
        let begin = |wanted: u64| begin(&rounds, &mut { wanted }, false, false);
        let round = run(&rounds, false, false).expect("none is on its way");
        rounds.end(round, true);
        let round = run(&rounds, false, false).expect("none is on its way");
        // Dropped without a result.
        drop(RoundEnding::new(&rounds, round));
        assert_eq!(rounds.last(), 1);
        assert!(matches!(begin(0), Round::Failed));
        assert!(matches!(begin(2), Round::Failed));
        assert!(matches!(begin(1), Round::Covered(1)), "that went well");
    }

    /// Counts the rounds that can begin before a caller must wait, and ends them.
    fn side_by_side(rounds: &Rounds, without_sync: bool, ample: bool) -> usize {
        let running: Vec<_> = (0..50).map_while(|_| run(rounds, without_sync, ample)).collect();
        assert!(running.iter().all(|it| it.without_sync == without_sync));
        let count = running.len();
        running.into_iter().for_each(|round| RoundEnding::new(rounds, round).end(true));
        count
    }

    #[test]
    fn several_rounds_are_on_their_way_where_none_needs_a_sync() {
        let rounds = Rounds::new("a round", COMMITS_WITHOUT_SYNC);
        for (without_sync, ample, most) in [
            (false, false, 1),
            (false, true, 1),
            (true, false, COMMITS_WITHOUT_SYNC),
            (true, true, AMPLE_ROUNDS),
            (true, false, COMMITS_WITHOUT_SYNC),
        ] {
            let count = side_by_side(&rounds, without_sync, ample);
            assert_eq!(count, most, "{without_sync} {ample}");
        }

        // A round that is not ample waits only for ample rounds.
        let plain = run(&rounds, true, false).expect("none is on its way");
        let ample = run(&rounds, true, true).expect("there is room");
        assert!(run(&rounds, true, false).is_none());
        rounds.end(ample, true);
        let other = run(&rounds, true, false).expect("only one is on its way");
        rounds.end(plain, true);
        rounds.end(other, true);
    }

    #[test]
    fn a_round_with_a_sync_is_alone() {
        let rounds = Rounds::new("a round", COMMITS_WITHOUT_SYNC);
        let with_sync = run(&rounds, false, true).expect("none is on its way");
        assert!(run(&rounds, true, true).is_none(), "one with a sync is on its way");
        rounds.end(with_sync, true);
        let without = run(&rounds, true, true).expect("none is on its way");
        assert!(without.without_sync);
        assert!(run(&rounds, false, true).is_none(), "one without a sync is on its way");
        rounds.end(without, true);
        assert!(run(&rounds, false, true).is_some());
    }
}
