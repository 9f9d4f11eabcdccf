//! Known bugs that the simulator must find, to show that its model can fail.
//!
//! They are compiled in with the feature `planted-bugs` only. The simulator runs each world in one
//! thread, so a planted bug is a property of the thread.

use std::cell::Cell;

/// Declares `PlantedBug`: known bugs with their documentation and the names that select them on a
/// command line.
#[macro_export]
macro_rules! planted_bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// A known bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PlantedBug {
            $($(#[$doc])* $bug,)*
        }

        impl PlantedBug {
            /// Every planted bug.
            pub const ALL: &[PlantedBug] = &[$(PlantedBug::$bug),*];

            /// Returns the name of the bug on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(PlantedBug::$bug => $name,)*
                }
            }
        }
    };
}

planted_bugs! {
    // Commits and the log.
    /// A commit does not sync the cache device.
    SkippedSync = "skipped-sync",
    /// A commit closes the record of its own lane only.
    FlushForgetsLane = "flush-forgets-lane",
    /// A commit does not wait until its records are written.
    CommitDoesNotWait = "commit-does-not-wait",
    /// Data that has to survive the daemon is acknowledged before it is written.
    WriteOutDoesNotWait = "write-out-does-not-wait",
    /// No commits happen by time alone.
    NoTimedCommit = "no-timed-commit",
    /// Checksums cover the data, but not its place.
    UnboundChecksum = "unbound-checksum",

    // Marks.
    /// An invalidated block gets no mark.
    GoneWithoutMark = "gone-without-mark",
    /// A write to the origin does not wait for the marks of the copies that it invalidated.
    MarksNotSettled = "marks-not-settled",
    /// A version counts as written back although a newer one has replaced it.
    MarksAnyVersion = "marks-any-version",

    // Checkpoints.
    /// A checkpoint counts before the records that it refers to are durable.
    CheckpointBeforeRecords = "checkpoint-before-records",
    /// A checkpoint counts before all of it is durable.
    CheckpointBeforeCopy = "checkpoint-before-copy",
    /// A checkpoint claims records that were closed after the index was copied.
    CheckpointBaseLate = "checkpoint-base-late",
    /// A checkpoint has no masks: partial blocks come back whole.
    CheckpointWithoutMasks = "checkpoint-without-masks",
    /// A checkpoint has all shards of the index but the last of several.
    CheckpointForgetsShard = "checkpoint-forgets-shard",
    /// The cache is marked as cleanly closed before its volumes have stopped.
    CleanTooEarly = "clean-too-early",

    // Recovery.
    /// If the log has two versions of a block, the one that is replayed later wins.
    ReplayAnyOrder = "replay-any-order",
    /// Blocks that were invalidated come back.
    GoneNotReplayed = "gone-not-replayed",
    /// A mark applies to any version that is in its slot now, even of a later life.
    MarksAnyLife = "marks-any-life",
    /// The payload of a record that was not yet durable is used without verification.
    TornPayloadTaken = "torn-payload-taken",
    /// Segments opened since the checkpoint are not searched for.
    ReopenedNotSeen = "reopened-not-seen",
    /// Sequences restart below those already assigned.
    SequenceRestarts = "sequence-restarts",
    /// Recovery does not see that records are missing.
    GapsNotSeen = "gaps-not-seen",
    /// The cache stays marked as cleanly closed while it is in use.
    CleanFlagStays = "clean-flag-stays",
    /// Blocks of a shard that is not loaded yet count as absent.
    NotLoadedIsAbsent = "not-loaded-is-absent",
    /// Dirty blocks that are loaded later are not counted as dirty.
    LoadedDirtyNotTold = "loaded-dirty-not-told",
    /// A shard that is loaded after a crash lacks the log's changes.
    LoadedWithoutLog = "loaded-without-log",
    /// The accepted end of the log is not recorded before the cache is used.
    AcceptedNotNoted = "accepted-not-noted",

    // Reuse of segments.
    /// A segment is reused before a checkpoint contains its records.
    FreedBeforeCheckpoint = "freed-before-checkpoint",
    /// Generations do not advance: a segment that is opened again has the same one as before.
    GenerationStays = "generation-stays",
    /// After 31 bits generations begin again at 0.
    GenerationsWrap = "generations-wrap",
    /// Reclaim evicts dirty blocks.
    EvictsDirty = "evicts-dirty",

    // The data path.
    /// A write with FUA is acknowledged like any other.
    FuaIgnored = "fua-ignored",
    /// A strict volume acknowledges like any other.
    StrictIgnored = "strict-ignored",
    /// A flush does not sync the origin.
    FlushWithoutOrigin = "flush-without-origin",
    /// A flush relies on a sync of the origin that is already in progress.
    FlushJoinsSync = "flush-joins-sync",
    /// A flush takes the log for durable and does not commit it.
    FlushUncommitted = "flush-uncommitted",
    /// A write around the cache does not lock its range.
    AroundUnlocked = "around-unlocked",
    /// A partial write of a block makes all of its sectors valid.
    WholeMask = "whole-mask",
    /// A read does not check whether the sectors of a cached block are valid.
    MaskIgnored = "mask-ignored",
    /// A discard forgets dirty blocks before the origin is zeroed.
    DiscardForgetsDirty = "discard-forgets-dirty",
    /// A discard gives up dirty blocks before the origin durably has the zeroes.
    DiscardUnsynced = "discard-unsynced",
    /// A dirty block that cannot be read is read from the origin.
    BadBlockFromOrigin = "bad-block-from-origin",

    // Writeback.
    /// Blocks are marked clean before the origin has been synced.
    CleanBeforeOriginSync = "clean-before-origin-sync",
    /// The gap data that is written to the origin between dirty blocks is looked up before the
    /// range is locked.
    GapUnlocked = "gap-unlocked",
    /// A failed write to the origin counts as written back.
    FailedWritebackCleans = "failed-writeback-cleans",
    /// After a failed write of several blocks, all of them count as refused by the origin.
    RunNotSplit = "run-not-split",
    /// A block that the origin refuses counts as written back.
    RefusedCleans = "refused-cleans",
    /// A block that the origin refuses is not noted.
    RefusalForgotten = "refusal-forgotten",
    /// A write that a write-protected origin refuses counts as written back.
    ProtectedWriteDone = "protected-write-done",
    /// A sync of the origin that failed is repeated and believed.
    FailedSyncRetried = "failed-sync-retried",

    // Ordered writeback.
    /// On an ordered volume a flush does not end a group.
    FlushIsNoBoundary = "flush-is-no-boundary",
    /// The horizon of an ordered volume is not made durable.
    HorizonForgotten = "horizon-forgotten",
    /// The next group is written before the origin has been synced.
    GroupUnsynced = "group-unsynced",
    /// Segments with versions that an ordered origin still has to receive are reused.
    HeldNotKept = "held-not-kept",

    // Volumes.
    /// Only the first copy of the volume table is read.
    OneRootOnly = "one-root-only",
    /// Only one superblock and one volume table are replaced by a change.
    RootsOnce = "roots-once",
    /// The addresses of a deleted volume are used again while its blocks are in the index.
    AddressesNotPurged = "addresses-not-purged",
    /// A volume is deleted before its dirty blocks are on the origin.
    DeletesUndrained = "deletes-undrained",
    /// A volume that takes over a larger origin keeps sectors valid behind its old end.
    OldEndStays = "old-end-stays",
    /// All sectors of the first and the last block count as within the volume.
    EdgeIgnored = "edge-ignored",

    // Devices that their paths no longer lead to.
    /// A drain does not look at the path of the origin.
    DisplacedDrained = "displaced-drained",
    /// A stop does not check the path of the origin before it begins.
    DisplacedStopped = "displaced-stopped",
    /// A stop leaves dirty blocks on a cache device that its path no longer leads to.
    DisplacedCacheKept = "displaced-cache-kept",
    /// A stop does not check the paths again when it has ended.
    DisplacedMeanwhile = "displaced-meanwhile",

    /// Dirty blocks are not noted outside of the cache.
    NotesForgotten = "notes-forgotten",

    // The RAM tier.
    /// A fill of the RAM tier replaces data that was written during its read.
    FillsOvertaken = "fills-overtaken",
    /// The RAM tier keeps, of two writes in flight, the copy of the one that ends last.
    RacedCopyKept = "raced-copy-kept",
    /// The RAM tier serves its copy of a range during a write to that range.
    OldCopyServed = "old-copy-served",
    /// A failed write-down counts as done.
    LostWriteDown = "lost-write-down",
    /// Deferred data that is overwritten during its write-down is not written down again.
    RewriteForgotten = "rewrite-forgotten",
    /// A flush does not wait for data that is being written down.
    FlushOvertakesWriteDown = "flush-overtakes-write-down",
    /// A read of the lower tier returns its data even where RAM has newer, deferred data.
    DeferredNotRead = "deferred-not-read",
    /// Data that the RAM tier evicts is cached below although not all of it is current.
    StaleOffer = "stale-offer",
    /// A write to the lower tier does not wait until older data of its range is written down.
    WriteDownOvertaken = "write-down-overtaken",

    // Origins.
    /// A sample of the origin that the cache writes to stays marked as untouched on the cache
    /// device.
    SampleStaysUntouched = "sample-stays-untouched",
    /// Writes are accepted although the origin accepts none.
    ProtectionIgnored = "protection-ignored",
    /// Any origin is accepted as the volume's, and as unchanged.
    AnyOriginWillDo = "any-origin-will-do",
    /// Evidence of the origin's system about writes is ignored.
    EvidenceIgnored = "evidence-ignored",
    /// Evidence is recorded before the last writes of a stop.
    EvidenceTooEarly = "evidence-too-early",
}

thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
}

/// Plants a bug in all code that this thread runs from now on, or removes it.
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Returns whether this thread has the bug. Constant `false` without the feature.
#[inline]
pub fn has(bug: PlantedBug) -> bool {
    cfg!(feature = "planted-bugs") && PLANTED.get() == Some(bug)
}
