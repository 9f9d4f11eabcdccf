//! Two volumes that share a cache.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op};
use forebay_device::{Device, RamDevice};
use forebay_engine::{EngineError, EngineLane, LaneVolume, Settings};
use forebay_testkit::{Faults, ram};

use super::{World, settings};

pub const MIB: u64 = 1 << 20;

/// The longest wait of a test, on the test's clock.
pub const LONG: Duration = Duration::from_secs(60);

pub fn open_small(world: &World, bytes: u64) -> Rc<EngineLane> {
    let device: Arc<dyn Device> = RamDevice::new("ram:small", bytes).expect("memory");
    world.format_with(&device, BlockSize::DEFAULT, Some(256 << 10));
    world.open(&device).0
}

/// Two volumes on one cache: the origin of `a` can be made to hang.
pub struct Two {
    pub world: World,
    pub engine: Rc<EngineLane>,
    pub a: Rc<LaneVolume>,
    pub b: Rc<LaneVolume>,
    pub origin_of_a: Arc<dyn Device>,
    pub faults: Arc<Faults>,
}

pub fn two(mib: u64, of_a: Settings, of_b: Settings) -> Two {
    let world = World::new();
    let engine = open_small(&world, mib * MIB);
    let (origin_of_a, faults) = world.faulty(ram(mib * 2));
    let a = world.create_as(&engine, "a", &origin_of_a, of_a, 0);
    let b = world.create_as(&engine, "b", &ram(mib * 2), of_b, 0);
    Two { world, engine, a, b, origin_of_a, faults }
}

pub fn kept_dirty() -> Settings {
    let mut settings = settings(Mode::Writeback);
    settings.writeback_running = false;
    settings
}

impl Two {
    pub fn set(&self, name: &'static str, settings: Settings) {
        self.world.set_as(&self.engine, name, settings).expect("set");
    }

    pub fn drain_a(&self) -> Result<(), EngineError> {
        self.world.drain_as(&self.engine, "a")
    }

    pub fn stop(&self, name: &'static str) -> Result<(), EngineError> {
        self.world.stop(&self.engine, name)
    }

    /// Starts volume `a` again.
    pub fn attach_a(&self) -> Rc<LaneVolume> {
        self.world.attach_as(&self.engine, "a", &self.origin_of_a)
    }
}

/// Returns the content for a block: not zero, and different for each number.
pub fn pattern(number: u64) -> [u8; 4096] {
    let mut data = [number as u8 | 1; 4096];
    data[..8].copy_from_slice(&(number + 1).to_le_bytes());
    data
}

/// Writes to a volume. Returns whether it was answered within [`LONG`].
pub fn write_soon(two: &Two, volume: &Rc<LaneVolume>, block: u64) -> bool {
    let tag = two.world.submit(volume, Op::Write, block * 4096, 4096, Some(&pattern(block)));
    answered(two, tag)
}

pub fn answered(two: &Two, tag: u64) -> bool {
    match two.world.wait_for(tag, LONG) {
        Some(completion) => {
            completion.result.expect("it succeeds");
            true
        }
        None => false,
    }
}
