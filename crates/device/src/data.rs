//! Data to write.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::IoBuf;
use crate::log_buffer::LogBuffer;

/// Data to write: an owned buffer, or published bytes of a log buffer.
#[derive(Debug)]
pub enum IoData {
    /// A buffer that is returned with the completion.
    Owned(IoBuf),
    /// A range of a log buffer; every byte must have been published.
    Log(Arc<LogBuffer>, Range<usize>),
}

impl IoData {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            IoData::Owned(buf) => buf.len(),
            IoData::Log(_, range) => range.len(),
        }
    }
}
