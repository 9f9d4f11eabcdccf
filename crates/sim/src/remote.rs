//! Origins on other machines: connections that are lost, and requests that time out, as the clients
//! of NBD and Ceph handle them.
//!
//! - *A lost connection.* Each operation in flight has taken effect before, wholly, in part, or not
//!   at all. It is resent after the reconnection, in any order, unless its caller has abandoned it.
//!   If no connection is made in time, operations fail, including those that are started meanwhile.
//! - *A new server.* The server may have been restarted, and have lost some changes that were not
//!   synced. The client cannot tell. If there was anything to lose, the next sync therefore fails,
//!   as do those in flight. A client that is reopened does not know of earlier connections.
//! - *A timeout.* An operation fails. A change may still be executed later, and is then durable. It
//!   is executed before later operations on the same sectors, and before a later sync ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Clock, Nanos};

use crate::disk::{Effect, Fate, PendingEffect, SimDisk, State};
use crate::faults::happens;
use crate::image::Patch;

/// The longest time without a connection.
const LONGEST_AWAY: Duration = Duration::from_secs(3);

/// Maximum time after which a change that has timed out is executed.
const LATEST: Duration = Duration::from_secs(2);

/// Draws a time below `most`, mostly far below.
fn below(most: Duration, rng: &mut fastrand::Rng) -> Duration {
    let most = most.as_nanos() as u64 >> rng.u32(0..12);
    Duration::from_nanos(rng.u64(0..most.max(1)))
}

impl SimDisk {
    /// Sometimes loses the connection, or lets operations time out.
    pub(crate) fn disturb_connection(&self, state: &mut State) {
        if happens(state.plan.disconnect, &mut state.rng) {
            self.disconnect(state);
        }
        if happens(state.plan.timeout, &mut state.rng) {
            self.time_out(state);
        }
    }

    fn disconnect(&self, state: &mut State) {
        let now = self.shared.clock.now();
        let back = now + below(LONGEST_AWAY, &mut state.rng);
        let (gives_up, anew) = (state.rng.u32(0..4) == 0, state.rng.bool() && state.plan.forgets);
        let in_flight = std::mem::take(&mut state.in_flight);
        let (name, count) = (&self.name, in_flight.len());
        self.shared.fault(
            "lost connection",
            &[self.number, back.0, count as u64],
            format_args!("{name} until {back}, {count} in flight, in vain {gives_up}, anew {anew}"),
        );
        // A sync that was started after the last change covers all changes.
        let complete = state.order;
        let doubtful = state.image.has_unsynced();
        for PendingEffect { effect, .. } in in_flight.values() {
            if let Effect::Change { patch, early, .. } = effect {
                let order = state.order;
                state.order += 1;
                state.image.process_killed(&patch.without(early), order, &mut state.rng);
            }
        }
        if anew {
            let forgotten = state.image.forget_some(&mut state.rng);
            self.shared.forgot(self.number, forgotten);
        }
        state.doubtful |= doubtful;
        for ((due, id), mut operation) in in_flight {
            let again = back + state.latency.sample(1, &mut state.rng);
            let due = match (operation.fate, &mut operation.effect) {
                (Fate::Abandoned, _) => continue,
                (Fate::Late | Fate::Fails, _) => due,
                (Fate::Normal, Effect::Sync { before }) if doubtful => {
                    // This sync reports the loss.
                    state.doubtful &= *before < complete;
                    operation.fate = Fate::Fails;
                    now
                }
                (Fate::Normal, _) if gives_up => {
                    operation.fate = Fate::Fails;
                    back
                }
                (Fate::Normal, Effect::Change { early, .. }) => {
                    early.clear();
                    again
                }
                (Fate::Normal, Effect::Read { .. } | Effect::Sync { .. }) => again,
            };
            state.in_flight.insert((due, id), operation);
        }
        let until = if gives_up { &mut state.outage_until } else { &mut state.away_until };
        *until = back.max(*until);
    }

    /// Makes some operations in flight fail, and executes some of the changes among them later.
    fn time_out(&self, state: &mut State) {
        let now = self.shared.clock.now();
        self.shared.fault("timeout", &[self.number], format_args!("{}", self.name));
        let in_flight = std::mem::take(&mut state.in_flight);
        for ((due, id), mut operation) in in_flight {
            if operation.fate != Fate::Normal || state.rng.u32(0..3) == 0 {
                state.in_flight.insert((due, id), operation);
                continue;
            }
            if let Effect::Change { patch, what, .. } = &operation.effect
                && state.rng.bool()
            {
                let effect = Effect::change(patch.clone(), None, what);
                let (number, at) = (state.next_id, now + below(LATEST, &mut state.rng));
                state.next_id += 1;
                let late = PendingEffect { id: number, effect, fate: Fate::Late };
                state.in_flight.insert((at, number), late);
            }
            operation.fate = Fate::Fails;
            state.in_flight.insert((now, id), operation);
        }
    }

    /// Executes a change that has timed out.
    pub(crate) fn execute_late(&self, state: &mut State, patch: &Arc<Patch>) {
        state.image.apply(patch, state.order);
        state.order += 1;
        state.image.settle(patch.first..patch.first + patch.sectors());
        self.shared.event(
            "late",
            &[self.number, patch.first],
            format_args!("{} executes {}+{}", self.name, patch.first, patch.sectors()),
        );
    }

    /// Executes the changes of these sectors that have timed out.
    pub(crate) fn execute_late_in(&self, state: &mut State, sectors: &Range<u64>) {
        let is_wanted = |operation: &PendingEffect| match &operation.effect {
            Effect::Change { patch, .. } if operation.fate == Fate::Late => {
                patch.first < sectors.end && sectors.start < patch.first + patch.sectors()
            }
            _ => false,
        };
        let wanted = state.in_flight.iter().filter(|(_, operation)| is_wanted(operation));
        let wanted: Vec<(Nanos, u64)> = wanted.map(|(key, _)| *key).collect();
        for key in wanted {
            if let Some(late) = state.in_flight.remove(&key)
                && let Effect::Change { patch, .. } = late.effect
            {
                self.execute_late(state, &patch);
            }
        }
    }
}
