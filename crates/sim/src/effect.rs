//! The completion of an operation of a simulated disk: its effect or its fault.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::Clock;
use forebay_device::{DeviceDone, DeviceError, DeviceErrorKind, IoBuf};

use crate::disk::{Effect, Fate, PendingEffect, SimDisk, State};
use crate::faults::happens;
use crate::image::{Patch, PatchContent};
use crate::stamp::{self, SECTOR};
use crate::trace::hash_bytes;

impl SimDisk {
    pub(crate) fn error(
        &self,
        what: &'static str,
        offset: u64,
        kind: DeviceErrorKind,
    ) -> DeviceError {
        DeviceError {
            kind,
            device: self.name.clone(),
            what,
            offset,
            cause: "injected by the simulator".into(),
        }
    }

    pub(crate) fn take_effect(&self, state: &mut State, operation: PendingEffect) -> DeviceDone {
        let PendingEffect { id, effect, fate } = operation;
        let outage = self.shared.clock.now() < state.outage_until || fate == Fate::Fails;
        let (kind, result, buf, hash) = match effect {
            Effect::Read { offset, mut buf } => {
                let result = self.complete_read(state, offset, &mut buf, outage);
                let hash = if result.is_ok() { hash_bytes(&buf) } else { 0 };
                ("read", result, Some(buf), hash)
            }
            Effect::Change { patch, early, buf, what, durable } => {
                state.changes += 1;
                let result = self.complete_change(state, &patch, &early, what, outage);
                if durable && result.is_ok() {
                    state.image.settle(patch.first..patch.first + patch.sectors());
                }
                self.shared.tick();
                (what, result, buf, 0)
            }
            Effect::Sync { before } => {
                let result = self.complete_sync(state, before, outage);
                self.shared.tick();
                ("sync", result, None, 0)
            }
        };
        self.shared.event(
            "done",
            &[self.number, id, u64::from(result.is_ok()), hash],
            format_args!(
                "{} {kind} #{id} {}",
                self.name,
                if result.is_ok() { "ok" } else { "failed" }
            ),
        );
        DeviceDone { result, buf }
    }

    fn complete_read(
        &self,
        state: &mut State,
        offset: u64,
        buf: &mut IoBuf,
        outage: bool,
    ) -> Result<(), DeviceError> {
        let sectors = offset / SECTOR as u64..(offset + buf.len() as u64) / SECTOR as u64;
        if happens(state.plan.read_error, &mut state.rng) && !sectors.is_empty() {
            let sector = state.rng.u64(sectors.clone());
            if state.plan.bad_sectors {
                state.bad_sectors.push(sector);
            }
            self.shared.fault(
                "read error",
                &[self.number, sector],
                format_args!("{} sector {sector}", self.name),
            );
            return Err(self.error("read", offset, DeviceErrorKind::Io));
        }
        let rotten = state.rotten.range(sectors.clone()).next().is_some()
            || state.bad_spots.range(sectors.clone()).any(|(_, reads)| !reads);
        if outage || rotten || state.bad_sectors.iter().any(|bad| sectors.contains(bad)) {
            return Err(self.error("read", offset, DeviceErrorKind::Io));
        }
        self.execute_late_in(state, &sectors);
        self.show_some_early(state, sectors);
        state.image.read(offset, buf);
        Ok(())
    }

    /// Makes some sectors of writes in flight visible early; once a read has seen them, they stay.
    fn show_some_early(&self, state: &mut State, sectors: Range<u64>) {
        let State { in_flight, image, rng, order, .. } = state;
        for other in in_flight.values_mut() {
            let Effect::Change { patch, early, .. } = &mut other.effect else { continue };
            let end = (patch.first + patch.sectors()).min(sectors.end);
            for sector in patch.first.max(sectors.start)..end {
                if rng.u32(0..4) == 0 && early.insert(sector) {
                    image.apply_sector(patch, sector, *order);
                    *order += 1;
                }
            }
        }
    }

    fn complete_change(
        &self,
        state: &mut State,
        patch: &Arc<Patch>,
        early: &BTreeSet<u64>,
        what: &'static str,
        outage: bool,
    ) -> Result<(), DeviceError> {
        let offset = patch.first * SECTOR as u64;
        self.execute_late_in(state, &(patch.first..patch.first + patch.sectors()));
        let order = state.order;
        state.order += 1;
        let spot = state.bad_spots.range(patch.first..patch.first + patch.sectors()).next();
        if let Some(spot) = spot.map(|(sector, _)| *sector).filter(|_| !outage) {
            self.shared.fault(
                "bad sector",
                &[self.number, spot],
                format_args!("{} sector {spot}", self.name),
            );
            return Err(self.error(what, offset, DeviceErrorKind::Io));
        }
        if outage || happens(state.plan.write_error, &mut state.rng) {
            if !outage {
                self.shared.fault(
                    "write error",
                    &[self.number, patch.first],
                    format_args!("{} sector {}", self.name, patch.first),
                );
                state.image.process_killed(&patch.without(early), order, &mut state.rng);
            }
            return Err(self.error(what, offset, DeviceErrorKind::Io));
        }
        if happens(state.plan.lost_write, &mut state.rng) && self.taint_all(patch) {
            self.shared.fault(
                "lost write",
                &[self.number, patch.first],
                format_args!("{} sector {}", self.name, patch.first),
            );
            return Ok(());
        }
        if happens(state.plan.misdirected_write, &mut state.rng)
            && let Some(elsewhere) = self.misdirect(state, patch)
        {
            state.image.apply(&elsewhere, order);
            return Ok(());
        }
        state.bad_sectors.retain(|bad| !(patch.first..patch.first + patch.sectors()).contains(bad));
        let written = patch.first..patch.first + patch.sectors();
        state.rotten.retain(|sector| !written.contains(sector));
        for rest in patch.without(early) {
            state.image.apply(&rest, order);
        }
        Ok(())
    }

    fn complete_sync(
        &self,
        state: &mut State,
        before: u64,
        outage: bool,
    ) -> Result<(), DeviceError> {
        if outage || happens(state.plan.sync_error, &mut state.rng) {
            if !outage {
                self.shared.fault("sync error", &[self.number], format_args!("{}", self.name));
                let forgotten = state.image.forget_some(&mut state.rng);
                self.shared.forgot(self.number, forgotten);
            }
            return Err(self.error("sync", 0, DeviceErrorKind::Io));
        }
        if std::mem::take(&mut state.doubtful) {
            return Err(self.error("sync", 0, DeviceErrorKind::Io));
        }
        self.execute_late_in(state, &(0..u64::MAX));
        state.image.sync(before);
        Ok(())
    }

    /// Taints every place whose data `patch` contains and records its loss, because the data does
    /// not arrive where it should. Returns `false` if `patch` contains no data.
    fn taint_all(&self, patch: &Patch) -> bool {
        let PatchContent::Data(bytes) = &patch.content else { return false };
        let mut any = false;
        for sector in bytes.as_chunks::<SECTOR>().0 {
            if let Some((place, _)) = stamp::read(sector, self.shared.seed) {
                self.shared.taint(place);
                self.shared.lose(place);
                any = true;
            }
        }
        any
    }

    /// Returns a patch with the same data for another place where all sectors contain stamped data,
    /// and taints both places.
    fn misdirect(&self, state: &mut State, patch: &Patch) -> Option<Arc<Patch>> {
        let PatchContent::Data(bytes) = &patch.content else { return None };
        let (sectors, total) = (patch.sectors(), state.image.sectors());
        let aligned = total.checked_sub(sectors)? / 8;
        for _ in 0..64 {
            let first = state.rng.u64(0..=aligned) * 8;
            let target = first..first + sectors;
            let stamped = |sector| stamp::read(state.image.visible(sector), self.shared.seed);
            if first == patch.first || !target.clone().all(|sector| stamped(sector).is_some()) {
                continue;
            }
            if !self.taint_all(patch) {
                return None;
            }
            for (place, _) in target.filter_map(stamped) {
                self.shared.taint(place);
            }
            self.shared.fault(
                "misdirected write",
                &[self.number, patch.first, first],
                format_args!("{} sector {} went to {first}", self.name, patch.first),
            );
            return Some(Arc::new(Patch { first, content: PatchContent::Data(bytes.clone()) }));
        }
        None
    }
}
