//! Numbers and names of processes.

use crate::files::{numbers, text};

/// Returns all processes, in the order of their numbers.
pub fn pids() -> Vec<u32> {
    numbers("/proc", "")
}

/// Returns a process as text for operators, like `1234 (fio)`.
pub fn with_name(pid: u32) -> String {
    format!("{pid} ({})", name(pid).unwrap_or_default())
}

/// Returns the name of a process; `None` if it has ended.
pub fn name(pid: u32) -> Option<String> {
    text(format!("/proc/{pid}/comm"))
}
