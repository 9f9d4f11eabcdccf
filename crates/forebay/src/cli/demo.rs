//! `forebay demo`: shows the effect of a cache on modelled disks, and that a crash loses no flushed
//! data.
//!
//! - [`workspace`]: a directory and child processes that are always removed at the end
//! - [`daemon`]: the real daemon as a child process
//! - [`bench`]: fio over NBD, the same for bare devices and cached volumes
//! - [`filesystem`]: an image full of files, and the check of their content
//! - [`client`], [`writer`]: a client that writes and flushes, and records what was acknowledged

mod bench;
mod client;
mod daemon;
mod filesystem;
mod workspace;
mod writer;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use forebay_admin::ApiError;

use crate::exit::VerbResult;
use crate::output::print_text;
use crate::output::volume::grouped;
use bench::{Row, Workload};
use daemon::Daemon;
use filesystem::FilesystemImage;
use workspace::Workspace;
use writer::WriterThread;

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory for its files, which are removed at the end [default: that for temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// Take a third of the time, with less exact numbers
    #[arg(long)]
    pub(crate) quick: bool,
}

const MIB: u64 = 1 << 20;
/// Size of the modelled disk.
const DISK: u64 = 512 * MIB;
/// Size of the modelled SSD.
const SSD: u64 = 384 * MIB;
/// Size of the RAM tier.
const RAM: u64 = 64 * MIB;
/// Time within which deferred writes go down: several times in a row of the table.
const DEFER: &str = "defer=3s";
/// Size of the filesystem; the rest of the disk belongs to the writer.
const FILESYSTEM: u64 = 448 * MIB;
/// This much of the filesystem reaches the disk only through the cache.
const WITHHELD: u64 = 96 * MIB;

/// Runs the demonstration.
pub(crate) fn run(args: &DemoArgs) -> VerbResult {
    let workspace = Workspace::new(args.dir.as_deref())?;
    workspace.need(&["fio", "mke2fs", "e2fsck", "debugfs"])?;
    let seconds = |full: u64| Duration::from_secs(if args.quick { full.div_ceil(3) } else { full });
    let files = if args.quick { 100 * MIB } else { 320 * MIB };
    workspace.say(&format!("copying {} MiB of files from /usr into an ext4 image", files / MIB));
    let image = FilesystemImage::make(&workspace, files, FILESYSTEM, DISK)?;
    let rows = measure(&workspace, seconds)?;
    let checks = crash(&workspace, &image, seconds(4))?;
    let (table, losses) = (bench::table(&rows), bench::losses(&rows));
    print_text(&format!("\n{}\n{table}\n{losses}\n", bench::explanation(DISK, SSD, RAM)))?;
    let mut failed = Vec::new();
    for (what, result) in &checks {
        match result {
            Ok(found) => print_text(&format!("ok    {what}: {found}\n"))?,
            Err(why) => {
                failed.push(*what);
                print_text(&format!("FAIL  {what}: {why}\n"))?;
            }
        }
    }
    if failed.is_empty() {
        return print_text(
            "All checks held: a killed daemon lost nothing that had been flushed.\n",
        );
    }
    print_text(&format!(
        "{} of {} checks failed: {}.\n",
        failed.len(),
        checks.len(),
        failed.join(", ")
    ))?;
    Err(ApiError::failed("some of the demo's checks failed"))
}

/// Measures the rows of the table.
fn measure(workspace: &Workspace, seconds: impl Fn(u64) -> Duration) -> Result<Vec<Row>, ApiError> {
    let raw = |name: &str, model: &str, size: u64| {
        let path = workspace.at(&format!("bare-{name}.img"));
        format!("{name}={model}:{},size={}M", path.display(), size / MIB)
    };
    let raws = [raw("disk", "hdd7200", DISK), raw("ssd", "sata-ssd", DISK)];
    let daemon = Daemon::start(workspace, &raws)?;
    let workload = |ramp, time| Workload { ramp: seconds(ramp), time: seconds(time) };
    let mut rows = Vec::new();
    workspace.say("fio on the bare disk");
    let row = ["bare disk", "what is in its own write cache"];
    rows.push(bench::run(workspace, &daemon, "disk", row, &workload(1, 9), false)?);
    workspace.say("fio on the bare SSD");
    let row = ["bare SSD", "what is in its own write cache"];
    rows.push(bench::run(workspace, &daemon, "ssd", row, &workload(1, 6), false)?);

    let origin = format!("hdd7200:{},size={}M", workspace.at("bench.img").display(), DISK / MIB);
    let cache = cache_device(workspace);
    daemon.cli(&["create", "bench", "-s", &cache, "-p", &origin, "-t", "writethrough"])?;
    // The load is random, so this matters only for the warm-up, which is sequential.
    daemon.cli(&["set", "bench", "sequential_cutoff=0"])?;
    workspace.say("warming the cache up");
    bench::warm_up(workspace, &daemon, "bench")?;
    workspace.say("fio on the disk with a writethrough cache");
    let row = ["writethrough", "what is in the disk's own write cache"];
    rows.push(bench::run(workspace, &daemon, "bench", row, &workload(6, 9), true)?);
    daemon.cli(&["set", "bench", "mode=writeback"])?;
    workspace.say("fio on the disk with a writeback cache");
    let row = ["writeback", "up to 1 s of them (commit_interval)"];
    rows.push(bench::run(workspace, &daemon, "bench", row, &workload(2, 9), true)?);
    daemon.cli(&["set", "bench", &format!("ram={}M", RAM / MIB)])?;
    daemon.cli(&["stop", "bench"])?;
    daemon.cli(&["start", "bench"])?;
    workspace.say("fio on the disk with a writeback cache and copies in RAM");
    let row = ["writeback + RAM", "the same: RAM has copies of what the SSD has"];
    rows.push(bench::run(workspace, &daemon, "bench", row, &workload(4, 9), true)?);
    daemon.cli(&["set", "bench", "durability=deferred", DEFER])?;
    workspace.say("fio on the same with writes deferred in RAM");
    let row = ["deferred in RAM", "up to 4 s of them (defer=3s, and commit_interval)"];
    rows.push(bench::run(workspace, &daemon, "bench", row, &workload(4, 9), true)?);
    daemon.cli(&["delete", "bench", "--discard-dirty"])?;
    daemon.terminate()?;
    Ok(rows)
}

fn cache_device(workspace: &Workspace) -> String {
    format!("sata-ssd:{},size={}M", workspace.at("cache.img").display(), SSD / MIB)
}

/// Name of a check, and its finding or its error.
type CheckResult = (&'static str, Result<String, String>);

/// Kills the daemon under load and checks what survived.
fn crash(
    workspace: &Workspace,
    image: &FilesystemImage,
    load: Duration,
) -> Result<Vec<CheckResult>, ApiError> {
    let origin = workspace.at("files.img");
    workspace.say("writing a part of the filesystem through a writeback cache");
    image.make_origin(&origin, WITHHELD)?;
    let daemon = Daemon::start(workspace, &[])?;
    let cache = cache_device(workspace);
    let device = format!("hdd7200:{}", origin.display());
    daemon.cli(&["create", "files", "-s", &cache, "-p", &device])?;
    // Nothing is written back by itself, so the withheld blocks are only on the SSD when the daemon
    // is killed.
    daemon.cli(&["set", "files", "sequential_cutoff=0", "idle=off", "dirty_high=100"])?;
    image.write_withheld(workspace, &daemon.nbd(), "files", WITHHELD)?;

    workspace.say("SIGKILL under a load of writes and flushes");
    let mut writer = WriterThread::start(&daemon.nbd(), "files", FILESYSTEM..DISK)?;
    workspace.sleep(load)?;
    daemon.kill()?;
    let journal = writer.finish()?;

    workspace.say("starting the daemon again, and draining the cache");
    let daemon = Daemon::start(workspace, &[])?;
    daemon.wait_until_served("files")?;
    daemon.cli(&["flush", "files"])?;
    daemon.terminate()?;

    workspace.say("checking the content of the disk");
    let cache = workspace.at("cache.img");
    let sound = workspace.run_self(&["check", &cache.display().to_string()]);
    Ok(vec![
        (
            "flushed writes",
            journal.verify(&origin).map(|(blocks, flushes)| {
                format!(
                    "all {} blocks are there after {} flushes",
                    grouped(blocks),
                    grouped(flushes)
                )
            }),
        ),
        (
            "cache device",
            sound
                .map(|_| "its structures and checksums are in order".to_owned())
                .map_err(|error| error.to_string()),
        ),
        ("e2fsck", filesystem::fsck(workspace, &origin)?),
        ("files", image.compare(workspace, &origin)?),
    ])
}
