//! External writers: after a crash, an origin is written to, or replaced by another device, before
//! the system is opened again.
//!
//! The system must detect this by a sample that it has not written itself, or by the identity. It
//! may then refuse the origin, which must stay untouched, or, if the cache has nothing newer of
//! that volume, serve the external writer's data. At the end the world is restored, so that the
//! oracle can continue.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_core::{Op, Survives};
use forebay_engine::{
    BlockService, Completion, CompletionSink, EngineError, EngineErrorKind, Obstacle, Request,
};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::volume::samples::{SAMPLE_BYTES, sample_places};
use forebay_format::{PAGE, Superblock, VolumeRecord, volume};
use forebay_store::CLEAN_DISTRUSTED;

use crate::oracle::plain;
use crate::schedule::StopReason;
use crate::stamp::{self, SECTOR, SectorAddress};
use crate::trace::mix;
use crate::violation::Violation;
use crate::world::World;

/// Number of sectors that are written in addition to the sample.
const OTHERS: usize = 8;

/// The changes that an external writer made to an origin.
struct Visit {
    volume: u16,
    /// Sectors with their contents before and after.
    sectors: Vec<(u64, Vec<u8>, Vec<u8>)>,
}

#[derive(Default)]
struct Answers(RefCell<Vec<Completion>>);

impl CompletionSink for Answers {
    fn complete(&self, completion: Completion) {
        self.0.borrow_mut().push(completion);
    }
}

impl World<'_> {
    /// After a crash, sometimes lets an external writer change an origin; the system is then opened
    /// once and dies again.
    pub(crate) fn perhaps_an_external_writer(&mut self) -> Result<(), Violation> {
        if self.rng.u32(0..4) > 0 {
            return Ok(());
        }
        let volume = self.rng.u16(0..self.origins.len() as u16);
        if !self.is_running(volume) {
            return Ok(());
        }
        let Some(record) = self.record_of(volume) else { return Ok(()) };
        if self.rng.u32(0..3) == 0 && record.fingerprint.is_none() && record.identity.is_some() {
            return self.exchanged(volume);
        }
        let Some(visit) = self.visit(volume, &record) else { return Ok(()) };
        self.counts.external_writers += 1;
        self.shared.event(
            "external",
            &[u64::from(volume)],
            format_args!("writes to {} sectors of volume {volume}", visit.sectors.len()),
        );
        let result = self.open_to(&visit);
        self.end_visit();
        for (sector, before, _) in &visit.sectors {
            self.origins[usize::from(volume)].with_image(|image| image.preset(*sector, before));
        }
        result
    }

    /// After an orderly stop, sometimes lets external writers change a few sectors anywhere on an
    /// origin whose system reports changes. The volume is refused, or serves the new data, and is
    /// then stopped in order again. Afterwards the world is restored, which is detected in the same
    /// way.
    pub(crate) fn perhaps_edited_elsewhere(&mut self) -> Result<(), Violation> {
        // The world's generator is not used, so that other worlds stay the same.
        let seed = mix(self.shared.seed, self.counts.steps ^ 0xed17_ed17);
        let mut rng = fastrand::Rng::with_seed(seed);
        let volume = rng.u16(0..self.origins.len() as u16);
        let origin = self.origins[usize::from(volume)].clone();
        if rng.u32(0..3) > 0 || !self.is_running(volume) || origin.changes_in_flight() {
            return Ok(());
        }
        let Some(record) = self.record_of(volume) else { return Ok(()) };
        if record.fingerprint.is_none() || record.left.evidence.is_none() {
            return Ok(());
        }
        let all = record.origin_bytes / SECTOR as u64;
        let mut wanted: Vec<u64> = (0..rng.u64(1..=4)).map(|_| rng.u64(0..all)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let sectors = self.write_foreign(volume, wanted);
        if sectors.is_empty() {
            return Ok(());
        }
        let visit = Visit { volume, sectors };
        let before = origin.changes();
        origin.set_changes(before + 1);
        self.counts.edited_elsewhere += 1;
        self.shared.event(
            "elsewhere",
            &[u64::from(volume)],
            format_args!("{} sectors of volume {volume} are written", visit.sectors.len()),
        );
        let result = self.open_to(&visit);
        let served = self.instance.is_some();
        let stopped = match served && result.is_ok() {
            true => self.stop_after_visit(),
            false => {
                self.end_visit();
                Ok(())
            }
        };
        for (sector, before, _) in &visit.sectors {
            origin.with_image(|image| image.preset(*sector, before));
        }
        // A volume that was refused finds everything as it was; one that was served sees another
        // change.
        origin.set_changes(if served { origin.changes() + 1 } else { before });
        result.and(stopped)
    }

    /// Stops the system in order, without informing the oracle, which does not model external
    /// writers.
    fn stop_after_visit(&mut self) -> Result<(), Violation> {
        let Some(instance) = self.instance.clone() else { return Ok(()) };
        let slot = self.call(instance.stop(false));
        drop(instance);
        self.last_progress = self.now();
        self.pump(false, |_| Ok(slot.borrow().is_some()))?;
        match slot.borrow_mut().take() {
            Some(Ok(())) => {
                self.drop_process();
                Ok(())
            }
            other => Err(plain(20, format!("a clean stop after a visit failed: {other:?}"))),
        }
    }

    /// Writes data of another world to settled sectors. Returns them with their contents before and
    /// after.
    fn write_foreign(&self, volume: u16, sectors: Vec<u64>) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let seed = self.shared.seed;
        self.origins[usize::from(volume)].with_image(|image| {
            let settled = sectors.into_iter().filter(|sector| image.is_settled(*sector));
            let settled: Vec<u64> = settled.collect();
            let write = |sector: u64| {
                // The oracle does not know this stamp: it reports a read that returns it as data
                // that was never written.
                let mut foreign = vec![0; SECTOR];
                stamp::fill(&mut foreign, !seed, SectorAddress { volume, sector }, 1);
                let before = image.visible(sector).to_vec();
                image.preset(sector, &foreign);
                (sector, before, foreign)
            };
            settled.into_iter().map(write).collect()
        })
    }

    /// Returns the volume's record on the cache device. `None` if the record is missing or its
    /// samples cannot be trusted.
    fn record_of(&self, number: u16) -> Option<VolumeRecord> {
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            self.cache.with_image(|image| image.read(at, &mut bytes));
            bytes
        };
        let found = Superblock::choose(&read(COPY_A, PAGE), &read(COPY_B, PAGE)).ok()?;
        let table = found.volume_table;
        let area = *found.geometry.volume_areas.get(usize::from(table.area))?;
        let bytes = read(area, table.len as usize);
        let volumes = volume::decode(&bytes, &table, &found.cache, found.geometry.block).ok()?;
        let trusted = found.compat & CLEAN_DISTRUSTED == 0;
        let name = format!("volume-{number}");
        volumes.into_iter().find(|volume| trusted && volume.name == name)
    }

    /// Writes to an untouched sample and to other sectors. Returns `None` if there is no settled
    /// sample.
    fn visit(&mut self, volume: u16, record: &VolumeRecord) -> Option<Visit> {
        let bytes =
            self.origins[usize::from(volume)].with_image(|image| image.sectors()) * SECTOR as u64;
        // A volume whose origin has grown is opened with samples at other places. The writer's
        // changes are later reverted without the cache, which must be detected as well, so both
        // sets of places must contain the sample.
        let (places, lasting) = (sample_places(record.origin_bytes), sample_places(bytes));
        let valid = record.samples.as_ref()?.valid();
        let samples: Vec<u64> = valid
            .filter_map(|(number, _)| places.get(number).copied())
            .filter(|place| lasting.contains(place))
            .collect();
        let place = *samples.get(self.rng.usize(0..samples.len().max(1)))?;
        let len = SAMPLE_BYTES.min(record.origin_bytes - place) / SECTOR as u64;
        let mut wanted = vec![place / SECTOR as u64 + self.rng.u64(0..len)];
        let all = record.origin_bytes / SECTOR as u64;
        wanted.extend((0..OTHERS).map(|_| self.rng.u64(0..all)));
        wanted.sort_unstable();
        wanted.dedup();
        let sectors = self.write_foreign(volume, wanted);
        let sampled = sectors.iter().any(|(sector, ..)| {
            (place..place + len * SECTOR as u64).contains(&(sector * SECTOR as u64))
        });
        if !sampled {
            for (sector, before, _) in &sectors {
                self.origins[usize::from(volume)].with_image(|image| image.preset(*sector, before));
            }
            return None;
        }
        Some(Visit { volume, sectors })
    }

    /// Opens the system. Returns its error, or `None` if it opens. No crash is armed.
    pub(crate) fn open_expecting(
        &mut self,
        exchanged: Option<u16>,
    ) -> Result<Option<EngineError>, Violation> {
        self.shared.arm(None);
        self.boot();
        let mut machine = self.machine();
        machine.exchanged = exchanged;
        let slot = self.call(self.system.open(&machine));
        let end = self.pump(false, |_| Ok(slot.borrow().is_some()))?;
        if end == StopReason::Crashed {
            return Err(plain(25, "open met a crash that nobody ordered".into()));
        }
        let opened = slot.borrow_mut().take();
        match opened {
            Some(Ok(instance)) => {
                self.instance = Some(instance);
                Ok(None)
            }
            Some(Err(error)) => Ok(Some(error)),
            None => Ok(Some(EngineError::new(EngineErrorKind::Failed, "it has no answer"))),
        }
    }

    fn open_to(&mut self, visit: &Visit) -> Result<(), Violation> {
        match self.open_expecting(None)? {
            Some(error) if error.obstacle() == Some(&Obstacle::OriginChanged) => {
                return self.unchanged(visit);
            }
            Some(error) => {
                return Err(plain(12, format!("a changed origin is no cause for: {error}")));
            }
            None => {}
        }
        let target = self.instance.as_ref().and_then(|instance| instance.target(0, visit.volume));
        let Some(target) = target else {
            return Err(plain(12, format!("volume {} is open and not there", visit.volume)));
        };
        for (sector, _, foreign) in &visit.sectors {
            let read = self.read_sector(&target, *sector)?;
            if read.as_deref() != Some(&foreign[..]) {
                let place = SectorAddress { volume: visit.volume, sector: *sector };
                return Err(plain(
                    12,
                    format!(
                        "{place} was written elsewhere, and the cache serves what was there before"
                    ),
                ));
            }
        }
        self.unchanged(visit)
    }

    /// Reads one sector without informing the oracle, which does not model external writers.
    fn read_sector(
        &mut self,
        target: &Rc<dyn BlockService>,
        sector: u64,
    ) -> Result<Option<Vec<u8>>, Violation> {
        let answers = Rc::new(Answers::default());
        let sink: Rc<dyn CompletionSink> = answers.clone();
        let (offset, len) = (sector * SECTOR as u64, SECTOR as u64);
        let request = Request {
            tag: 0,
            op: Op::Read,
            offset,
            len,
            survives: Survives::Nothing,
            fast: false,
            no_hole: false,
            data: None,
        };
        target.submit(request, &sink);
        self.last_progress = self.now();
        self.pump(false, |_| Ok(!answers.0.borrow().is_empty()))?;
        let answer = answers.0.borrow_mut().pop();
        Ok(answer
            .filter(|answer| answer.result.is_ok())
            .and_then(|answer| Some(answer.data?.to_vec())))
    }

    /// Checks that the external writer's data was not overwritten.
    fn unchanged(&self, visit: &Visit) -> Result<(), Violation> {
        let origin = &self.origins[usize::from(visit.volume)];
        let kept = origin.with_image(|image| {
            let mut sectors = visit.sectors.iter();
            sectors.all(|(sector, _, foreign)| image.visible(*sector) == &foreign[..])
        });
        if kept {
            Ok(())
        } else {
            Err(plain(13, "what an external writer wrote was written over".into()))
        }
    }

    /// Replaces the volume's device by another one with the same content, as a clone would.
    fn exchanged(&mut self, volume: u16) -> Result<(), Violation> {
        self.counts.external_writers += 1;
        self.shared.event(
            "external",
            &[u64::from(volume)],
            format_args!("exchanges volume {volume}"),
        );
        let said = self.open_expecting(Some(volume));
        self.end_visit();
        match said? {
            Some(error) if matches!(error.obstacle(), Some(Obstacle::OtherOrigin(_))) => Ok(()),
            Some(error) => Err(plain(13, format!("another origin is no cause for: {error}"))),
            None => Err(plain(13, format!("volume {volume} was opened on another origin"))),
        }
    }

    /// The process dies, and the power may fail.
    pub(crate) fn end_visit(&mut self) {
        self.shared.stop();
        self.crash();
    }
}
