//! A device of any size: a function generates its unwritten pages of metadata, and all other
//! unwritten pages are zeroes. Written pages take memory unless they repeat the same eight bytes.
//! As with a disk, the lane gets to its other tasks before an operation ends.

use std::ops::Range;
use std::sync::Arc;

use super::{Content, PAGE, PagedDevice, repeat};

/// Pages of a chunk. The first write to a chunk allocates an entry for each of its pages.
const CHUNK: usize = 1024;

/// Generated content of unwritten pages.
pub(crate) trait Behind: Send + Sync {
    /// Makes a page of one that is all zeroes.
    fn make(&self, page: u64, into: &mut [u8]);
}

/// A page that may have been written.
#[derive(Clone)]
enum Page {
    Untouched,
    Repeated(u64),
    Kept(Arc<[u8]>),
}

/// Written pages, and the generator of all others; without a generator these are zeroes.
#[derive(Clone)]
pub(crate) struct Pages {
    chunks: Vec<Option<Box<[Page]>>>,
    behind: Option<Arc<dyn Behind>>,
}

impl Content for Pages {
    const AT_ONCE: bool = false;

    fn read(&self, page: usize, at: usize, into: &mut [u8]) {
        let written = self.chunks[page / CHUNK].as_ref().map(|chunk| &chunk[page % CHUNK]);
        match written {
            Some(Page::Kept(bytes)) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Some(Page::Repeated(pattern)) => repeat(*pattern, into),
            Some(Page::Untouched) | None => {
                let mut made = [0; PAGE];
                if let Some(behind) = &self.behind {
                    behind.make(page as u64, &mut made);
                }
                into.copy_from_slice(&made[at..at + into.len()]);
            }
        }
    }

    fn write(&mut self, page: usize, at: usize, data: &[u8]) {
        let mut whole = [0; PAGE];
        let bytes = if data.len() == PAGE {
            data
        } else {
            self.read(page, 0, &mut whole);
            whole[at..at + data.len()].copy_from_slice(data);
            &whole
        };
        let untouched = || vec![Page::Untouched; CHUNK].into();
        let chunk = self.chunks[page / CHUNK].get_or_insert_with(untouched);
        let pattern = bytes.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
        chunk[page % CHUNK] = match bytes[8..] == bytes[..bytes.len() - 8] {
            true => Page::Repeated(pattern),
            false => Page::Kept(bytes.into()),
        };
    }

    fn zero(&mut self, pages: Range<usize>) {
        let mut page = pages.start;
        while page < pages.end {
            let chunk = &mut self.chunks[page / CHUNK];
            let end = (page / CHUNK * CHUNK + CHUNK).min(pages.end);
            if page.is_multiple_of(CHUNK) && end - page == CHUNK && self.behind.is_none() {
                *chunk = None;
            } else if chunk.is_some() || self.behind.is_some() {
                (page..end).for_each(|page| self.write(page, 0, &[0; PAGE]));
            }
            page = end;
        }
    }
}

/// See the module.
pub(crate) type MadeDevice = PagedDevice<Pages>;

impl MadeDevice {
    /// A device of `size` bytes, a multiple of 4096, all zeroes.
    pub(crate) fn new(name: &str, size: u64) -> Arc<Self> {
        let chunks = vec![None; (size / PAGE as u64).div_ceil(CHUNK as u64) as usize];
        Self::of(name, size, Pages { chunks, behind: None })
    }

    /// A copy with a life of its own, in front of `behind`, or of the same as this one.
    pub(crate) fn fork(&self, behind: Option<Arc<dyn Behind>>) -> Arc<Self> {
        let mut pages = self.pages.read().clone();
        pages.behind = behind.or(pages.behind);
        Self::of(&self.name, self.size, pages)
    }
}
