//! Ctrl-C while something runs that has to be cleaned up: what runs is told, ends, and takes what
//! it has made with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{LabError, LabResult};

/// How often a waiting thread looks.
pub(crate) const STEP: Duration = Duration::from_millis(20);

/// Whether somebody wants this process to end. From [`Interrupt::listen`] on, signals do no more
/// than to be remembered here.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP over.
    pub(crate) fn listen() -> LabResult<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Interrupt(flag))
    }

    /// Fails once somebody wants this to end.
    ///
    /// # Errors
    /// `Interrupted`.
    pub(crate) fn check(&self) -> LabResult<()> {
        if self.0.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
    }
}
