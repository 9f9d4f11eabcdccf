//! Known bugs that the simulator of the control plane must find, to show that its model can fail.
//!
//! They are compiled in with the feature `planted-bugs` only. A bug is planted in the whole
//! process.

use std::sync::atomic::{AtomicU8, Ordering};

forebay_store::planted_bugs! {
    // The commit point.
    /// Work that was withdrawn continues when the device answers, and takes effect.
    WithdrawnGoesOn = "withdrawn-goes-on",
    /// Work that has committed is reported as failed, and takes effect.
    CommittedIsGivenUp = "committed-is-given-up",
    /// A command that is late is reported as failed.
    LateIsFailed = "late-is-failed",
    /// A deletion that discards dirty blocks strikes the volume from the state before it commits.
    DeletedBeforeCommit = "deleted-before-commit",

    // Formatting.
    /// The content of a cache device is judged only before the wait for the origin.
    JudgedBeforeTheWait = "judged-before-the-wait",
    /// Consent covers any content that a device has when it is formatted.
    ConsentToAnything = "consent-to-anything",
    /// Force overwrites the caches of other volumes if their devices have new names.
    ForceOverOwnCaches = "force-over-own-caches",
    /// A device with unknown content counts as blank.
    UnknownIsBlank = "unknown-is-blank",

    // Claims.
    /// Operations in progress claim no devices.
    NoClaims = "no-claims",
    /// The claim of an operation ends when the operation is given up.
    ClaimEndsEarly = "claim-ends-early",
    /// `stop` says stopped while an earlier operation still uses the devices.
    StoppedWhileClaimed = "stopped-while-claimed",
    /// `stop` reports success while a deletion that was given up may serve the volume again.
    StopDuringDeletion = "stop-during-deletion",
    /// Two operations on one volume run at once.
    TwoAtOnce = "two-at-once",
    /// A command does not wait for the one that it supersedes.
    SupersedesAtOnce = "supersedes-at-once",

    // State.
    /// Clients see a new volume before the state contains it.
    SeenBeforeStored = "seen-before-stored",
    /// A new volume does not count as deleted until it is stored.
    RemainsAfterCrash = "remains-after-crash",
    /// `stop` does not store that the volume is stopped.
    StopNotStored = "stop-not-stored",
    /// A start that fails leaves the volume as started.
    FailedStartStays = "failed-start-stays",
    /// Settings that could not be applied stay stored.
    FailedSetStays = "failed-set-stays",
    /// A new volume keeps the shared settings that its cache device has.
    OldSettingsShared = "old-settings-shared",
    /// A start stores the entry that it read at its beginning.
    WholeEntryStored = "whole-entry-stored",
    /// A volume that is being deleted is restored although the deletion continues.
    DeletionForgotten = "deletion-forgotten",
    /// A completed deletion is not recognised after a crash.
    DeletionNotCompleted = "deletion-not-completed",
    /// A deleted volume stays in the state.
    DeletedStays = "deleted-stays",
    /// A volume that could not be created keeps its name.
    NameStays = "name-stays",

    // Ends.
    /// The end of the daemon waits for operations in progress without cancelling them.
    EndCancelsNothing = "end-cancels-nothing",
    /// The end of the daemon does not stop its volumes.
    EndStopsNothing = "end-stops-nothing",
    /// The end of the daemon stores its volumes as stopped.
    EndStoresStopped = "end-stores-stopped",
    /// A cancelled operation reports success.
    CancelledIsDone = "cancelled-is-done",
}

static PLANTED: AtomicU8 = AtomicU8::new(u8::MAX);

/// Plants a bug, or removes it.
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.store(bug.map_or(u8::MAX, |bug| bug as u8), Ordering::SeqCst);
}

/// Returns whether the bug is planted. Constant `false` without the feature.
#[inline]
pub(crate) fn has(bug: PlantedBug) -> bool {
    cfg!(feature = "planted-bugs") && PLANTED.load(Ordering::SeqCst) == bug as u8
}
