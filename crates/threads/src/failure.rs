//! Failures of a simulation, apart from the result.

use std::fmt;
use std::panic::Location;

/// The position at which a thread of a simulation waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitPoint {
    /// The thread's name.
    pub thread: String,
    /// The kind of the wait.
    pub what: &'static str,
    /// The source position of the call into this crate.
    pub at: &'static Location<'static>,
}

impl fmt::Display for WaitPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' waits for {} at {}", self.thread, self.what, self.at)
    }
}

/// Why a run is a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A thread panicked, and the panic was not caught.
    Panic {
        /// The thread's name.
        thread: String,
        /// The message of the panic.
        message: String,
    },
    /// No thread can continue.
    Deadlock(Vec<WaitPoint>),
    /// The maximum number of steps, or the maximum time, of the [`Plan`](crate::Plan) was exceeded.
    Endless(Vec<WaitPoint>),
    /// These threads did not end after the run had ended or crashed: they wait for each other, or
    /// loop.
    Left(Vec<WaitPoint>),
    /// A thread waits for something that is not simulated. It is abandoned, with all other threads.
    Stuck(WaitPoint),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (title, waiting) = match self {
            Failure::Panic { thread, message } => {
                return write!(f, "'{thread}' panicked: {message}");
            }
            Failure::Stuck(waiting) => return write!(f, "stuck: {waiting}"),
            Failure::Deadlock(waiting) => ("deadlock", waiting),
            Failure::Endless(waiting) => ("no end", waiting),
            Failure::Left(waiting) => ("left behind", waiting),
        };
        write!(f, "{title}:")?;
        waiting.iter().try_for_each(|waiting| write!(f, "\n  {waiting}"))
    }
}
