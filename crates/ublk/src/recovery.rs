//! Takes over the device of a former daemon.
//!
//! `START_USER_RECOVERY` is the step that cannot be repeated: after it the kernel waits until all
//! queues are served, and a lane cannot give a queue back. An attempt that fails later is therefore
//! kept, and the next attempt of the same process continues it. If the process has ended, Linux
//! 6.16 and later start over; an older kernel can do so only if all queues were served, which the
//! next process cannot know.
#![expect(clippy::disallowed_methods, reason = "waits for the kernel, on a thread of an operation")]

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::SECTOR_SIZE;
use forebay_device::ublk;
use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::failed;
use forebay_export::volume_devices::{Made, Publication};
use forebay_host::files::number;
use forebay_host::sysfs;
use forebay_host::users::Users;
use rustix::io::Errno;

use crate::control;
use crate::device::{LANES, Served, TakeOver, started_with};
use crate::front_end::Ublk;
use crate::helper::path;
use crate::queues::Queues;
use crate::wire::state;

/// Time limit for the kernel to notice that the former server has ended. If that server held all
/// requests of a queue, an older kernel notices it only when a request is
/// [`crate::device::NOTICED`] old.
const TAKEOVER: Duration = Duration::from_secs(60);
/// Interval at which a wait checks its condition.
const STEP: Duration = Duration::from_millis(20);

impl Ublk {
    /// Returns whether a device that a former daemon has left can be taken over.
    ///
    /// # Errors
    /// The kernel cannot resume the device, but programs use it. It is not removed without the
    /// operator's consent.
    pub(crate) fn can_take_over(
        &self,
        of: &Publication<'_>,
        number: u32,
    ) -> Result<bool, ExportError> {
        let Publication { volume, note, .. } = *of;
        let device = path(number);
        let found = control::owned(number, note.mark);
        let found = found.map_err(|error| failed(device.display(), error))?;
        if self.has_begun(volume) || control::resets(&found) || !note.half {
            return Ok(control::survives(&found) && found.state != state::DEAD);
        }
        let why = "the daemon ended while it took the device over, and this kernel can do nothing with that any more";
        let users = Users::of(&device, None);
        if !users.may_pass() {
            let message = format!(
                "{}: {why}; it is {users}, and all of that waits: 'forebay stop --force {volume}' cuts it off, and 'forebay start {volume}' then makes a new device",
                device.display()
            );
            return Err(ExportError { kind: ExportErrorKind::InUse, message, cause: None });
        }
        tracing::error!(volume, number, "{why}: it is removed");
        Ok(false)
    }

    /// Makes the lanes serve the device of a former daemon, or its remaining queues if an earlier
    /// attempt of this process has failed.
    ///
    /// # Errors
    /// The device stays, with its note and the queues that are served: see [`Ublk::has_begun`].
    pub(crate) fn take_over(
        &self,
        of: &Publication<'_>,
        number: u32,
        size: u64,
    ) -> Result<Made<Served>, ExportError> {
        let Publication { volume, note, .. } = *of;
        let device = path(number);
        let found = control::owned(number, note.mark);
        let found = found.map_err(|error| failed(device.display(), error))?;
        let began = Instant::now();
        let has = sectors(&device).map(|sectors| sectors * SECTOR_SIZE);
        check_size(volume, number, has, size)?;
        of.name(&device);
        let earlier = self.begun.lock().remove(volume).filter(|begun| begun.mark == note.mark);
        let mut queues = match earlier {
            Some(TakeOver { queues, .. }) => queues,
            None => {
                let mut queues = Queues::new(found);
                queues.prepare(volume, &self.memory)?;
                let end = began + TAKEOVER;
                wait_until_left(number, note.mark, end)
                    .map_err(|error| failed(device.display(), error))?;
                // From here to the end, the process must not die under a kernel before 6.16. So
                // nothing in between waits for anything else or needs another process.
                recover(of, number, end)?;
                queues
            }
        };
        match self.go_on(of, number, &mut queues) {
            Ok(()) => {
                tracing::info!(volume, device = %device.display(), seconds = began.elapsed().as_secs_f32(), "its device is served again");
                Ok(started_with(found, queues))
            }
            Err(error) => {
                let begun = TakeOver { mark: note.mark, resets: control::resets(&found), queues };
                self.begun.lock().insert(volume.to_owned(), begun);
                let message = format!(
                    "{}; {} waits: 'forebay start {volume}' tries again, 'forebay stop --force {volume}' removes it",
                    error.message,
                    device.display()
                );
                Err(ExportError { message, ..error })
            }
        }
    }

    /// Returns whether a take-over has failed in a state from which this process can continue.
    pub(crate) fn has_begun(&self, volume: &str) -> bool {
        self.begun.lock().contains_key(volume)
    }

    /// Returns whether a take-over has failed in a state from which only this process can continue.
    pub(crate) fn only_this_process_goes_on(&self, volume: &str) -> bool {
        self.begun.lock().get(volume).is_some_and(|begun| !begun.resets)
    }

    /// Takes the remaining steps when the kernel waits for the queues.
    fn go_on(
        &self,
        of: &Publication<'_>,
        number: u32,
        queues: &mut Queues,
    ) -> Result<(), ExportError> {
        let Publication { volume, note, .. } = *of;
        queues.prepare(volume, &self.memory)?;
        queues.serve(volume, &self.board, ublk::open, LANES)?;
        let ended = control::end_recovery(number).or_else(|error| {
            // The command of an earlier attempt may have taken effect late.
            let info = control::owned(number, note.mark)?;
            if info.state == state::LIVE { Ok(()) } else { Err(error) }
        });
        ended.map_err(|error| failed(path(number).display(), error))?;
        of.note_half(false)
    }
}

/// Prepares a device for its next server, once the kernel has released the former one. The note
/// records from then on that a take-over has begun.
fn recover(of: &Publication<'_>, number: u32, end: Instant) -> Result<(), ExportError> {
    let failed = |error| failed(path(number).display(), error);
    loop {
        control::owned(number, of.note.mark).map_err(failed)?;
        of.note_half(true)?;
        let Err(error) = control::start_recovery(number) else { return Ok(()) };
        // The command may still take effect.
        if error.kind() == io::ErrorKind::TimedOut {
            return Err(failed(error));
        }
        of.note_half(false)?;
        if Errno::from_io_error(&error) != Some(Errno::BUSY) || Instant::now() >= end {
            return Err(failed(error));
        }
        std::thread::sleep(STEP);
    }
}

/// Checks that a volume is not smaller than its device, whose size is `found`. A device in use
/// keeps its size when the origin has grown, because its users rely on the former size.
fn check_size(volume: &str, number: u32, found: Option<u64>, size: u64) -> Result<(), ExportError> {
    let device = path(number);
    let device = device.display();
    match found {
        Some(found) if found == size => return Ok(()),
        Some(found) if found < size => {
            tracing::warn!(volume, %device, "the device keeps its {found} bytes, although the volume has {size} by now: it gets them when it is not in use while the volume is stopped and started");
            return Ok(());
        }
        _ => {}
    }
    let message = format!(
        "{device} has {found:?} bytes instead of the {size} of '{volume}'; 'forebay stop --force {volume}' removes it",
    );
    Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
}

/// Returns the size of a block device in sectors.
fn sectors(device: &Path) -> Option<u64> {
    number(sysfs::of_disk(device).join("size"))
}

/// Waits until the kernel has noticed the end of the former server of a device.
fn wait_until_left(number: u32, mark: u64, end: Instant) -> io::Result<()> {
    loop {
        match control::owned(number, mark)?.state {
            state::QUIESCED | state::FAIL_IO => return Ok(()),
            _ if Instant::now() < end => std::thread::sleep(STEP),
            _ => return Err(Errno::BUSY.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_taken_over_unless_its_volume_lacks_a_part_of_it() {
        let check = |found, size| check_size("v", 0, found, size).is_ok();
        assert!(check(Some(4096), 4096));
        assert!(check(Some(4096), 8192), "the origin has grown");
        assert!(!check(Some(8192), 4096));
        assert!(!check(None, 4096), "it is not known");
    }
}
