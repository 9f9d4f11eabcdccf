//! The logical sectors that clients see are those of the origin, and stay the same (invariant 37).

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, Mode, SectorSize, Sectors};
use forebay_device::Device;
use forebay_engine::{BlockService, EngineErrorKind, EngineLane, Settings, check_sectors};
use forebay_format::volume::SECTOR_BYTES;
use forebay_testkit::{ram, shortened, with_sectors};

use crate::world::{World, settings};

const RAID: Sectors = Sectors { logical: 512, physical: 4096, io_min: 65_536, io_opt: 196_608 };

fn chosen(sector_size: SectorSize) -> Settings {
    Settings { sector_size, ..settings(Mode::Writeback) }
}

fn start(
    world: &World,
    engine: &Rc<EngineLane>,
    origin: &Arc<dyn Device>,
    sector_size: SectorSize,
) -> Result<Sectors, EngineErrorKind> {
    let (inner, origin) = (engine.clone(), origin.clone());
    let attached = world
        .block_on(async move {
            inner.attach_with("data", origin, sector_size, true, None, &|| Ok(())).await
        })
        .map_err(|error| {
            assert!(error.message.contains("sector_size"), "{error}");
            error.kind
        })?;
    world.stop(engine, "data").expect("stopped");
    Ok(attached.sectors())
}

#[test]
fn clients_see_the_sizes_of_the_origin() {
    for sectors in [Sectors::of(512), Sectors::of(4096), RAID] {
        let (world, disk) = (World::new(), ram(8));
        let engine = world.new_cache(&ram(8), BlockSize::DEFAULT);
        let target =
            world.create(&engine, &with_sectors(&disk, sectors), chosen(SectorSize::Auto), 0);
        assert_eq!(target.sectors(), sectors);
    }
}

#[test]
fn a_changed_sector_size_is_refused_unless_the_operator_chooses() {
    use SectorSize::{Auto, Large, Small};
    for (before, now, other) in [(512, 4096, Small), (4096, 512, Large)] {
        let (world, disk) = (World::new(), ram(8));
        let engine = world.new_cache(&ram(8), BlockSize::DEFAULT);
        let [was, is] = [before, now].map(|logical| with_sectors(&disk, Sectors::of(logical)));
        world.create(&engine, &was, chosen(Auto), 0);
        world.stop(&engine, "data").expect("stopped");
        for _ in 0..2 {
            assert_eq!(start(&world, &engine, &is, Auto), Err(EngineErrorKind::Refused));
        }
        let seen = start(&world, &engine, &is, other).expect("as before");
        assert_eq!(seen.logical, before);
        assert_eq!(start(&world, &engine, &was, Auto), Ok(Sectors::of(before)));
        // The operator may also abandon the old sectors.
        let new = if other == Small { Large } else { Small };
        assert_eq!(start(&world, &engine, &is, new), Ok(Sectors::of(now)));
        assert_eq!(start(&world, &engine, &is, Auto), Ok(Sectors::of(now)));
    }
}

#[test]
fn a_volume_of_an_older_version_is_not_refused() {
    let (world, disk) = (World::new(), ram(8));
    let engine = world.new_cache(&ram(8), BlockSize::DEFAULT);
    let large = with_sectors(&disk, Sectors::of(4096));
    world.create(&engine, &disk, chosen(SectorSize::Auto), 0);
    let mut record = engine.cache.store.volumes()[0].clone();
    assert!(check_sectors(&record, &*large, SectorSize::Auto).is_err());
    record.settings.retain(|(tag, _)| *tag != SECTOR_BYTES);
    check_sectors(&record, &*large, SectorSize::Auto).expect("nothing is known");
}

#[test]
fn a_size_that_is_not_in_whole_sectors_is_refused() {
    let (world, disk) = (World::new(), ram(8));
    let engine = world.new_cache(&ram(8), BlockSize::DEFAULT);
    let odd = shortened(&disk, (4 << 20) + 512);
    world.create(&engine, &odd, chosen(SectorSize::Auto), 0);
    world.stop(&engine, "data").expect("stopped");
    assert_eq!(start(&world, &engine, &odd, SectorSize::Large), Err(EngineErrorKind::Usage));
}
