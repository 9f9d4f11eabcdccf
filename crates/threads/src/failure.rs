//! Failures of a simulation, apart from the result.

use std::fmt;
use std::panic::Location;

/// The place at which a thread of a simulation waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitPoint {
    /// The thread's name.
    pub thread: String,
    /// The kind of its wait.
    pub what: &'static str,
    /// The place of its call into this crate.
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
    /// A thread panicked, and nothing caught it.
    Panic {
        /// The thread's name.
        thread: String,
        /// The message of the panic.
        message: String,
    },
    /// No thread can continue.
    Deadlock(Vec<WaitPoint>),
    /// The steps or the time of the [`Plan`](crate::Plan) are used up.
    Endless(Vec<WaitPoint>),
    /// These threads did not end after the end of the run or a crash: they wait for each other, or
    /// loop.
    Left(Vec<WaitPoint>),
    /// A thread waits for something that is not simulated. It is left behind, with all others.
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
