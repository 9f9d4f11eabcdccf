//! Decides whether a device may be formatted as a cache, and wipes the marks of its former owner
//! before that.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::units::format_size;
use forebay_device::signature::Signature;
use forebay_device::{Device, DeviceError, DeviceOp, DeviceSpec, IoBuf, Queue};
use forebay_format::Uuid;
use forebay_store::Roots;

use super::EngineHost;
use super::attended::within;
use super::faults;
use super::inspect::{self, CacheContent as Cache};
use super::volumes::{made, spec};
use crate::content::{self, DeviceContent};
use crate::host_api::{Definition, Existing};
use crate::planted::{self, PlantedBug};
use crate::work::{Effect, Work};

/// Bytes at the start that are wiped: further marks exist only where libblkid finds them. Second
/// headers of LUKS are within the first 4 MiB, and the first two labels of ZFS within 512 KiB.
const HEAD: u64 = 5 << 20;
/// Bytes at the end that are wiped: the last two labels of ZFS, md's and DDF's superblocks, GPT's
/// backup.
const TAIL: u64 = 2 << 20;
/// Offsets of btrfs's copies of its superblock. libblkid does not check them, but programs that
/// rescue a filesystem do.
const BTRFS_COPIES: [u64; 2] = [64 << 20, 256 << 30];
const PAGE: u64 = 4096;
/// Most marks that are wiped individually.
const MOST_ROUNDS: usize = 64;
/// Time limit for the origin's answer when a refusal is about to be explained.
const EXPLAIN_WITHIN: Duration = Duration::from_secs(2);
/// Attempts for partitions of the disk, which udev may be examining at the moment.
const PARTITION_STEPS: u32 = 20;
const PARTITION_STEP: Duration = Duration::from_millis(100);

/// A new volume and its cache device, before the device is claimed.
pub(super) struct New {
    pub(super) volume: Definition,
    pub(super) existing: Existing,
    /// The content of the device when the command was given. `None` if it is new, in RAM, or the
    /// open cache of other volumes.
    pub(super) seen: Option<InspectedDevice>,
    /// The volumes of this daemon.
    pub(super) volumes: Vec<Definition>,
    pub(super) work: Arc<Work>,
}

/// The content that was found on a device.
pub(super) struct InspectedDevice {
    name: String,
    size: u64,
    content: DeviceContent,
    cache: Cache,
}

impl InspectedDevice {
    /// Returns whether the device still has the content of an earlier inspection: the same volumes
    /// in the same state, or else the same bytes.
    fn is_as(&self, earlier: &InspectedDevice) -> bool {
        match (&self.cache, &earlier.cache) {
            (Cache::Cache(now), Cache::Cache(then)) => {
                let of = |roots: &Roots| {
                    let volumes =
                        roots.volumes.iter().map(|record| record.uuid).collect::<Vec<_>>();
                    let generation = Some(roots.superblock.generation);
                    (roots.superblock.cache, generation.filter(|_| !volumes.is_empty()), volumes)
                };
                self.size == earlier.size && of(now) == of(then)
            }
            (Cache::Cache(_), _) | (_, Cache::Cache(_)) => false,
            (Cache::Unusable(now), Cache::Unusable(then)) if now != then => false,
            (Cache::Unusable(_), Cache::Nothing) | (Cache::Nothing, Cache::Unusable(_)) => false,
            _ => self.size == earlier.size && self.content == earlier.content,
        }
    }

    fn describe(&self) -> String {
        match &self.cache {
            Cache::Nothing => self.content.describe(),
            _ if !self.content.marks.is_empty() => {
                format!("{} and a Forebay cache", self.content.describe())
            }
            Cache::Unusable(why) => format!("a Forebay cache that cannot be used ({why})"),
            Cache::Cache(roots) if roots.volumes.is_empty() => "an empty Forebay cache".to_owned(),
            Cache::Cache(roots) => {
                let names: Vec<&str> =
                    roots.volumes.iter().map(|record| record.name.as_str()).collect();
                format!("a Forebay cache with the volumes {}", names.join(", "))
            }
        }
    }

    fn error(&self, kind: ErrorKind, what: &str) -> ApiError {
        let message = format!("cache: {} ({}) {what}", self.name, format_size(self.size));
        ApiError::new(kind, message).about("cache")
    }
}

/// Decides whether a device may be formatted. Without consent it must be blank, or hold a Forebay
/// cache without volumes. With consent ([`Existing::Overwrite`]) it must still have the content
/// that it had when the command was given, `earlier`. `volumes` are those of this daemon; their
/// caches are never overwritten, under any name of their devices. `is_deleted`: whether a volume
/// was deleted that the cache still lists.
///
/// # Errors
/// [`ErrorKind::Refused`]: the device is the cache of volumes of this daemon;
/// [`ErrorKind::DataAtRisk`]: it holds other data, or has changed.
pub(super) fn may_format(
    seen: &InspectedDevice,
    earlier: Option<&InspectedDevice>,
    existing: Existing,
    volumes: &[Definition],
    is_deleted: impl Fn(Uuid) -> bool,
) -> Result<(), ApiError> {
    if let Cache::Cache(roots) = &seen.cache {
        let here = roots.superblock.cache;
        let own = volumes.iter().filter(|volume| volume.cache_uuid == Some(here));
        let own: Vec<&Definition> = own.collect();
        let first = own.first().filter(|_| !planted::has(PlantedBug::ForceOverOwnCaches));
        if let Some(first) = first {
            let names: Vec<&str> = own.iter().map(|volume| volume.name.as_str()).collect();
            let what = format!(
                "is the cache device of volume {}, known as {}; name another device, or delete that volume first",
                names.join(", "),
                first.cache
            );
            return Err(seen.error(ErrorKind::Refused, &what));
        }
    }
    if let (Existing::Overwrite, Some(earlier)) = (existing, earlier) {
        if seen.is_as(earlier) || planted::has(PlantedBug::ConsentToAnything) {
            return Ok(());
        }
        let what = format!(
            "has changed while this command waited: it held {}, and now holds {}; look at it, and repeat the command if that may be overwritten",
            earlier.describe(),
            seen.describe()
        );
        return Err(seen.error(ErrorKind::DataAtRisk, &what));
    }
    let way = match &seen.cache {
        _ if planted::has(PlantedBug::UnknownIsBlank) => return Ok(()),
        Cache::Nothing if seen.content.marks.is_empty() && seen.content.blank => return Ok(()),
        Cache::Cache(roots) if seen.content.marks.is_empty() => {
            if roots.volumes.iter().all(|record| is_deleted(record.uuid)) {
                return Ok(());
            }
            "--adopt, without options for settings, to adopt the one of this name with its dirty blocks, or --force to overwrite the cache and lose them"
        }
        _ => "--force to overwrite it",
    };
    let what = format!("holds {}; use {way}", seen.describe());
    Err(seen.error(ErrorKind::DataAtRisk, &what))
}

impl EngineHost {
    /// Inspects a device, however it was opened. Waits for it.
    pub(super) fn see(&self, device: &Arc<dyn Device>) -> Result<InspectedDevice, ApiError> {
        let own = device.clone();
        let cache = self
            .lanes
            .run(0, move |state| async move { inspect::content(&state.context, &own).await })??;
        let marks = || content::marks_apart(device.descriptor()?);
        let content = self.look_at(device, marks)?;
        Ok(InspectedDevice { name: device.name().to_owned(), size: device.size(), content, cache })
    }

    fn look_at(
        &self,
        device: &Arc<dyn Device>,
        marks: impl FnOnce() -> Option<Vec<Signature>>,
    ) -> Result<DeviceContent, ApiError> {
        let runs = content::runs(&**device);
        DeviceContent::look(device.size(), &runs, marks, |at, len| {
            let read = move |queue: Queue| async move { queue.read(at, IoBuf::zeroed(len)).await };
            self.on_queue(device, read).map(|bytes| bytes.to_vec())
        })
    }

    fn is_blank(&self, device: &Arc<dyn Device>) -> bool {
        self.look_at(device, || None).is_ok_and(|content| content.blank)
    }

    /// Runs operations on a queue of a device.
    fn on_queue<T, F>(
        &self,
        device: &Arc<dyn Device>,
        job: impl FnOnce(Queue) -> F + Send + 'static,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DeviceError>> + 'static,
    {
        let device = device.clone();
        self.lanes.run(0, move |state| async move {
            let queue = state.context.open(&device).map_err(faults::engine)?;
            job(queue).await.map_err(|error| ApiError::failed(error.to_string()).about("cache"))
        })?
    }

    /// Inspects the cache device of a new volume before anything else waits: remembers the content
    /// to which the operator consents, and refuses early if [`may_format`] would refuse later.
    pub(super) fn see_first(self: &Arc<Self>, new: &mut New) -> Result<(), ApiError> {
        let New { volume, existing, seen: first, volumes, .. } = new;
        let (cache, origin) = (&spec("cache", &volume.cache)?, &spec("origin", &volume.origin)?);
        if *existing == Existing::Join || cache.is_volatile() || is_missing(cache.path()) {
            return Ok(());
        }
        let _wait = self.served.wait_for(&volume.name, &volume.cache);
        if self.caches.place(&cache.made(), &volume.name)?.lock().is_some() {
            return Ok(());
        }
        let device = self.devices.look(cache).map_err(|error| faults::open("cache", &error))?;
        let seen = self.see(&device)?;
        let judged = may_format(&seen, Some(&seen), *existing, volumes, |uuid| {
            self.caches.known.is_deleted(uuid)
        });
        if let Err(mut error) = judged {
            if error.kind == ErrorKind::DataAtRisk && self.is_blank_soon(origin) {
                error.message.push_str(&exchanged(volume));
            }
            return Err(error);
        }
        *first = Some(seen);
        Ok(())
    }

    /// Returns whether an origin exists, answers soon, and is blank.
    fn is_blank_soon(self: &Arc<Self>, origin: &DeviceSpec) -> bool {
        if origin.remote().is_some() || is_missing(origin.path()) {
            return false;
        }
        let (host, origin) = (self.clone(), origin.made());
        let look = move || host.devices.look(&origin).is_ok_and(|device| host.is_blank(&device));
        within(EXPLAIN_WITHIN, look)().unwrap_or(false)
    }

    /// Refuses, even with consent, a rotational disk with known content as the cache of a blank
    /// disk that is not rotational: the two have most likely been exchanged, and the data of the
    /// former would be lost.
    pub(super) fn check_not_exchanged(
        &self,
        volume: &Definition,
        seen: Option<&InspectedDevice>,
        cache: &DeviceSpec,
        origin: &Arc<dyn Device>,
    ) -> Result<(), ApiError> {
        let Some(seen) = seen.filter(|seen| !seen.content.marks.is_empty()) else { return Ok(()) };
        let turns = self.devices.look(&cache.made()).ok().and_then(|device| device.rotational());
        if turns != Some(true) || origin.rotational() != Some(false) || !self.is_blank(origin) {
            return Ok(());
        }
        let what = format!(
            "holds {}, and is a disk with a head{}; if they are not, wipe it with 'wipefs --all' first",
            seen.describe(),
            exchanged(volume)
        );
        Err(seen.error(ErrorKind::Refused, &what))
    }

    /// Formats a claimed device as a cache, if [`may_format`] agrees.
    pub(super) fn overwrite(&self, new: &New, device: &Arc<dyn Device>) -> Result<(), ApiError> {
        let New { volume, existing, seen: earlier, volumes, work } = new;
        let seen = self.see(device)?;
        if !planted::has(PlantedBug::JudgedBeforeTheWait) {
            may_format(&seen, earlier.as_ref(), *existing, volumes, |uuid| {
                self.caches.known.is_deleted(uuid)
            })?;
        }
        self.fits(volume, device)?;
        // Barrier for invariant 32: a command that was reported as failed formats nothing later.
        let effect = work.commit().map_err(|_| faults::given_up())?;
        // A device that looks blank may still have a mark between the samples.
        if !(seen.content.blank && seen.content.marks.is_empty()) {
            self.wipe(device, &effect)?;
        }
        self.format(volume, device, &effect)
    }

    /// Wipes all marks of former owners. The first bytes of the device are wiped last, so that
    /// after a crash it still shows its owner.
    fn wipe(&self, device: &Arc<dyn Device>, _: &Effect) -> Result<(), ApiError> {
        let shows_partitions = self.let_go_of_partitions(device)?;
        let size = device.size();
        let head = HEAD.min(size);
        let unit = device.logical_block();
        let tail = size.saturating_sub(TAIL).max(head).next_multiple_of(unit);
        let copies = BTRFS_COPIES.into_iter().filter(|at| at + PAGE <= tail);
        let before: Vec<(u64, u64)> =
            copies.map(|at| (at, PAGE)).chain([(tail, size - tail)]).collect();
        self.zero(device, before)?;
        self.zero(device, vec![(0, head)])?;
        for _ in 0..MOST_ROUNDS {
            let left = device.descriptor().and_then(content::marks_apart).unwrap_or_default();
            if left.is_empty() {
                if shows_partitions && let Err(error) = device.reread_partitions() {
                    tracing::warn!(device = device.name(), %error, "the kernel still shows its former partitions");
                }
                return Ok(());
            }
            let pages = left.iter().map(|mark| mark.offset - mark.offset % PAGE);
            let pages = pages.filter(|at| *at < size).map(|at| (at, PAGE.min(size - at)));
            self.zero(device, pages.collect())?;
        }
        let message = format!(
            "cache: {} still shows a mark of its former owner after it was wiped; wipe it with 'wipefs --all'",
            device.name()
        );
        Err(ApiError::failed(message).about("cache"))
    }

    /// Wipes a cache device that holds no volume.
    pub(super) fn wipe_empty(&self, volume: &Definition, work: &Work) -> Result<(), ApiError> {
        let spec = made("cache", &volume.cache)?;
        let _wait = self.served.wait_for(&volume.name, &volume.cache);
        let place = self.caches.place(&spec, &volume.name)?;
        let open = place.lock();
        let refused = |what: &str| ApiError::new(ErrorKind::Refused, what).about("wipe");
        if open.is_some() {
            return Err(refused("the cache is still open"));
        }
        let device = self.devices.claim("cache", &spec)?;
        let roots = self.roots(&device)?;
        let another = volume.cache_uuid.is_some_and(|known| known != roots.superblock.cache);
        if another || roots.volumes.iter().any(|record| !self.caches.known.is_deleted(record.uuid))
        {
            return Err(refused("it holds another cache, or other volumes"));
        }
        let effect = work.commit().map_err(|_| faults::given_up())?;
        self.wipe(&device, &effect)
    }

    /// Zeroes ranges, offset and length, durably.
    fn zero(&self, device: &Arc<dyn Device>, ranges: Vec<(u64, u64)>) -> Result<(), ApiError> {
        self.on_queue(device, move |queue| async move {
            for (offset, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
                queue.run(DeviceOp::WriteZeroes { offset, len }).await.result?;
            }
            // Barrier for invariant 32: copies of a mark are gone before the mark itself.
            queue.sync().await
        })
    }

    /// Refuses a disk with a partition in use. Returns whether the kernel may show partitions.
    fn let_go_of_partitions(&self, device: &Arc<dyn Device>) -> Result<bool, ApiError> {
        for _ in 0..PARTITION_STEPS {
            match device.reread_partitions() {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
                Err(error) => {
                    tracing::warn!(device = device.name(), %error, "cannot have the kernel read its partition table again");
                    return Ok(false);
                }
            }
            forebay_threads::sleep(PARTITION_STEP);
        }
        let message = format!("cache: a partition of {} is in use; close it first", device.name());
        Err(ApiError::new(ErrorKind::Refused, message).about("cache"))
    }
}

fn exchanged(volume: &Definition) -> String {
    let origin = &volume.origin;
    format!("; the origin {origin} is blank: make sure that --cache and --origin are not exchanged")
}

fn is_missing(path: Option<&Path>) -> bool {
    path.is_some_and(|path| matches!(path.try_exists(), Ok(false)))
}

#[cfg(test)]
mod tests {
    use forebay_device::signature;

    use super::*;

    /// Returns the inspection of a device whose only page is filled with this byte.
    fn seen(byte: u8, marks: usize, cache: Cache) -> InspectedDevice {
        let mark = signature::named(&[&[0; 4086][..], b"SWAPSPACE2"].concat()).expect("known");
        let content = DeviceContent::look(
            4096,
            &[],
            || Some(vec![mark; marks]),
            |_, len| Ok::<_, ()>(vec![byte; len]),
        );
        let content = content.expect("readable");
        InspectedDevice { name: "/dev/x".to_owned(), size: 4096, content, cache }
    }

    #[test]
    fn without_consent_only_what_is_blank_is_formatted() {
        let judge = |seen: &InspectedDevice, earlier: Option<&InspectedDevice>, existing| {
            may_format(seen, earlier, existing, &[], |_| false).map_err(|error| error.kind)
        };
        let unusable = || Cache::Unusable("damaged".to_owned());
        for byte in [0, 0xff, 7] {
            for marks in [0, 1] {
                for (cache, nothing) in [(Cache::Nothing, true), (unusable(), false)] {
                    let seen = seen(byte, marks, cache);
                    let blank = byte != 7 && marks == 0 && nothing;
                    let wanted = if blank { Ok(()) } else { Err(ErrorKind::DataAtRisk) };
                    assert_eq!(judge(&seen, Some(&seen), Existing::Spare), wanted);
                    // Without an inspection there is nothing to consent to.
                    assert_eq!(judge(&seen, None, Existing::Overwrite), wanted);
                    assert_eq!(judge(&seen, Some(&seen), Existing::Overwrite), Ok(()));
                }
            }
        }
    }

    #[test]
    fn consent_is_to_what_was_seen() {
        let kinds = || {
            [
                seen(0, 0, Cache::Nothing),
                seen(7, 0, Cache::Nothing),
                seen(8, 0, Cache::Nothing),
                seen(7, 1, Cache::Nothing),
                seen(7, 0, Cache::Unusable("damaged".to_owned())),
                InspectedDevice { size: 8192, ..seen(7, 0, Cache::Nothing) },
            ]
        };
        for (i, now) in kinds().iter().enumerate() {
            for (k, then) in kinds().iter().enumerate() {
                let judged = may_format(now, Some(then), Existing::Overwrite, &[], |_| false);
                assert_eq!(judged.is_ok(), i == k, "{} after {}", now.describe(), then.describe());
            }
        }
    }
}
