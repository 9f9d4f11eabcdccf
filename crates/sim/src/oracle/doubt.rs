//! Exceptions to the history: damaged data, lost records, and volumes that grow.

use std::ops::Range;

use super::{Oracle, Violation};
use crate::history::SectorHistory;
use crate::stamp::{SectorAddress, SectorContent, Value};

impl Oracle {
    /// Records that the stored data of a place was damaged; its whole block may become unreadable.
    pub fn taint(&mut self, place: SectorAddress) {
        let now = self.tick();
        let block = self.blocks_of(place.volume, place.sector..place.sector + 1);
        let Some(volume) = self.volumes.get_mut(usize::from(place.volume)) else { return };
        let block = volume.histories.iter_mut().take(block.end as usize).skip(block.start as usize);
        block.for_each(|history| history.taint(now));
        self.excuse_underway();
    }

    /// Excuses failures of the requests in progress that the damage may cause: a request may
    /// already have met it when a later write repairs it.
    fn excuse_underway(&mut self) {
        let mut underway = std::mem::take(&mut self.underway);
        for request in underway.values_mut() {
            request.excused |= self.may_fail(request.asked);
        }
        self.underway = underway;
    }

    /// Records that the log records of a place's block were lost: each sector may have any value
    /// that it ever had. Values `below` are on the origin, and become visible when a stale copy is
    /// dropped.
    pub fn doubt(&mut self, place: SectorAddress, below: impl Fn(u64) -> Vec<Value>) {
        let now = self.tick();
        let block = self.blocks_of(place.volume, place.sector..place.sector + 1);
        let Some(volume) = self.volumes.get_mut(usize::from(place.volume)) else { return };
        volume.edge_in_doubt |= block.end > volume.histories.len() as u64;
        for sector in block.start..block.end.min(volume.histories.len() as u64) {
            let mut values = self.order.values(place.volume, sector);
            let outside = |end: &u64| block.contains(end) && sector >= *end;
            values.extend(volume.ends.iter().any(outside).then_some(Value::Zero));
            let history = &mut volume.histories[sector as usize];
            history.doubt(&values, &below(sector), now);
            // A segment that has been reused may have contained an older version.
            history.taint(now);
            if !std::mem::replace(&mut volume.is_active[sector as usize], true) {
                volume.active.push(sector);
            }
        }
        self.excuse_underway();
    }

    /// Returns whether any data of a volume may be unreadable, or, if it `defers` writes,
    /// unreadable below its RAM tier.
    pub fn has_taint(&self, volume: u16, defers: bool) -> bool {
        let of = if defers { SectorHistory::is_tainted_below } else { SectorHistory::is_tainted };
        let volume = self.volumes.get(usize::from(volume));
        volume.is_some_and(|volume| volume.histories.iter().any(of))
    }

    /// Returns whether a place may be unreadable.
    pub fn is_tainted(&self, place: SectorAddress) -> bool {
        let volume = self.volumes.get(usize::from(place.volume));
        let history = volume.and_then(|volume| volume.histories.get(place.sector as usize));
        history.is_some_and(SectorHistory::is_tainted)
    }

    /// Returns the sectors beyond the end of a volume that an older version of its last block may
    /// have overwritten.
    pub fn edge_in_doubt(&self, volume: u16) -> Range<u64> {
        let end = self.sectors(volume);
        let doubtful = self.volumes.get(usize::from(volume)).is_some_and(|it| it.edge_in_doubt);
        if doubtful { end..self.blocks_of(volume, end.saturating_sub(1)..end).end } else { 0..0 }
    }

    /// Adds `sectors` sectors to a volume, with the initial content of its origin.
    pub fn grow(&mut self, volume: u16, sectors: u64) {
        if sectors == 0 {
            return;
        }
        self.order.grow(volume, sectors);
        let (now, end) = (self.tick(), self.sectors(volume));
        let edge = self.blocks_of(volume, end.saturating_sub(1)..end);
        let Some(volume) = self.volumes.get_mut(usize::from(volume)) else { return };
        volume.ends.push(end);
        let all = volume.histories.len() + sectors as usize;
        volume.histories.resize_with(all, || SectorHistory::new(Value::Write(0)));
        volume.is_active.resize(all, false);
        if std::mem::take(&mut volume.edge_in_doubt) {
            for sector in end..edge.end.min(all as u64) {
                let below = [Value::Write(0)];
                volume.histories[sector as usize].doubt(&[Value::Zero], &below, now);
                volume.is_active[sector as usize] = true;
                volume.active.push(sector);
            }
        }
    }

    /// Judges one durable sector of an origin without the cache, when all volumes have stopped.
    ///
    /// A request that a stop left behind may be answered after the last sync of the origin, and its
    /// survival was not promised: the value that it replaced may still be found.
    ///
    /// # Errors
    /// The sector has none of the values that may be found.
    pub fn judge_alone(
        &self,
        place: SectorAddress,
        content: SectorContent,
    ) -> Result<(), Violation> {
        let volume = self.volumes.get(usize::from(place.volume));
        let Some(history) = volume.and_then(|it| it.histories.get(place.sector as usize)) else {
            return Ok(());
        };
        let expected = history.after_a_crash();
        match content {
            SectorContent::Own(value) if expected.contains(&value) => Ok(()),
            _ => Err(Violation {
                invariant: 15,
                place: Some(place),
                expected,
                got: content.to_string(),
                what: "only the cache has what was durable, and no note names it".into(),
            }),
        }
    }
}
