//! `forebay delete`: removes a volume from its cache.

use clap::Args;
use forebay_admin::{DeleteRequest, VolumeList, VolumeName, api};
use forebay_core::units::format_size;

use super::moved_by;
use crate::client::DaemonClient;
use crate::exit::{VerbResult, note};
use forebay_daemon::devices::{DeviceName, NO_CACHE};

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Discard the dirty blocks instead of writing them to the origin
    #[arg(long)]
    pub(crate) discard_dirty: bool,

    /// Delete it although clients are connected or its block device is in use: they get I/O errors,
    /// and a file system on it loses data that it has not written yet
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Wipe the cache device afterwards, for another use: it shows no mark of Forebay any more.
    /// Refused if it holds other volumes
    #[arg(long)]
    pub(crate) wipe: bool,
}

/// Removes a volume.
pub(crate) fn run(client: &DaemonClient, args: &DeleteArgs) -> VerbResult {
    let before = client.get(&api::LIST, &()).ok();
    let DeleteArgs { discard_dirty, wipe, force, .. } = *args;
    let request = DeleteRequest { discard_dirty, wipe, force };
    let moved = moved_by(client, &api::DELETE, &args.name, &request, "Deleting")?;
    if let Some(cache) = before.as_ref().and_then(|list| left_empty(list, &args.name)) {
        note(&after(&cache, args.wipe));
    }
    let amount = match discard_dirty {
        true => format!("{} of dirty data discarded", format_size(moved.discarded)),
        false => format!("{} written back", format_size(moved.written_back)),
    };
    note(&format!("{}: deleted, {amount}", args.name));
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
        "{cache} is now an empty Forebay cache, for the next 'forebay create'; for another use overwrite its start first: dd if=/dev/zero of={} bs=128K count=1 conv=notrunc ('delete --wipe' would have done so)",
        shell_word(cache)
    )
}

/// Returns a text as a shell takes it for one word.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_spaces_is_one_word_in_the_command_to_copy() {
        for (path, word) in [
            ("/dev/disk/by-id/x-part1", "of=/dev/disk/by-id/x-part1 bs"),
            ("/var/my ssd", "of='/var/my ssd' bs"),
            ("/it's", r"of='/it'\''s' bs"),
        ] {
            let said = after(path, false);
            assert!(said.contains(word), "{said}");
        }
    }
}
