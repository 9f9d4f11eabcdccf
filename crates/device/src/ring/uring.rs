//! The kernel's ring, with submissions of either size.

use std::io;

use io_uring::{CompletionQueue, IoUring, Parameters, Submitter, squeue};

/// Submissions per system call.
const SUBMISSIONS: u32 = 256;
/// Completions that the kernel can report before it has to hold some back.
pub(super) const COMPLETIONS: u32 = 4096;

/// One request to the kernel.
pub(super) enum Submission {
    /// 64 bytes.
    Narrow(squeue::Entry),
    /// A submission of 128 bytes, which only a wide ring accepts.
    Wide(squeue::Entry128),
}

impl Submission {
    pub(super) fn user_data(self, data: u64) -> Self {
        match self {
            Submission::Narrow(entry) => Submission::Narrow(entry.user_data(data)),
            Submission::Wide(entry) => Submission::Wide(entry.user_data(data)),
        }
    }
}

impl From<squeue::Entry> for Submission {
    fn from(entry: squeue::Entry) -> Self {
        Submission::Narrow(entry)
    }
}

impl From<squeue::Entry128> for Submission {
    fn from(entry: squeue::Entry128) -> Self {
        Submission::Wide(entry)
    }
}

/// See the module. A wide ring accepts narrow submissions too, each of which costs some additional
/// writes to memory.
pub(super) enum Uring {
    Narrow(IoUring<squeue::Entry>),
    Wide(IoUring<squeue::Entry128>),
}

impl Uring {
    pub(super) fn new(wide: bool) -> io::Result<Self> {
        Ok(match wide {
            true => Uring::Wide(build()?),
            false => Uring::Narrow(build()?),
        })
    }

    pub(super) fn is_wide(&self) -> bool {
        matches!(self, Uring::Wide(_))
    }

    pub(super) fn params(&self) -> &Parameters {
        match self {
            Uring::Narrow(ring) => ring.params(),
            Uring::Wide(ring) => ring.params(),
        }
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        match self {
            Uring::Narrow(ring) => ring.submitter(),
            Uring::Wide(ring) => ring.submitter(),
        }
    }

    pub(super) fn completion(&mut self) -> CompletionQueue<'_> {
        match self {
            Uring::Narrow(ring) => ring.completion(),
            Uring::Wide(ring) => ring.completion(),
        }
    }

    /// Returns the number of submissions that the kernel has not taken yet.
    pub(super) fn waiting(&mut self) -> usize {
        match self {
            Uring::Narrow(ring) => ring.submission().len(),
            Uring::Wide(ring) => ring.submission().len(),
        }
    }

    /// Returns whether the kernel must be entered.
    pub(super) fn is_due(&mut self) -> bool {
        fn due<E: squeue::EntryMarker>(queue: &squeue::SubmissionQueue<'_, E>) -> bool {
            !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        }
        match self {
            Uring::Narrow(ring) => due(&ring.submission()),
            Uring::Wide(ring) => due(&ring.submission()),
        }
    }

    /// Adds a request, after `first` if present. Returns whether there was room for both.
    ///
    /// # Safety
    /// The addresses in the requests stay valid, and their descriptors open, until the kernel has
    /// completed them.
    pub(super) unsafe fn push(&mut self, first: Option<squeue::Entry>, entry: Submission) -> bool {
        match (self, entry) {
            (Uring::Narrow(ring), Submission::Narrow(entry)) => match first {
                // SAFETY: as promised by the caller.
                None => unsafe { ring.submission().push(&entry) },
                // SAFETY: as above.
                Some(first) => unsafe { ring.submission().push_multiple(&[first, entry]) },
            },
            (Uring::Wide(ring), entry) => {
                let entry = match entry {
                    Submission::Narrow(entry) => entry.into(),
                    Submission::Wide(entry) => entry,
                };
                match first {
                    // SAFETY: as above.
                    None => unsafe { ring.submission().push(&entry) },
                    // SAFETY: as above.
                    Some(first) => unsafe {
                        ring.submission().push_multiple(&[first.into(), entry])
                    },
                }
            }
            (Uring::Narrow(_), Submission::Wide(_)) => {
                debug_assert!(false, "prepared only for wide rings");
                return true;
            }
        }
        .is_ok()
    }
}

/// Makes the best kind of ring that this kernel supports. With deferred task work, completions are
/// processed when the lane polls and do not interrupt it.
fn build<E: squeue::EntryMarker>() -> io::Result<IoUring<E>> {
    let base = || {
        let mut builder = IoUring::<E>::builder();
        builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS);
        builder
    };
    let mut best = base();
    best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut good = base();
    good.setup_coop_taskrun().setup_taskrun_flag();
    best.build(SUBMISSIONS)
        .or_else(|_| good.build(SUBMISSIONS))
        .or_else(|_| base().build(SUBMISSIONS))
}
