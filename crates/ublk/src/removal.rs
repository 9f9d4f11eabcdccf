//! Removes devices, and everything that leads to them.

use std::fs;
use std::sync::mpsc::RecvTimeoutError;

use forebay_engine::ExportError;
use forebay_export::errors::{busy, failed};
use forebay_export::sync::sync;
use forebay_export::{Users, link};
use rustix::io::Errno;

use crate::board::Post;
use crate::control;
use crate::device::{Device, LANES, Shop, find};
use crate::helper::{Step, Task, path};
use crate::wire::state;

impl Shop {
    /// Has the lanes answer everything with errors.
    pub(crate) fn fail(&self, volume: &str) {
        self.board.post_to_all(|| Post::Fail(volume.to_owned()));
    }

    /// Removes a device. With `force` its users get errors from now on.
    ///
    /// # Errors
    /// [`forebay_engine::ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    pub(crate) fn end(&self, device: &Device, force: bool) -> Result<(), ExportError> {
        let (volume, number, mark) = (&device.volume, device.info.number, device.info.mark);
        let first = |users: &Users| {
            if force {
                sync(users);
                self.fail(volume);
            }
        };
        let cut = cut(volume, (number, mark), force, first)?;
        if device.ended.lock().recv_timeout(LANES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(volume, "its device is removed, but requests are still in flight");
        }
        self.forget(volume, (number, mark), cut);
        Ok(())
    }

    /// Removes the device of a volume that a former daemon has left, if there is one.
    ///
    /// # Errors
    /// As [`Shop::end`].
    pub(crate) fn remove_left(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let Some(note) = self.notes.read(volume) else { return Ok(()) };
        match find(note.mark) {
            Some(found) => {
                let cut = cut(volume, (found.number, note.mark), force, |_| ())?;
                self.forget(volume, (found.number, note.mark), cut);
            }
            None => self.notes.remove(volume),
        }
        Ok(())
    }

    /// Removes all traces of a device. It is deleted too if it is `cut`: without a block device. As
    /// long as the kernel has it, there is a note that leads to it.
    pub(crate) fn forget(&self, volume: &str, (number, mark): (u32, u64), cut: bool) {
        self.begun.lock().remove(volume);
        link::remove_of(volume, &path(number));
        // Another volume may have the number by now.
        if fs::read_link(self.name_of(number)).is_ok_and(|named| named == *volume) {
            let _ = fs::remove_file(self.name_of(number));
        }
        // Only the last one succeeds.
        let _ = fs::remove_dir(&self.names);
        // Deleting a device that the kernel cannot remove would keep it from adding others.
        if cut && deleted(volume, number, mark) {
            self.notes.remove(volume);
        } else {
            self.notes.set_aside(volume);
        }
    }

    /// Deletes the devices of a volume that could not be removed earlier, as far as the kernel has
    /// released them. With `force`, asks the kernel once more to remove them.
    pub(crate) fn sweep(&self, volume: &str, force: bool) {
        for mark in self.notes.aside(volume) {
            let Some(found) = find(mark) else {
                self.notes.remove_aside(volume, mark);
                continue;
            };
            let number = found.number;
            let cut = || Task::new(Step::Cut, number, mark).run().is_ok();
            if (found.state == state::DEAD || (force && cut())) && deleted(volume, number, mark) {
                self.notes.remove_aside(volume, mark);
            } else {
                tracing::warn!(volume, device = %path(number).display(), "the kernel has not removed this device of earlier yet");
            }
        }
    }
}

/// Deletes a device without a block device. Returns whether it is gone.
fn deleted(volume: &str, number: u32, mark: u64) -> bool {
    match Task::new(Step::Delete, number, mark).run() {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::NODEV) => {
            tracing::warn!(volume, number, %error, "its ublk device cannot be deleted");
            false
        }
        _ => true,
    }
}

/// Removes a block device. `first` is called with its users before they are cut off. Returns
/// whether it is gone; it always is without `force`.
fn cut(
    volume: &str,
    (number, mark): (u32, u64),
    force: bool,
    first: impl FnOnce(&Users),
) -> Result<bool, ExportError> {
    let device = path(number);
    // The number may be another program's by now, and so are its users.
    let owned = control::owned(number, mark);
    let is_lost = owned.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NODEV));
    let users = match (is_lost, force) {
        (true, _) => Users::default(),
        (false, true) => Users::of(&device, None),
        (false, false) => Users::remaining(&device, None),
    };
    if !users.is_empty() && !force {
        return Err(busy(volume, &device, &users.to_string()));
    }
    if !users.is_empty() {
        tracing::warn!(volume, device = %device.display(), "the device is removed although it is {users}: they get I/O errors");
    }
    first(&users);
    let step = if force { Step::Cut } else { Step::Stop };
    match Task::new(step, number, mark).run() {
        Err(error) if !force && Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            let elsewhere = "mounted or held where the daemon cannot see it";
            Err(busy(volume, &device, elsewhere))
        }
        Err(error) if !force && Errno::from_io_error(&error) != Some(Errno::NODEV) => {
            Err(failed(device.display(), error))
        }
        Err(error) => {
            let gone = Errno::from_io_error(&error) == Some(Errno::NODEV);
            if !gone {
                tracing::warn!(volume, device = %device.display(), %error, "the device cannot be removed");
            }
            Ok(gone)
        }
        Ok(()) => Ok(true),
    }
}
