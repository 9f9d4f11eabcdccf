//! Commands about devices.

use std::io;
use std::time::Duration;

use forebay_core::Sectors;
use forebay_device::IoBuf;
use forebay_device::ublk::{ControlCommand, control};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{
    BasicParams, DeviceInfo, DiscardParams, PARAMS_LEN, Params, attribute, flag, param,
};

/// Time limit for a command that does not depend on a lane.
const QUICK: Duration = Duration::from_secs(10);
/// Most requests in flight of a queue.
const DEPTH: u16 = 64;
/// Bytes of the longest read or write.
pub(crate) const MAX_IO: u32 = 256 << 10;
/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Bytes of the smallest unit of discards.
const PAGE: u64 = 4096;
/// Sectors of the longest discard, or write of zeroes: 1 GiB.
const MAX_ZEROED: u32 = (1 << 30) / SECTOR as u32;

/// A device to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewDevice {
    /// The mark that identifies the device.
    pub(crate) mark: u64,
    /// Queues; the kernel may grant fewer.
    pub(crate) queues: u16,
    /// Bytes, a multiple of 512.
    pub(crate) size: u64,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// The sizes in which the volume is addressed and works best.
    pub(crate) sectors: Sectors,
    /// Bytes of a cache block, a power of two: the best size of requests, unless the disk below
    /// reports one.
    pub(crate) preferred: u64,
    /// The device outlives its server.
    pub(crate) survives: bool,
}

/// Returns the kernel's facts about a device.
pub(crate) fn info(number: u32) -> io::Result<DeviceInfo> {
    let buf = IoBuf::zeroed(size_of::<DeviceInfo>());
    let buf = control(ControlCommand::GetInfo, number, buf, QUICK)?;
    parsed(&buf)
}

/// Returns the facts about a device. Fails with [`Errno::NODEV`] if another device, without this
/// mark, has the number now.
pub(crate) fn owned(number: u32, mark: u64) -> io::Result<DeviceInfo> {
    of_mark(info(number)?, mark)
}

fn of_mark(info: DeviceInfo, mark: u64) -> io::Result<DeviceInfo> {
    if info.mark == mark { Ok(info) } else { Err(Errno::NODEV.into()) }
}

fn parsed(buf: &[u8]) -> io::Result<DeviceInfo> {
    DeviceInfo::read_from_bytes(buf).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Adds a device without starting it. Returns its facts, in which the kernel may have changed the
/// requested values.
pub(crate) fn add(new: &NewDevice) -> io::Result<DeviceInfo> {
    let recovery = flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE;
    let wanted = DeviceInfo {
        queues: new.queues,
        depth: DEPTH,
        max_io_bytes: MAX_IO,
        number: u32::MAX,
        pid: -1,
        flags: flag::CMD_IOCTL_ENCODE | if new.survives { recovery } else { 0 },
        mark: new.mark,
        ..DeviceInfo::default()
    };
    let buf = IoBuf::copy_from(wanted.as_bytes());
    let granted = parsed(&control(ControlCommand::Add, u32::MAX, buf, QUICK)?)?;
    let params = params(new, &granted);
    let buf = IoBuf::copy_from(params.as_bytes());
    if let Err(error) = control(ControlCommand::SetParams, granted.number, buf, QUICK) {
        let _ = delete(granted.number);
        return Err(error);
    }
    Ok(granted)
}

/// Returns whether a device outlives its server.
pub(crate) fn survives(info: &DeviceInfo) -> bool {
    info.flags & flag::USER_RECOVERY != 0 && info.flags & flag::USER_RECOVERY_REISSUE != 0
}

fn params(new: &NewDevice, granted: &DeviceInfo) -> Params {
    let Sectors { logical, physical, io_min, io_opt } = new.sectors;
    let preferred = new.preferred.clamp(PAGE, 1 << 30);
    // The kernel takes powers of two alone.
    let best = Some(u64::from(io_opt)).filter(|best| best.is_power_of_two()).unwrap_or(preferred);
    let least = if io_min.is_power_of_two() { io_min } else { physical };
    let cache = attribute::VOLATILE_CACHE | attribute::FUA;
    let discards = if new.read_only { 0 } else { param::DISCARD };
    Params {
        len: PARAMS_LEN,
        types: param::BASIC | discards,
        basic: BasicParams {
            attributes: cache | if new.read_only { attribute::READ_ONLY } else { 0 },
            logical_shift: logical.trailing_zeros() as u8,
            physical_shift: physical.trailing_zeros() as u8,
            best_shift: best.trailing_zeros() as u8,
            least_shift: least.trailing_zeros() as u8,
            max_sectors: granted.max_io_bytes / SECTOR as u32,
            chunk_sectors: 0,
            sectors: new.size / SECTOR,
            boundary_mask: 0,
        },
        discard: if new.read_only {
            DiscardParams::default()
        } else {
            DiscardParams {
                alignment: 0,
                granularity: preferred as u32,
                max_discard_sectors: MAX_ZEROED,
                max_zeroes_sectors: MAX_ZEROED,
                max_segments: 1,
                reserved: 0,
            }
        },
        pad: 0,
    }
}

/// Deletes a device that has no block device any more. The kernel completes this when the last user
/// of the device is gone.
pub(crate) fn delete(number: u32) -> io::Result<()> {
    let command = |command| control(command, number, IoBuf::empty(), QUICK).map(drop);
    command(ControlCommand::DeleteLater).or_else(|error| match error.kind() {
        // Linux before 6.9.
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => command(ControlCommand::Delete),
        _ => Err(error),
    })
}

/// Returns whether the kernel resets a device when its server ends, so that another server can
/// start over.
pub(crate) fn resets(info: &DeviceInfo) -> bool {
    info.flags & flag::PER_IO_DAEMON != 0
}

/// Prepares a device for a new server. Does not wait.
pub(crate) fn start_recovery(number: u32) -> io::Result<()> {
    plain(ControlCommand::StartRecovery, number, QUICK)
}

/// Resumes the requests of a device. Waits until all tags are fetched, unless the process is
/// killed.
pub(crate) fn end_recovery(number: u32) -> io::Result<()> {
    plain(ControlCommand::EndRecovery(std::process::id()), number, QUICK)
}

/// Gives a command without data.
pub(crate) fn plain(command: ControlCommand, number: u32, patience: Duration) -> io::Result<()> {
    control(command, number, IoBuf::empty(), patience).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: NewDevice = NewDevice {
        mark: 1,
        queues: 2,
        size: (64 << 20) + 512,
        read_only: false,
        sectors: Sectors { logical: 512, physical: 4096, io_min: 4096, io_opt: 0 },
        preferred: 16384,
        survives: true,
    };

    #[test]
    fn a_device_of_another_program_is_no_device() {
        let info = DeviceInfo { mark: 7, ..DeviceInfo::default() };
        assert_eq!(of_mark(info, 7).ok(), Some(info));
        let error = of_mark(info, 8).expect_err("another one");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NODEV));
    }

    #[test]
    fn a_device_has_a_write_cache() {
        let granted = |flags| DeviceInfo { flags, max_io_bytes: MAX_IO, ..DeviceInfo::default() };
        let both = flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE;
        let with = params(&NEW, &granted(both));
        let cache = attribute::VOLATILE_CACHE | attribute::FUA;
        for flags in [0, both] {
            assert_eq!(params(&NEW, &granted(flags)).basic.attributes, cache, "flags {flags:#x}");
        }
        assert_eq!((with.basic.sectors, with.basic.max_sectors), (131_073, 512));
        assert_eq!((with.basic.logical_shift, with.basic.physical_shift), (9, 12));
        assert_eq!((with.basic.best_shift, with.discard.granularity), (14, 16384));
        let disk = |sectors| {
            let basic = params(&NewDevice { sectors, ..NEW }, &granted(both)).basic;
            (basic.logical_shift, basic.physical_shift, basic.least_shift, basic.best_shift)
        };
        assert_eq!(disk(Sectors::of(512)), (9, 9, 9, 14));
        assert_eq!(disk(Sectors::of(4096)), (12, 12, 12, 14));
        assert_eq!(disk(Sectors::told(512, 4096, 65_536, 1 << 20)), (9, 12, 16, 20));
        assert_eq!(disk(Sectors::told(512, 4096, 12_288, 196_608)), (9, 12, 12, 14));
        let read_only = params(&NewDevice { read_only: true, ..NEW }, &granted(both));
        assert_eq!(read_only.basic.attributes, cache | attribute::READ_ONLY);
        assert_eq!(read_only.types, param::BASIC);
        assert_eq!(read_only.as_bytes().len(), PARAMS_LEN as usize + 4);
    }
}
