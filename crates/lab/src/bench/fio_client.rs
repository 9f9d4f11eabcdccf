//! fio as the client of a benchmark: a sample is one run of fio, which opens the device or
//! connection anew.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::bench::measure::Sample;
use crate::error::{LabResult, other};
use crate::fio;
use crate::rig::BLOCK;

/// Requests of [`BLOCK`] bytes.
pub(crate) struct Load {
    pub(crate) write: bool,
    /// One after the other, and not at random.
    pub(crate) sequential: bool,
    pub(crate) depth: usize,
    /// Bytes from the beginning that they reach.
    pub(crate) span: u64,
    pub(crate) time: Duration,
}

/// Sends a load to an NBD server.
///
/// # Errors
/// fio is missing, lacks the nbd engine, or fails.
pub(crate) fn nbd(socket: &Path, export: &str, load: &Load) -> LabResult<Sample> {
    let uri = format!("--uri=nbd+unix:///{export}?socket={}", socket.display());
    run(&["--ioengine=nbd", &uri], load)
}

/// Sends a load to a block device, past the page cache.
///
/// # Errors
/// fio is missing, or fails.
pub(crate) fn device(path: &Path, load: &Load) -> LabResult<Sample> {
    // fio takes a colon for the end of a name.
    let path = path.display().to_string().replace(':', "\\:");
    run(&["--ioengine=libaio", "--direct=1", &format!("--filename={path}")], load)
}

fn run(target: &[&str], load: &Load) -> LabResult<Sample> {
    let direction = if load.write { "write" } else { "read" };
    let order = if load.sequential { "" } else { "rand" };
    let mut command = Command::new("fio");
    command.args(["--name=lab", "--time_based", "--norandommap"]).args(target);
    if !load.write {
        command.arg("--readonly");
    }
    let output = command
        .args(["--output-format=json", "--randrepeat=0"])
        .arg(format!("--rw={order}{direction}"))
        .arg(format!("--bs={BLOCK}"))
        .arg(format!("--size={}", load.span))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--runtime={}ms", load.time.as_millis()))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            other(format!("fio cannot be started ({error}); install it with 'apt-get install fio'"))
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    sample(&text, direction).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        other(format!("fio with {} ended with {}: {said}", target.join(" "), output.status))
    })
}

/// Reads fio's result. `None`: it failed, or did nothing.
fn sample(text: &str, direction: &str) -> Option<Sample> {
    let jobs = fio::jobs(text)?;
    let [job] = jobs.as_slice() else { return None };
    let number = |path: &str| job.pointer(path).and_then(Value::as_f64);
    let operations = job.pointer(&format!("/{direction}/total_ios"))?.as_u64()?;
    let wall = Duration::from_secs_f64(number(&format!("/{direction}/runtime"))? / 1e3);
    let busy = (number("/usr_cpu")? + number("/sys_cpu")?) / 100.0;
    let failed = job.get("error")?.as_i64()? != 0 || operations == 0;
    (!failed).then(|| Sample { operations, wall, cpu: wall.mul_f64(busy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_and_a_failed_one_refused() {
        let report = |error: u32, ios: u32| {
            format!(
                r#"fio: connected to NBD server
                {{"jobs":[{{"error":{error},"usr_cpu":10.0,"sys_cpu":15.0,
                  "read":{{"total_ios":{ios},"runtime":2000}},"write":{{"total_ios":0,"runtime":0}}}}]}}"#
            )
        };
        let read = sample(&report(0, 50), "read").expect("a good one");
        assert_eq!((read.operations, read.wall.as_millis(), read.cpu.as_millis()), (50, 2000, 500));
        assert!(sample(&report(5, 50), "read").is_none());
        assert!(sample(&report(0, 50), "write").is_none());
        assert!(sample("fio: nothing", "read").is_none());
    }
}
