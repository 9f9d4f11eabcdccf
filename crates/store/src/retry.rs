//! Reads that are retried before a page counts as unreadable, and that lose no more than the
//! unreadable pages.

use forebay_device::{DeviceError, DeviceErrorKind, IoBuf, Queue};
use forebay_format::PAGE;
use forebay_format::superblock::{COPY_A, COPY_B};

/// Attempts before a read fails: faults of cables, firmware and hypervisors are often transient.
const ATTEMPTS: usize = 4;

/// Returns whether another attempt may succeed.
fn is_transient(error: &DeviceError) -> bool {
    matches!(error.kind, DeviceErrorKind::Io | DeviceErrorKind::Unreachable)
}

/// Reads `len` bytes, with retries; fails if the last attempt does.
pub(crate) async fn read(queue: &Queue, offset: u64, len: usize) -> Result<IoBuf, DeviceError> {
    let mut attempt = 1;
    loop {
        match queue.read(offset, IoBuf::for_overwrite(len)).await {
            Err(error) if is_transient(&error) && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

/// The readable pages of a range.
pub(crate) struct Pages {
    /// The pages; unreadable ones are zero.
    pub(crate) bytes: IoBuf,
    /// Whether each page was readable.
    pub(crate) readable: Vec<bool>,
}

impl Pages {
    pub(crate) fn all_readable(&self) -> bool {
        self.readable.iter().all(|readable| *readable)
    }
}

/// Reads whole pages, one by one if they cannot be read together.
///
/// # Errors
/// The device has failed: not even a superblock can be read.
pub(crate) async fn read_pages(
    queue: &Queue,
    offset: u64,
    len: usize,
) -> Result<Pages, DeviceError> {
    let pages = len.div_ceil(PAGE);
    let failure = match read(queue, offset, len).await {
        Ok(bytes) => return Ok(Pages { bytes, readable: vec![true; pages] }),
        Err(error) => error,
    };
    if !is_transient(&failure) {
        return Err(failure);
    }
    let (mut bytes, mut readable) = (IoBuf::zeroed(len), vec![true; pages]);
    for (number, into) in bytes.chunks_mut(PAGE).enumerate() {
        match read(queue, offset + (number * PAGE) as u64, into.len()).await {
            Ok(page) => into.copy_from_slice(&page),
            Err(error) if is_transient(&error) => readable[number] = false,
            Err(error) => return Err(error),
        }
    }
    let all = readable.iter().all(|readable| *readable);
    if !all && read(queue, COPY_A, PAGE).await.is_err() && read(queue, COPY_B, PAGE).await.is_err()
    {
        return Err(failure);
    }
    Ok(Pages { bytes, readable })
}
