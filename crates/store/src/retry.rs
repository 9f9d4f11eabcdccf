//! Reads that are tried again before a place counts as unreadable, and that lose no more than the
//! pages that cannot be read.

use forebay_device::{DeviceError, DeviceErrorKind, IoBuf, Queue};
use forebay_format::PAGE;
use forebay_format::superblock::{COPY_A, COPY_B};

/// Attempts before a read has failed: cables, firmware and hypervisors fail one and do the next.
const ATTEMPTS: usize = 4;

/// Whether another attempt can end otherwise.
fn is_transient(error: &DeviceError) -> bool {
    error.kind == DeviceErrorKind::Io
}

/// Reads `len` bytes; an error is returned only if it stays.
pub(crate) async fn read(queue: &Queue, offset: u64, len: usize) -> Result<IoBuf, DeviceError> {
    let mut attempt = 1;
    loop {
        match queue.read(offset, IoBuf::for_overwrite(len)).await {
            Err(error) if is_transient(&error) && attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

/// What could be read of some pages.
pub(crate) struct Pages {
    /// The pages; those that could not be read are zero.
    pub(crate) bytes: IoBuf,
    /// Whether each page could be read.
    pub(crate) readable: Vec<bool>,
}

impl Pages {
    pub(crate) fn all_readable(&self) -> bool {
        self.readable.iter().all(|readable| *readable)
    }
}

/// Reads whole pages, one by one where they cannot be read together.
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
