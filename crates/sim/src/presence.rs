//! Volumes that are stopped for a while, deleted, or recreated with the same name on the same
//! origin, while other volumes continue.
//!
//! An orderly deletion of a running volume leaves a complete origin. The deletion of a stopped
//! volume leaves everything that was durable when it stopped, since an origin may fail the sync of
//! a stop. A deletion that discards dirty blocks leaves the data that had reached the origin, and
//! cached data must never overwrite later writes of others to the origin.

use forebay_core::{Op, Survives};
use forebay_engine::EngineError;

use crate::image::DiskImage;
use crate::oracle::{Excuses, plain};
use crate::profile::FaultProfile;
use crate::schedule::StopReason;
use crate::stamp::{self, SECTOR, SectorAddress, Value};
use crate::system::Admin;
use crate::violation::{Asked, Violation};
use crate::world::World;

/// The expected state of a volume when the system is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Either not created yet or created already.
    New,
    /// Present and started.
    Running,
    /// Present and stays stopped.
    Stopped,
    /// Deleted.
    Gone,
    /// The system died during this action: the volume may or may not be present.
    Unsure(Admin),
}

/// Number of turns that the lanes get to end the requests of a volume that was deleted.
const LAST_TURNS: usize = 8;

/// Maximum number of sectors that others write to an origin without a volume.
const OTHERS: u64 = 32;

impl World<'_> {
    /// Returns whether requests may be submitted to a volume.
    pub(crate) fn is_running(&self, volume: u16) -> bool {
        let presence = self.presence.get(usize::from(volume));
        presence.is_some_and(|it| matches!(it, Presence::New | Presence::Running))
    }

    /// Returns the running volumes.
    pub(crate) fn running(&self) -> Vec<u16> {
        (0..self.origins.len() as u16).filter(|volume| self.is_running(*volume)).collect()
    }

    /// Chooses an action that changes the presence of a volume. At least one volume stays running.
    pub(crate) fn choose_presence(&mut self) -> Option<Admin> {
        let volume = self.rng.u16(0..self.origins.len() as u16);
        let action = match self.presence[usize::from(volume)] {
            Presence::New | Presence::Running => match self.rng.u32(0..6) {
                0..3 => Admin::Stop(volume),
                3..5 => Admin::Delete(volume, false),
                _ => Admin::Delete(volume, true),
            },
            Presence::Stopped => match self.rng.u32(0..4) {
                0..2 => Admin::Start(volume),
                2 => Admin::DeleteStopped(volume, false),
                _ => Admin::DeleteStopped(volume, true),
            },
            Presence::Gone => Admin::Create(volume, self.rng.u64(..)),
            Presence::Unsure(_) => return None,
        };
        let leaves = matches!(action, Admin::Stop(_) | Admin::Delete(..));
        // Writes that a stop left in flight to the origin may end at any time: the state of the
        // origin would be unknown if its volume were deleted now.
        let unsure = matches!(action, Admin::DeleteStopped(..))
            && self.origins[usize::from(volume)].changes_in_flight();
        (!unsure && (!leaves || self.running().len() > 1)).then_some(action)
    }

    /// Returns whether clients reach a volume.
    pub(crate) fn is_served(&self, volume: u16) -> bool {
        self.instance.as_ref().is_some_and(|instance| instance.target(0, volume).is_some())
    }

    /// Updates the presence after an action has ended.
    pub(crate) fn presence_changed(
        &mut self,
        action: Admin,
        result: &Result<(), EngineError>,
    ) -> Result<(), Violation> {
        let Some(volume) = action.changes_presence() else { return Ok(()) };
        if self.profile.setup.deferred && result.is_ok() {
            // Writes that waited for space in RAM are informed only now that their volume was
            // deleted. No device has to answer them, and no time passes.
            self.closed = Some(volume);
            for _ in 0..LAST_TURNS {
                for lane in &self.lanes {
                    lane.run_ready();
                }
            }
        }
        self.take_answers()?;
        self.closed = None;
        let presence = match (action, result) {
            // A volume whose deferred writes cannot be written down continues to run.
            (Admin::Stop(_), Err(_)) if self.is_served(volume) => return Ok(()),
            // Any other failed stop has stopped the volume nevertheless.
            (Admin::Stop(_), _) => Presence::Stopped,
            (Admin::Start(_), Ok(())) => Presence::Running,
            (Admin::Create(..), Ok(())) => Presence::Running,
            (Admin::Delete(..) | Admin::DeleteStopped(..), Ok(())) => Presence::Gone,
            (_, Err(_)) => self.presence[usize::from(volume)],
            _ => return Ok(()),
        };
        self.presence[usize::from(volume)] = presence;
        if let Admin::Stop(_) = action {
            self.unsynced[usize::from(volume)] = result.is_err();
        }
        match presence {
            Presence::Stopped if result.is_err() => self.oracle.leave(volume),
            Presence::Stopped => {
                self.oracle.volume_is_durable(volume);
                if self.rng.u32(0..4) == 0 {
                    // The crash comes before the flushes of other volumes make the change durable
                    // as well.
                    self.shared.arm(Some(self.rng.u64(1..6)));
                }
            }
            Presence::Gone => self.deleted(action)?,
            // If syncs of the volume's origin fail, writes before a crash may not be durable there.
            Presence::Running if self.profile.fault_profile != FaultProfile::OriginErrors => {
                self.oracle.opened(&[volume]);
            }
            _ => {}
        }
        // A stop that gave up on its origin leaves requests behind, which end when the origin
        // answers.
        let left = matches!(action, Admin::DeleteStopped(..)) && self.unsynced[usize::from(volume)];
        let waiting = self.oracle.underway_on(volume);
        if waiting > 0 && result.is_ok() && !left && !self.is_running(volume) {
            return Err(plain(25, format!("{action:?} has ended and {waiting} requests have not")));
        }
        Ok(())
    }

    /// Judges the origin of a deleted volume, or accepts its content.
    fn deleted(&mut self, action: Admin) -> Result<(), Violation> {
        let (volume, discards) = match action {
            Admin::Delete(volume, discards) | Admin::DeleteStopped(volume, discards) => {
                (volume, discards)
            }
            _ => return Ok(()),
        };
        let origin = self.origins[usize::from(volume)].clone();
        if discards && self.hung_until[usize::from(volume)] > self.admin_since {
            // The operator does not wait for an origin that hangs; others use the origin once it
            // has answered.
            origin.complete_all();
            self.oracle.abandon(volume);
        }
        if origin.changes_in_flight() {
            return Err(plain(
                13,
                format!("{action:?} has ended and its origin is still written to"),
            ));
        }
        let seed = self.shared.seed;
        if !discards {
            if matches!(action, Admin::Delete(..)) {
                self.oracle.volume_is_durable(volume);
            } else if self.unsynced[usize::from(volume)] {
                // The stop has informed the operator; the data is in the origin's write cache.
                origin.with_image(|image| image.sync(u64::MAX));
            }
            let sectors = self.oracle.sectors(volume);
            origin.with_image(|image| {
                (0..sectors).try_for_each(|sector| {
                    let place = SectorAddress { volume, sector };
                    self.oracle.check_origin(place, image.durable(sector))
                })
            })?;
        }
        let values = origin.with_image(|image| {
            image.sync(u64::MAX);
            let value = |image: &DiskImage, sector| {
                stamp::own(image.durable(sector), seed, SectorAddress { volume, sector })
            };
            (0..image.sectors()).map(|sector| value(image, sector)).collect::<Option<Vec<_>>>()
        });
        let Some(values) = values else {
            return Err(plain(3, format!("the origin of volume {volume} has bytes of nobody")));
        };
        self.oracle.begin_anew(volume, values);
        self.rot.forget(volume);
        self.others_write(volume)
    }

    /// Writes to an origin that has no volume, as others would.
    fn others_write(&mut self, volume: u16) -> Result<(), Violation> {
        let sectors = self.oracle.sectors(volume);
        for _ in 0..self.rng.u64(0..OTHERS) {
            let first = self.rng.u64(0..sectors);
            let id = self.oracle.next_id(volume);
            let asked = Asked {
                volume,
                op: Op::Write,
                first,
                sectors: 1,
                survives: Survives::PowerLoss,
                id,
            };
            self.oracle.submit(0, asked);
            let mut bytes = [0; SECTOR];
            stamp::fill_value(
                &mut bytes,
                self.shared.seed,
                SectorAddress { volume, sector: first },
                Value::Write(id),
            );
            self.origins[usize::from(volume)].with_image(|image| image.preset(first, &bytes));
            self.oracle.complete(0, Ok(()), None, Excuses::default())?;
        }
        Ok(())
    }

    /// The process dies during an operator's action.
    pub(crate) fn presence_unsure(&mut self, action: Admin) {
        if let Some(volume) = action.changes_presence() {
            let presence = &mut self.presence[usize::from(volume)];
            *presence = match (action, *presence) {
                // These actions change only whether the volume starts automatically, which is the
                // operator's choice.
                (Admin::Stop(_) | Admin::Start(_), Presence::New | Presence::Running) => {
                    Presence::Running
                }
                (Admin::Stop(_) | Admin::Start(_), before) => before,
                _ => Presence::Unsure(action),
            };
        }
    }

    /// The system is open: resolves uncertain presences.
    pub(crate) fn presence_seen(&mut self) -> Result<(), Violation> {
        for volume in 0..self.origins.len() as u16 {
            let target = self.instance.as_ref().and_then(|instance| instance.target(0, volume));
            let place = usize::from(volume);
            match self.presence[place] {
                Presence::New => self.presence[place] = Presence::Running,
                Presence::Unsure(_) if target.is_some() => {
                    self.presence[place] = Presence::Running;
                }
                Presence::Unsure(action) => {
                    self.presence[place] = Presence::Gone;
                    self.deleted(action)?;
                }
                Presence::Running | Presence::Stopped | Presence::Gone => {}
            }
        }
        self.take_sizes()
    }

    /// Returns whether held versions of a stopped volume may occupy all space that other volumes
    /// need.
    pub(crate) fn is_starved(&self) -> bool {
        let holds = self.instance.as_ref().is_some_and(|instance| instance.holds_versions());
        holds && self.presence.contains(&Presence::Stopped)
    }

    /// Starts all stopped volumes; `false` if the world stopped.
    pub(crate) fn start_all(&mut self) -> Result<bool, Violation> {
        for volume in 0..self.origins.len() as u16 {
            if self.presence[usize::from(volume)] != Presence::Stopped {
                continue;
            }
            let Some(instance) = self.instance.clone() else { return Ok(false) };
            let action = Admin::Start(volume);
            let slot = self.call(instance.admin(action));
            self.last_progress = self.now();
            if self.pump(false, |_| Ok(slot.borrow().is_some()))? == StopReason::Crashed {
                return Ok(false);
            }
            let result = slot.borrow_mut().take().unwrap_or(Ok(()));
            if let Err(error) = &result
                && matches!(
                    self.profile.fault_profile,
                    FaultProfile::Crashes | FaultProfile::OriginErrors
                )
            {
                return Err(plain(
                    16,
                    format!("{action:?} fails though nothing is broken: {error}"),
                ));
            }
            self.presence_changed(action, &result)?;
            self.take_sizes()?;
        }
        Ok(true)
    }
}
