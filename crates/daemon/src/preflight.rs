//! Checks of a new volume before any device is touched.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_admin::{
    ApiError, Assignments, CreateRequest, ErrorKind, Profile, ProfileName, Settings,
};
use forebay_core::{BlockSize, Mode, SECTOR_SIZE};

use super::host_api::Definition;
use super::known::Position;
use crate::devices::{DeviceKey, DeviceName, NO_CACHE, cache_device};

/// Converts a request to a definition, if it is valid by itself.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the field at fault.
pub fn definition(request: &CreateRequest) -> Result<Definition, ApiError> {
    let profile = request.profile.map(ProfileName::profile);
    let block_size = request.block_size.or_else(|| profile.and_then(Profile::block_size));
    let block_size = match block_size {
        None => BlockSize::DEFAULT,
        Some(bytes) => BlockSize::new(bytes).ok_or_else(|| {
            let reason =
                format!("a block cannot have {bytes} bytes; choose a power of two from 2K to 1M");
            ApiError::invalid("block_size", reason)
        })?,
    };
    let alignment = request.alignment;
    if !alignment.is_multiple_of(SECTOR_SIZE) || alignment >= block_size.bytes() {
        let reason = format!(
            "{alignment} bytes is not a multiple of {SECTOR_SIZE} below the block size of {} bytes",
            block_size.bytes()
        );
        return Err(ApiError::invalid("alignment", reason));
    }
    let mut settings = profile.map(Profile::settings).transpose()?.unwrap_or_default();
    let cache = cache_device("cache", request.cache.as_deref().unwrap_or(NO_CACHE))?;
    change(&cache, &mut settings, &request.settings)?;
    if cache == NO_CACHE {
        if settings.ram == 0 || request.adopt {
            let reason = "name a cache device, or RAM for copies of blocks with --ram";
            return Err(ApiError::invalid("cache", reason));
        }
        if !request.settings.iter().any(|(name, _)| name == "mode") {
            settings.mode = Mode::Passthrough;
        }
    }
    check_mode(&cache, &settings)?;
    if request.stored_as.is_some() && !request.adopt {
        let reason = "only a volume that is adopted has a name on its cache device";
        return Err(ApiError::invalid("stored_as", reason));
    }
    Ok(Definition {
        name: request.name.clone(),
        cache,
        origin: DeviceName::parse_origin("origin", &request.origin)?.text,
        block_size: block_size.bytes(),
        alignment,
        settings,
        version: 0,
        uuid: None,
        cache_uuid: None,
        origin_identity: None,
        stored_as: request.stored_as.clone(),
    })
}

/// Changes settings of a volume with this cache device.
///
/// # Errors
/// [`ErrorKind::Invalid`]: the settings contradict each other, or need a cache device and there is
/// none.
pub(crate) fn change(
    cache: &str,
    settings: &mut Settings,
    changes: &Assignments,
) -> Result<(), ApiError> {
    // Check this first, because the other error proposes modes that need a cache device as well.
    if cache == NO_CACHE && changes.iter().any(|change| change == ("ordered", "on")) {
        let reason = "the order is kept on a cache device, and there is none; leave it off";
        return Err(ApiError::invalid("ordered", reason));
    }
    Ok(changes.apply(settings)?)
}

/// Checks that a volume without a cache device has no mode that needs one.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub(crate) fn check_mode(cache: &str, settings: &Settings) -> Result<(), ApiError> {
    if cache != NO_CACHE || settings.mode == Mode::Passthrough {
        return Ok(());
    }
    let reason = format!(
        "a volume without a cache device has mode=passthrough; mode={} needs one",
        settings.mode
    );
    Err(ApiError::invalid("mode", reason))
}

fn place(field: &str, device: &str) -> Result<Option<DeviceKey>, ApiError> {
    if device == NO_CACHE {
        return Ok(None);
    }
    DeviceName::parse(field, device)?.place(field)
}

/// Returns whether both devices exist and share bytes. A missing device of an older volume shares
/// none.
fn overlap(new: Option<&DeviceKey>, field: &str, old: &str) -> bool {
    match (new, place(field, old)) {
        (Some(new), Ok(Some(old))) => new.overlaps(&old),
        _ => false,
    }
}

/// Returns whether a device is the block device at the path `own`, or a partition of it.
pub(crate) fn is_part_of(field: &str, device: &str, own: &Path) -> bool {
    let Ok(Some(DeviceKey::Block { number, whole, .. })) = place(field, device) else {
        return false;
    };
    std::fs::metadata(own).is_ok_and(|own| [Some(number), whole].contains(&Some(own.rdev())))
}

/// Returns whether a device is the file below the loop device at the path `own`.
pub(crate) fn is_file_of(field: &str, device: &str, own: &Path) -> bool {
    let (Ok(Some(DeviceKey::File(filesystem, inode))), Ok(DeviceKey::Block { backing, .. })) =
        (place(field, device), DeviceKey::of(field, own))
    else {
        return false;
    };
    backing == Some((filesystem, inode))
}

/// Returns whether a device is the one on another machine that a URI names.
pub(crate) fn is_same_remote(field: &str, device: &str, uri: &str) -> bool {
    match place(field, device) {
        Ok(Some(device @ DeviceKey::Remote(_))) => overlap(Some(&device), field, uri),
        _ => false,
    }
}

/// Returns whether two names lead to the same device, which need not exist yet. Each name comes
/// with the field of the request that has it, for errors.
pub(crate) fn same_device(one: (&str, &str), other: (&str, &str)) -> bool {
    let path = |(field, device): (&str, &str)| match device {
        NO_CACHE => None,
        _ => DeviceName::parse(field, device).ok()?.path,
    };
    if path(one).is_some() && path(one) == path(other) {
        return true;
    }
    match place(one.0, one.1) {
        Ok(place) => overlap(place.as_ref(), other.0, other.1),
        Err(_) => false,
    }
}

/// Returns whether two cache devices exist and are not the same.
pub(crate) fn elsewhere(one: &str, other: &str) -> bool {
    match (place("cache", one), place("cache", other)) {
        (Ok(Some(one)), Ok(Some(other))) => !one.overlaps(&other),
        _ => false,
    }
}

/// Returns the error of a cache device at position `found` that was at `known`.
pub(crate) fn older(volume: &Definition, found: Position, known: Position) -> ApiError {
    let Definition { name, cache: device, .. } = volume;
    let message = format!(
        "the cache device {device} is older than the daemon's state: it is at {found}, and was at {known}; it is an older copy, or has lost confirmed writes. Connect the newer one, or accept the loss with 'forebay start --force {name}'"
    );
    ApiError::new(ErrorKind::DataAtRisk, message)
}

/// Returns the error of a volume whose cache device is an older copy that was accepted only for
/// another volume.
pub(crate) fn behind(volume: &Definition) -> ApiError {
    let Definition { name, cache, .. } = volume;
    let message = format!(
        "the cache device {cache} is an older copy, which was accepted for another volume; accept it for '{name}' too with 'forebay start --force {name}'"
    );
    ApiError::new(ErrorKind::DataAtRisk, message)
}

/// Returns whether two volumes have the same cache device, which need not exist.
pub(crate) fn same_cache(one: &Definition, other: &Definition) -> bool {
    if same_device(("cache", &one.cache), ("cache", &other.cache)) {
        return true;
    }
    // A copy on another device has the same UUID.
    let same_uuid = one.cache_uuid.is_some() && one.cache_uuid == other.cache_uuid;
    same_uuid && !elsewhere(&one.cache, &other.cache)
}

/// Checks the devices of a new volume against each other and against those of `others`, by their
/// names.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the two are the same device or do not exist; [`ErrorKind::Refused`] if
/// another volume uses them.
pub(crate) fn check_devices(new: &Definition, others: &[Definition]) -> Result<(), ApiError> {
    let cache = place("cache", &new.cache)?;
    let origin = place("origin", &new.origin)?;
    if let (Some(cache), Some(origin)) = (&cache, &origin)
        && cache.overlaps(origin)
    {
        let reason = format!(
            "{} is (part of) the cache device {} itself; name two separate devices",
            new.origin, new.cache
        );
        return Err(ApiError::invalid("origin", reason));
    }
    let in_use = |field: &str, device: &str, other: &Definition, role: &str| {
        let message = format!(
            "{field}: {device} is the {role} of volume '{}'; name another device, or delete that volume",
            other.name
        );
        Err(ApiError::new(ErrorKind::Refused, message).about(field))
    };
    for other in others {
        if overlap(origin.as_ref(), "origin", &other.origin) {
            return in_use("origin", &new.origin, other, "origin");
        }
        if overlap(origin.as_ref(), "cache", &other.cache) {
            return in_use("origin", &new.origin, other, "cache device");
        }
        if overlap(cache.as_ref(), "origin", &other.origin) {
            return in_use("cache", &new.cache, other, "origin");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use forebay_testkit::TempDir;

    fn request(cache: &str, origin: &str) -> CreateRequest {
        CreateRequest {
            name: "v".parse().expect("valid"),
            cache: Some(cache.to_owned()),
            origin: origin.to_owned(),
            profile: None,
            block_size: None,
            alignment: 0,
            force: false,
            adopt: false,
            stored_as: None,
            settings: forebay_admin::Assignments::default(),
        }
    }

    #[test]
    fn requests_are_checked_field_by_field() {
        let mut good = request("ram:1M", "/o");
        good.block_size = Some(8192);
        good.alignment = 7680;
        assert_eq!(definition(&good).expect("good").block_size, 8192);
        type Change = fn(&mut CreateRequest);
        let changes: [(&str, Change); 11] = [
            ("block_size", |r| r.block_size = Some(0)),
            ("block_size", |r| r.block_size = Some(3)),
            ("block_size", |r| r.block_size = Some(1 << 31)),
            ("alignment", |r| r.alignment = 8192),
            ("alignment", |r| r.alignment = 1),
            ("alignment", |r| r.alignment = u64::MAX),
            ("cache", |r| r.cache = Some(String::new())),
            ("cache", |r| r.cache = None),
            ("origin", |r| r.origin = "ram:".to_owned()),
            ("origin", |r| r.origin = "ram:1G".to_owned()),
            ("origin", |r| r.origin = "hdd7200:ram:1G".to_owned()),
        ];
        for (field, change) in changes {
            let mut bad = good.clone();
            change(&mut bad);
            let error = definition(&bad).expect_err(field);
            assert_eq!((error.kind, error.field.as_deref()), (ErrorKind::Invalid, Some(field)));
        }
    }

    #[test]
    fn a_volume_without_a_cache_device_passes_everything_through() {
        let with = |settings: &[&str]| {
            let mut request = request("none", "/o");
            request.settings = forebay_admin::Assignments::parse(settings).expect("good");
            definition(&request)
        };
        assert_eq!(with(&["ram=1G"]).expect("good").settings.mode, Mode::Passthrough);
        assert!(with(&["ram=1G", "mode=pt"]).is_ok());
        for (settings, field) in [
            (&["ram=1G", "mode=wb"][..], "mode"),
            (&["ram=0"], "cache"),
            (&["ram=1G", "ordered=on"], "ordered"),
            (&["ram=1G", "mode=pt", "ordered=on"], "ordered"),
        ] {
            let error = with(settings).expect_err(field);
            assert_eq!((error.kind, error.field.as_deref()), (ErrorKind::Invalid, Some(field)));
        }
    }

    #[test]
    fn settings_beside_a_profile_win() {
        let with = |profile: &str, settings: &[&str]| {
            let mut request = request("ram:1M", "/o");
            request.profile = Some(profile.parse().expect("a profile"));
            request.settings = forebay_admin::Assignments::parse(settings).expect("good");
            request
        };
        for profile in forebay_admin::PROFILES {
            let made = definition(&with(profile.name, &[])).expect(profile.name);
            assert_eq!(Ok(made.settings), profile.settings(), "{}", profile.name);
            assert_eq!(Some(made.block_size), profile.block_size(), "{}", profile.name);
            let mut own = with(profile.name, &["mode=wa", "policy=random", "idle=7s"]);
            own.block_size = Some(16 << 10);
            let made = definition(&own).expect(profile.name);
            let mut wanted = profile.settings().expect(profile.name);
            own.settings.apply(&mut wanted).expect("they fit together");
            assert_eq!((made.block_size, made.settings), (16 << 10, wanted), "{}", profile.name);
        }
        // Values that contradict other settings of the profile are reported.
        let error = definition(&with("bcache", &["dirty_low=20"])).expect_err("crossed");
        assert_eq!((error.kind, error.field.as_deref()), (ErrorKind::Invalid, Some("dirty_low")));
        assert!(definition(&with("bcache", &["dirty_low=20", "dirty_high=30"])).is_ok());
    }

    #[test]
    fn devices_are_checked_against_each_other_and_other_volumes() {
        let dir = TempDir::new("preflight");
        let path = |name: &str| dir.path().join(name).display().to_string();
        for name in ["cache", "origin", "third"] {
            fs::write(dir.path().join(name), [0; 4096]).expect("writable");
        }
        std::os::unix::fs::symlink(path("cache"), path("link")).expect("writable");
        let volume =
            |cache: &str, origin: &str| definition(&request(cache, origin)).expect("well formed");
        let kind = |cache: &str, origin: &str, others: &[Definition]| {
            check_devices(&volume(&path(cache), &path(origin)), others)
                .map_err(|error| (error.kind, error.field.unwrap_or_default()))
        };
        let other = [volume(&path("cache"), &path("origin"))];
        let refused = |field: &str| Err((ErrorKind::Refused, field.to_owned()));
        let invalid = |field: &str| Err((ErrorKind::Invalid, field.to_owned()));
        assert_eq!(kind("cache", "origin", &[]), Ok(()));
        assert_eq!(kind("cache", "link", &[]), invalid("origin"));
        assert_eq!(kind("cache", "cache", &[]), invalid("origin"));
        assert_eq!(kind("absent", "origin", &[]), invalid("cache"));
        assert_eq!(kind("cache", "absent", &[]), invalid("origin"));
        assert_eq!(kind("cache", "third", &other), Ok(()), "a cache has several volumes");
        assert_eq!(kind("third", "origin", &other), refused("origin"));
        assert_eq!(kind("third", "link", &other), refused("origin"));
        assert_eq!(kind("origin", "third", &other), refused("cache"));
        for nothing in [NO_CACHE, "ram:32M"] {
            let cache = ("cache", nothing);
            assert!(!same_device(cache, cache), "{nothing} is a device of each volume's own");
        }
        assert!(same_device(("cache", "/absent"), ("cache", "/absent")));
    }
}
