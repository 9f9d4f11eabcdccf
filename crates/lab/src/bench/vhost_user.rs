//! `forebay-lab vhost-user-server`: one volume by vhost-user-blk, with the cache and the origin in
//! RAM, or without both. A client such as `blkio-bench` of libblkio measures it, and other servers
//! with it.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ExportSet, parse_size};
use forebay_device::RamDevice;
use forebay_engine::{Exports, FrontEnd, Settings};
use forebay_lane::{LaneLoop, MemoryBudget};
use forebay_nbd::null::{ExportList, NullTarget};
use forebay_vhost_user::VhostUserFrontEnd;

use super::nbd::server::{cached, everything_stays, serve};
use crate::error::{LabResult, other};
use crate::rig::VOLUME;

/// Arguments of `forebay-lab vhost-user`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of the socket that the client connects to
    #[arg(long, value_name = "PATH")]
    listen: PathBuf,
    /// Size of the volume; everything stays cached
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// No cache and no origin: written data is discarded
    #[arg(long)]
    null: bool,
}

pub(crate) fn run(args: &Args) -> LabResult<()> {
    let size = args.size;
    let listen = std::path::absolute(&args.listen)?;
    let set: Result<ExportSet, _> = format!("vhost-user={}", listen.display()).parse();
    let set = set.map_err(|error| other(error.to_string()))?;
    let memory = Arc::<MemoryBudget>::default();
    let front_end = VhostUserFrontEnd::new(Path::new("/"), Duration::from_secs(5), memory);
    let front_end = Arc::new(front_end);
    let (null, served) = (args.null, front_end.clone());
    let ((), thread) = serve(async move |lane| {
        let exports = exports(lane, size, null).await?;
        Ok(((), served.serve(lane.lane(), lane.ring(), exports)))
    })?;
    front_end
        .publish(VOLUME, &Settings { export: set, ..Settings::default() })
        .map_err(|error| other(error.to_string()))?;
    println!("{}", listen.display());
    thread.join()?;
    Ok(())
}

async fn exports(lane: &LaneLoop, size: u64, null: bool) -> LabResult<Rc<dyn Exports>> {
    if null {
        let volume = Rc::new(NullTarget::new(size, false));
        return Ok(Rc::new(ExportList::new(vec![(VOLUME.to_owned(), volume)])));
    }
    let devices =
        (RamDevice::new("cache", 2 * size + (64 << 20))?, RamDevice::new("origin", size)?);
    cached(lane, everything_stays(devices)).await
}
