//! Origins that grow while the system is down or running. A volume keeps its size until it is
//! started with room for more; beyond its old end it then has the origin's content.

use crate::features::Feature;
use crate::oracle::plain;
use crate::presence::Presence;
use crate::stamp::{self, SECTOR, SectorAddress, Value};
use crate::violation::Violation;
use crate::world::World;

/// Maximum number of sectors by which an origin grows at a time.
const MOST: u64 = 2048;

impl World<'_> {
    /// Sometimes grows an origin.
    pub(crate) fn perhaps_grow(&mut self) {
        let rng = &mut self.growth;
        if rng.bool() {
            return;
        }
        let volume = rng.u16(0..self.origins.len() as u16);
        let most = if rng.bool() { 64 } else { MOST };
        let origin = &self.origins[usize::from(volume)];
        let unit = origin.logical_block / SECTOR as u64;
        let sectors = unit * rng.u64(1..=most / unit);
        let seed = self.shared.seed;
        let all = origin.with_image(|image| {
            let old = image.sectors();
            image.grow(sectors);
            for sector in old..old + sectors {
                let mut bytes = [0; SECTOR];
                stamp::fill(&mut bytes, seed, SectorAddress { volume, sector }, 0);
                image.preset(sector, &bytes);
            }
            old + sectors
        });
        self.shared.fault(
            "grown origin",
            &[u64::from(volume), all],
            format_args!("origin-{volume} has {all} sectors"),
        );
    }

    /// Informs the oracle and the clients of the present sizes of the volumes.
    pub(crate) fn take_sizes(&mut self) -> Result<(), Violation> {
        if !self.profile.features.has(Feature::Grown) {
            return Ok(());
        }
        for volume in 0..self.origins.len() as u16 {
            let target = self.instance.as_ref().and_then(|instance| instance.target(0, volume));
            let whole = self.origins[usize::from(volume)].with_image(|image| image.sectors());
            let sectors = match target {
                Some(target) => target.size() / SECTOR as u64,
                None if self.presence[usize::from(volume)] == Presence::Gone => whole,
                None => continue,
            };
            let known = self.oracle.sectors(volume);
            if sectors < known || sectors > whole {
                return Err(plain(
                    22,
                    format!(
                        "volume {volume} had {known} sectors and has {sectors}, its origin {whole}"
                    ),
                ));
            }
            self.judge_behind(volume)?;
            self.oracle.grow(volume, sectors - known);
            for client in self.clients.iter_mut().filter(|client| client.volume == volume) {
                client.has_grown(sectors);
            }
        }
        Ok(())
    }

    /// Checks that nothing was written to an origin beyond the end of its volume.
    pub(crate) fn judge_behind(&self, volume: u16) -> Result<(), Violation> {
        let known = self.oracle.sectors(volume);
        let (seed, lost) = (self.shared.seed, self.oracle.edge_in_doubt(volume));
        self.origins[usize::from(volume)].with_image(|image| {
            let untouched = |sector: &u64| {
                let place = SectorAddress { volume, sector: *sector };
                match stamp::own(image.visible(*sector), seed, place) {
                    Some(Value::Zero) => lost.contains(sector),
                    value => value == Some(Value::Write(0)),
                }
            };
            match (known..image.sectors()).find(|sector| !untouched(sector)) {
                Some(sector) => Err(plain(
                    22,
                    format!("sector {sector} of origin-{volume} was written, behind its volume"),
                )),
                None => Ok(()),
            }
        })
    }
}
