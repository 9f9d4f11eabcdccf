//! Reads and writes through a front, one request at a time, for the check of the data.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};

use rustix::fs::OFlags;

use super::system::Front;
use crate::bench::nbd::client::Client;
use crate::error::{LabResult, other};

/// Bytes of one NBD request.
const NBD_PIECE: usize = 256 << 10;

/// A front. Offsets and lengths are multiples of 4096, buffers are aligned.
pub(crate) trait Blocks {
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> LabResult<()>;
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> LabResult<()>;
    /// Makes all earlier writes durable.
    fn flush(&mut self) -> LabResult<()>;
}

/// Opens a front.
pub(crate) fn open(front: &Front) -> LabResult<Box<dyn Blocks>> {
    match front {
        Front::Block(path) => {
            let failed = |error| other(format!("{}: {error}", path.display()));
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            // Direct I/O reads the device, not the page cache. Some filesystems lack it for the
            // files that stand in for a device in a test.
            if std::fs::metadata(path).map_err(failed)?.file_type().is_block_device() {
                options.custom_flags(OFlags::DIRECT.bits().cast_signed());
            }
            Ok(Box::new(options.open(path).map_err(failed)?))
        }
        Front::Nbd { socket, export } => Ok(Box::new(Client::connect(socket, export)?)),
    }
}

impl Blocks for File {
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> LabResult<()> {
        self.read_exact_at(bytes, offset)
            .map_err(|error| other(format!("reading at {offset}: {error}")))
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> LabResult<()> {
        self.write_all_at(bytes, offset)
            .map_err(|error| other(format!("writing at {offset}: {error}")))
    }

    fn flush(&mut self) -> LabResult<()> {
        self.sync_all().map_err(|error| other(format!("flushing: {error}")))
    }
}

impl Blocks for Client {
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> LabResult<()> {
        for (piece, offset) in bytes.chunks_mut(NBD_PIECE).zip((offset..).step_by(NBD_PIECE)) {
            self.read_one(offset, piece)?;
        }
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> LabResult<()> {
        for (piece, offset) in bytes.chunks(NBD_PIECE).zip((offset..).step_by(NBD_PIECE)) {
            self.write_one(offset, piece)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> LabResult<()> {
        self.flush_all()
    }
}
