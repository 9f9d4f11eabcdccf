//! `forebay delete`: removes a volume from its cache.

use forebay_admin::{DeleteRequest, VolumeList, VolumeName};

use super::operate;
use crate::cli::DeleteArgs;
use crate::client::Client;
use crate::exit::{Outcome, note};
use forebay_daemon::devices::{DeviceName, NO_CACHE};

/// Removes a volume.
pub(super) fn run(client: &Client, args: &DeleteArgs) -> Outcome {
    let before: Option<VolumeList> = client.get("/volumes").ok();
    let DeleteArgs { discard_dirty, wipe, force, .. } = *args;
    let request = DeleteRequest { discard_dirty, wipe, force };
    operate(client, &args.name, "delete", &request, "Deleting")?;
    if let Some(cache) = before.as_ref().and_then(|list| left_empty(list, &args.name)) {
        note(&after(&cache, args.wipe));
    }
    Ok(())
}

/// Returns the file or block device that only this volume had for a cache.
fn left_empty(list: &VolumeList, name: &VolumeName) -> Option<String> {
    let cache = &list.volumes.iter().find(|volume| volume.name == *name)?.cache;
    let alone = list.volumes.iter().filter(|volume| volume.cache == *cache).count() == 1;
    let path = DeviceName::parse("cache", cache).ok()?.path?;
    (alone && cache != NO_CACHE).then(|| path.display().to_string())
}

fn after(cache: &str, wiped: bool) -> String {
    if wiped {
        return format!("{cache} was wiped, and shows no mark of Forebay any more");
    }
    format!(
        "{cache} is now an empty Forebay cache, for the next 'forebay create'; for another use overwrite its start first: dd if=/dev/zero of={cache} bs=128K count=1 conv=notrunc ('delete --wipe' would have done so)"
    )
}
