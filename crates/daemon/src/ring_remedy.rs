//! Remedies where the system forbids io_uring.

/// The setting of the kernel that forbids io_uring; 0: to no process.
pub fn disabled() -> u64 {
    forebay_host::files::number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0)
}

/// Returns the remedy where no ring can be made and the kernel's setting is `disabled`.
pub fn remedy(disabled: u64) -> &'static str {
    match disabled {
        0 => {
            "it takes Linux 5.11 or later; in a container, a seccomp profile that allows io_uring_setup"
        }
        _ => "allow it: sysctl kernel.io_uring_disabled=0",
    }
}
