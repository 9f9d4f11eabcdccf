//! `forebay create`: creates a volume, serves it, prints its block device or its NBD URI.

use forebay_admin::{ApiError, Assignments, CreateRequest, DaemonReport, Operation, VolumeReport};
use forebay_core::NbdReach;
use forebay_core::units::format_size;

use crate::cli::CreateArgs;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::{json, note, print_line, progress};
use crate::{misaligned, sparse, uevent};
use forebay_daemon::devices::{DeviceName, cache_device};

/// Creates a volume.
pub(super) fn run(client: &Client, args: CreateArgs) -> Outcome {
    let (name, as_json) = (args.new_name.clone().unwrap_or(args.name.clone()), args.json);
    let request = request(args)?;
    let begun: Operation = client.post("/volumes", &request)?;
    progress::follow(client, begun, &format!("Creating {name}"))?;
    let report: VolumeReport = client.get(&format!("/volumes/{name}"))?;
    let chose_ram = request.settings.iter().any(|(setting, _)| setting == "ram");
    if let Some(profile) = request.profile.filter(|_| !chose_ram && report.settings.ram > 0) {
        let ram = format_size(report.settings.ram);
        note(&format!("{profile} has {ram} of RAM; 'forebay set {name} ram=SIZE' changes that"));
    }
    misaligned::warn(&report);
    sparse::warn(&report);
    uevent::announce(&report);
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
fn tell_reach(client: &Client, report: &VolumeReport) {
    let VolumeReport { name, settings, .. } = report;
    // It is created, whatever the daemon answers. A path has a slash, and a TCP address none.
    let addresses = client.get::<DaemonReport>("/daemon").map_or(Vec::new(), |daemon| daemon.nbd);
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
