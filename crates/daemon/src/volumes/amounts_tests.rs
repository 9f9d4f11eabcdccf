//! Amounts that commands and reports name: discarded data, blocks left at a stop, time to clean.

use forebay_admin::report::{BlockReport, RamReport};
use forebay_admin::{ByteRange, Moved};

use super::*;

/// Creates a volume that reports these blocks.
fn serving(blocks: BlockReport, ram: Option<RamReport>) -> Daemon {
    let daemon = Daemon::new();
    daemon.create("v", "origin").expect("good");
    *daemon.host.contents.lock() = (blocks, ram, 3);
    daemon
}

fn shown(daemon: &Daemon) -> VolumeReport {
    daemon.volumes.show(&name("v"), Count::Fresh).expect("there")
}

#[test]
fn drop_and_evict_say_how_much_they_discard() {
    let ram = RamReport { used: 8192, ..RamReport::default() };
    let daemon = serving(BlockReport::default(), Some(ram));
    let moved = |task| {
        let begun = daemon.volumes.run(&name("v"), task).expect("it is served");
        daemon.volumes.operations().wait(begun, None).expect("just started").moved
    };
    let discarded = |discarded| Moved { written_back: 0, discarded };
    let range = ByteRange { offset: 0, len: 4096 };
    assert_eq!(moved(BlockTask::Evict(vec![range])), discarded(3 * 4096), "not from RAM");
    *daemon.host.contents.lock() = (BlockReport::default(), Some(ram), 2);
    assert_eq!(moved(BlockTask::Drop(DropRequest::default())), discarded(2 * 4096 + 8192));
    assert_eq!(moved(BlockTask::Flush), discarded(0));
}

#[test]
fn a_stopped_volume_keeps_the_numbers_of_its_stop() {
    let blocks = BlockReport { known: true, cached: 9, dirty: 4, ..BlockReport::default() };
    let ram = RamReport { deferred: 4097, ..RamReport::default() };
    let daemon = serving(blocks, Some(ram));
    daemon.end(daemon.volumes.stop(&name("v"), Stopping::default())).expect("it is served");
    let kept = BlockReport { as_of_stop: true, cached: 9, dirty: 6, ..BlockReport::default() };
    assert_eq!(shown(&daemon).blocks, kept);
    let daemon = daemon.restart();
    assert_eq!(shown(&daemon).blocks, kept, "after a restart");
    daemon.end(daemon.volumes.start(&name("v"), StartRequest::default())).expect("it is there");
    assert_eq!(shown(&daemon).blocks, BlockReport::default(), "while it is served");
    daemon.end(daemon.volumes.stop(&name("v"), Stopping::default())).expect("it is served");
    assert!(!shown(&daemon).blocks.as_of_stop, "those of an earlier stop are not kept");
}

#[test]
fn a_volume_with_data_in_ram_alone_is_not_clean() {
    let blocks = BlockReport { known: true, ..BlockReport::default() };
    let daemon = serving(blocks, None);
    assert_eq!(shown(&daemon).writeback.seconds_to_clean, Some(0.0));
    daemon.host.contents.lock().1 = Some(RamReport { deferred: 4096, ..RamReport::default() });
    assert_eq!(shown(&daemon).writeback.seconds_to_clean, None);
}
