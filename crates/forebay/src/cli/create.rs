//! `forebay create`: creates a volume, serves it, prints its block device or its NBD URI.

use clap::{Args, ValueHint};
use forebay_admin::{
    ApiError, Assignments, CreateRequest, ProfileName, VolumeName, VolumeReport, api,
};
use forebay_core::units::format_size;
use forebay_core::{BlockSize, Durability, ExportSet, Mode, NbdReach, ReplacementKind};
use forebay_host::uevent;

use super::progress;
use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::{json, note, print_line};
use crate::values::{WordParser, block_size, ram_size, size};
use crate::{misaligned, sparse};
use forebay_daemon::devices::{DeviceName, cache_device, path_of};

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the new volume
    pub(crate) name: VolumeName,

    /// Cache device: a file, a block device, or ram:SIZE; without one give --ram
    #[arg(short = 's', long, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub(crate) cache: Option<String>,

    /// Origin: a file, a block device, nbd://HOST/EXPORT or rbd:POOL/IMAGE
    #[arg(short = 'p', long, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub(crate) origin: String,

    /// Start with the settings of another cache: enhanceio, bcache, dm-cache, lvmcache, opencas,
    /// maxio, dm-writeboost, fancycache, primocache (see 'forebay profiles'); other options take
    /// precedence
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<ProfileName>,

    /// Way of reads and writes through the cache: writeback (wb), writethrough (wt), writearound
    /// (wa, ro), writeonly (wo), passthrough (pt) [default: writeback]
    #[arg(short = 't', long, value_parser = WordParser(Mode::ALL), hide_possible_values = true)]
    pub(crate) mode: Option<Mode>,

    /// Replacement policy, which chooses blocks for eviction; all volumes of a cache share it
    /// [default: that of the cache's other volumes, or else s3-fifo]
    #[arg(short = 'r', long, value_parser = WordParser(ReplacementKind::ALL))]
    pub(crate) policy: Option<ReplacementKind>,

    /// Block size, the unit of caching: a power of two from 2K to 1M [default: 4K]
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = block_size, allow_hyphen_values = true)]
    pub(crate) block_size: Option<BlockSize>,

    /// When a write is acknowledged: strict (on stable media), flush (in RAM until a flush), or
    /// deferred (in the RAM tier until a flush or for the time of --defer) [default: flush]
    #[arg(long, value_parser = WordParser(Durability::ALL), hide_possible_values = true)]
    pub(crate) durability: Option<Durability>,

    /// RAM that holds copies of blocks, in front of the cache device or of the origin alone
    /// [default: none]
    #[arg(long, value_name = "BYTES", value_parser = ram_size, allow_hyphen_values = true)]
    pub(crate) ram: Option<u64>,

    /// With --durability deferred, the time within which a write is written down from RAM [default:
    /// 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) defer: Option<String>,

    /// DANGEROUS, for scratch data only: with --durability deferred, acknowledge flushes at once,
    /// so that a crash loses data that file systems and databases take for durable
    #[arg(long)]
    pub(crate) ignore_flush: bool,

    /// Write to the origin in the order of flushes, so that it is always in a state that a power
    /// cut could leave on a disk: if the cache device is lost, the origin is slightly old but
    /// consistent
    #[arg(long)]
    pub(crate) ordered: bool,

    /// Let clients only read, and never write to the origin: for a write-protected device, or one
    /// that must not change. Reads are cached as usual
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Front ends of the volume, separated by commas: nbd (always among them), ublk, fuse and
    /// nbd-kernel (block devices of this machine; auto: the first of these that works here), and
    /// vhost-user [default: nbd]
    #[arg(long, value_name = "LIST")]
    pub(crate) export: Option<ExportSet>,

    /// Value of a setting, as for 'forebay set'; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Bytes by which blocks are shifted on the origin, for partitions that start at odd sectors:
    /// a multiple of 512 below the block size
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0", allow_hyphen_values = true)]
    pub(crate) alignment: u64,

    /// Overwrite the content of the cache device; with --adopt see start --force
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Adopt the volume of this name that the cache device holds, with its dirty blocks and
    /// settings: after the daemon's state was lost, on another machine, or when a device has a new
    /// path
    #[arg(long, conflicts_with_all = ["profile", "mode", "policy", "block_size", "durability", "ram", "defer", "ignore_flush", "ordered", "read_only", "export", "alignment", "set"])]
    pub(crate) adopt: bool,

    /// Adopt it under this name: it is renamed on the cache device, and becomes a volume of its
    /// own, so that a copy of a cache and its origin can be used beside the original
    #[arg(long = "as", value_name = "NAME", requires = "adopt")]
    pub(crate) new_name: Option<VolumeName>,

    /// Print the volume as JSON instead of its URI
    #[arg(long)]
    pub(crate) json: bool,
}

/// Warns of flaws in the devices of a new volume, and announces them to udev.
pub(super) fn inspect_devices(report: &VolumeReport) {
    misaligned::warn(report);
    sparse::warn(report);
    for device in [&report.cache.path, &report.origin.path] {
        if let Some(path) = path_of(device) {
            uevent::announce(&path);
        }
    }
}

/// Creates a volume.
pub(crate) fn run(client: &DaemonClient, args: CreateArgs) -> VerbResult {
    let (name, as_json) = (args.new_name.clone().unwrap_or(args.name.clone()), args.json);
    let request = request(args)?;
    let begun = client.call(&api::CREATE, &(), &request)?;
    progress::follow(client, begun, &format!("Creating {name}"))?;
    let report = client.get(&api::SHOW, &name)?;
    let chose_ram = request.settings.iter().any(|(setting, _)| setting == "ram");
    if let Some(profile) = request.profile.filter(|_| !chose_ram && report.settings.ram > 0) {
        let ram = format_size(report.settings.ram);
        note(&format!("{profile} has {ram} of RAM; 'forebay set {name} ram=SIZE' changes that"));
    }
    inspect_devices(&report);
    if !request.settings.iter().any(|(setting, _)| setting == "nbd") {
        tell_reach(client, &report);
    }
    if as_json {
        return json::print(&report);
    }
    let is_served = report.state.is_served();
    let export = report.export;
    match export.device.or(export.vhost_user).or(export.nbd) {
        Some(uri) => print_line(&uri),
        None if is_served => Ok(()),
        None => Err(ApiError::failed(format!("volume '{name}' was created, but is not served"))),
    }
}

/// Says that clients by TCP do not find the volume although the daemon listens there.
fn tell_reach(client: &DaemonClient, report: &VolumeReport) {
    let VolumeReport { name, settings, .. } = report;
    // It is created, whatever the daemon answers. A path has a slash, and a TCP address none.
    let addresses = client.get(&api::DAEMON, &()).map_or(Vec::new(), |daemon| daemon.nbd);
    if settings.nbd != NbdReach::All && addresses.iter().any(|address| !address.contains('/')) {
        note(&format!(
            "clients of NBD by TCP do not find '{name}'; 'forebay set {name} nbd=all' changes that"
        ));
    }
}

fn request(args: CreateArgs) -> Result<CreateRequest, ApiError> {
    let mut settings = Assignments::parse(&args.set)?;
    let export = args.export.map(|set| set.to_string());
    let ram = args.ram.map(|bytes| bytes.to_string());
    for (name, value) in [
        ("mode", args.mode.map(|mode| mode.name())),
        ("policy", args.policy.map(|policy| policy.name())),
        ("durability", args.durability.map(|durability| durability.name())),
        ("ram", ram.as_deref()),
        ("defer", args.defer.as_deref()),
        ("ignore_flush", args.ignore_flush.then_some("on")),
        ("ordered", args.ordered.then_some("on")),
        ("read_only", args.read_only.then_some("on")),
        ("export", export.as_deref()),
    ] {
        if let Some(value) = value {
            settings.push(name, value)?;
        }
    }
    let (name, stored_as) = match args.new_name {
        Some(new) => (new, Some(args.name)),
        None => (args.name, None),
    };
    Ok(CreateRequest {
        name,
        // The daemon may have another working directory.
        cache: args.cache.map(|device| cache_device("--cache", &device)).transpose()?,
        origin: DeviceName::parse_origin("--origin", &args.origin)?.text,
        profile: args.profile,
        block_size: args.block_size.map(|size| size.bytes()),
        alignment: args.alignment,
        force: args.force,
        adopt: args.adopt,
        stored_as,
        settings,
    })
}
