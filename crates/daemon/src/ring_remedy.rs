//! Remedies where the system forbids io_uring.

/// Returns the kernel setting that forbids io_uring; 0: it is allowed to all processes.
pub fn disabled() -> u64 {
    forebay_host::files::number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0)
}

/// Returns the remedy if no ring can be made and the kernel setting is `disabled`.
pub fn remedy(disabled: u64) -> &'static str {
    match disabled {
        0 => {
            "it takes Linux 5.11 or later; in a container, a seccomp profile that allows io_uring_setup"
        }
        _ => "allow it: sysctl kernel.io_uring_disabled=0",
    }
}
