//! The parts of a bug report, each as a text with a name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, api};
use forebay_offline::dump;
use serde_json::Value;

use super::redact::Redactor;
use crate::cli::doctor;
use crate::client::{DaemonClient, parse};
use crate::output::json;
use crate::paths;
use forebay_daemon::devices::{DeviceName, NO_CACHE};
use forebay_daemon::{peek_state, read_events};

/// Time limit for one part: a device or a program may hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limit of the bytes that are read from a file, and kept of a program's output.
const MAX_TEXT: usize = 4 << 20;

/// Most lines of the journal.
const JOURNAL_LINES: &str = "2000";

/// Properties of a unit that show its state, and nothing of its environment.
const UNIT: &str = "Id,LoadState,ActiveState,SubState,Result,NRestarts,ExecMainPID,ExecMainStatus,\
    ExecMainStartTimestamp,ExecMainExitTimestamp,MemoryCurrent,MemoryHigh,MemoryMax,TasksCurrent,UnitFileState,\
    WatchdogUSec,FileDescriptorStoreMax,NFileDescriptorStore,DropInPaths";

/// The collected texts.
#[derive(Default)]
pub(super) struct Collection {
    /// Names and texts, not redacted yet.
    pub(super) texts: Vec<(String, String)>,
    /// Why something is missing.
    pub(super) missing: Vec<String>,
    /// Why the daemon does not answer.
    pub(super) down: Option<String>,
}

impl Collection {
    fn add<E: std::fmt::Display>(&mut self, name: impl Into<String>, text: Result<String, E>) {
        let name = name.into();
        match text {
            Ok(text) => self.texts.push((name, text)),
            Err(error) => self.missing.push(format!("{name}: {error}")),
        }
    }

    fn add_program(&mut self, name: &str, program: &str, arguments: &[&str]) {
        self.add(name, output(program, arguments));
    }
}

/// Collects everything: the answers of the daemon, or, if it does not answer, the files of its
/// state directory.
pub(super) fn everything(
    client: &DaemonClient,
    state_dir: Option<PathBuf>,
    redactor: &mut Redactor,
) -> Result<Collection, ApiError> {
    let mut all = Collection::default();
    for file in ["/proc/sys/kernel/hostname", "/etc/hostname", "/proc/sys/kernel/domainname"] {
        let name = fs::read_to_string(file).unwrap_or_default();
        // The kernel reports this name if there is none.
        if name.trim() != "(none)" {
            redactor.host(name.trim());
        }
    }
    all.add("version.txt", Ok::<_, ApiError>(format!("forebay {}\n", env!("CARGO_PKG_VERSION"))));
    all.add("doctor.json", json::text(&doctor::findings(client)));
    host(&mut all);
    let daemon = client.silently(PATIENCE).get(&api::DAEMON, &());
    let state_dir = match (&daemon, state_dir) {
        (_, Some(dir)) => dir,
        (Ok(daemon), None) => PathBuf::from(&daemon.state_dir),
        (Err(_), None) => paths::state_dir(None)?,
    };
    match daemon {
        Ok(daemon) => {
            let line = fs::read(format!("/proc/{}/cmdline", daemon.pid)).map(|bytes| {
                String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ") + "\n"
            });
            all.add("command-line.txt", line);
            all.add("daemon.json", json::text(&daemon));
            from_daemon(&mut all, client);
        }
        Err(error) => {
            let kept = read_events(&state_dir);
            let lines = kept.into_iter().map(|(line, _)| line + "\n").collect::<String>();
            all.add("events.jsonl", Ok::<_, ApiError>(lines));
            all.down = Some(error.message);
        }
    }
    files(&mut all, &state_dir);
    devices(&mut all, &state_dir);
    Ok(all)
}

/// Adds facts about the host. Command lines of the kernel and serial numbers are left out.
fn host(all: &mut Collection) {
    for (name, file) in [
        ("host/kernel.txt", "/proc/sys/kernel/osrelease"),
        ("host/os-release.txt", "/etc/os-release"),
        ("host/meminfo.txt", "/proc/meminfo"),
        ("host/pressure.txt", "/proc/pressure/memory"),
    ] {
        all.add(name, read(Path::new(file)));
    }
    all.add_program("host/lscpu.txt", "lscpu", &[]);
    if Path::new("/run/systemd/system").exists() {
        let units = ["show", "forebay.service", "forebay-apply.service", "-p", UNIT];
        all.add_program("host/systemd.txt", "systemctl", &units);
        let journal = ["-u", "forebay.service", "-u", "forebay-apply.service", "-n", JOURNAL_LINES];
        let how = ["-o", "short-iso", "--no-hostname", "--no-pager", "-q"];
        all.add_program("journal.txt", "journalctl", &[&journal[..], &how].concat());
    } else {
        all.missing.push("host/systemd.txt, journal.txt: systemd does not run here".to_owned());
    }
}

fn from_daemon(all: &mut Collection, client: &DaemonClient) {
    let client = &client.silently(PATIENCE);
    // Raw, so that fields of a later daemon are included.
    let as_it_is = |path: &str| parse::<Value>(&client.get_raw(path)?);
    all.add("memory.json", client.get(&api::MEMORY, &()).and_then(|it| json::text(&it)));
    all.add("operations.json", as_it_is(&api::OPERATIONS.path(&())).and_then(|it| json::text(&it)));
    all.add(
        "metrics.txt",
        client.get_raw(&api::METRICS.path(&())).map(|it| String::from_utf8_lossy(&it).into_owned()),
    );
    let log = client.get(&api::LOG, &());
    all.add("log.txt", log.map(|log| log.lines.join("\n") + "\n"));
    let list = as_it_is(&api::EVENTS.path(&()));
    all.add(
        "events.jsonl",
        list.map(|list| {
            let events = list["events"].as_array().cloned().unwrap_or_default();
            events.iter().map(|event| format!("{event}\n")).collect::<String>()
        }),
    );
    match client.get(&api::LIST, &()) {
        Err(error) => all.missing.push(format!("volumes: {error}")),
        Ok(list) => {
            for volume in list.volumes {
                let name = &volume.name;
                for (path, file) in [
                    (api::SHOW.path(name), ""),
                    (api::LOST.path(name), ".lost"),
                    (api::PINS.path(name), ".pins"),
                ] {
                    let report = as_it_is(&path).and_then(|report| json::text(&report));
                    // A volume that is not served has no pins.
                    if report.is_ok() || file.is_empty() {
                        all.add(format!("volumes/{}{file}.json", volume.name), report);
                    }
                }
            }
        }
    }
}

/// Adds the files of the daemon and the declaration of its volumes. They contain no data of users.
fn files(all: &mut Collection, state_dir: &Path) {
    all.add("state/state.json", read(&state_dir.join("state.json")));
    let notes = fs::read_dir(state_dir.join("dirty")).into_iter().flatten().flatten();
    let mut notes: Vec<PathBuf> = notes.map(|entry| entry.path()).collect();
    notes.sort();
    for note in notes.iter().filter(|path| path.extension().is_some_and(|it| it == "json")) {
        let name = note.file_name().unwrap_or_default().to_string_lossy();
        all.add(format!("state/dirty/{name}"), read(note));
    }
    if let Ok(config) = paths::config_file(None)
        && config.exists()
    {
        all.add("forebay.toml", read(&config));
    }
}

/// Adds the system's facts about the devices of all volumes, and the superblocks of cache devices.
fn devices(all: &mut Collection, state_dir: &Path) {
    let volumes = match peek_state(state_dir) {
        Ok(volumes) => volumes,
        Err(error) => return all.missing.push(format!("devices: {error}")),
    };
    let mut lines = String::new();
    let (mut seen, mut caches) = (Vec::new(), 0);
    for volume in volumes {
        for (is_cache, name) in [(true, volume.cache), (false, volume.origin)] {
            let parsed = DeviceName::parse("device", &name).ok();
            let path = parsed.and_then(|name| name.path).filter(|_| name != NO_CACHE);
            let Some(path) = path.filter(|_| !seen.contains(&name)) else { continue };
            lines.push_str(&format!("{}:\n{}\n", name, describe(&path)));
            if is_cache {
                caches += 1;
                let own = name.clone();
                all.add(format!("caches/{caches}.jsonl"), within(move || dump::roots_of(&own)));
            }
            seen.push(name);
        }
    }
    all.add("devices.txt", Ok::<_, ApiError>(lines));
}

/// Describes a file or block device.
fn describe(path: &Path) -> String {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    match fs::metadata(path) {
        Err(error) => format!("  {error}"),
        Ok(found) if found.file_type().is_block_device() => {
            let columns = "NAME,TYPE,SIZE,RO,ROTA,RM,LOG-SEC,PHY-SEC,MIN-IO,OPT-IO,DISC-GRAN,DISC-MAX,SCHED,RQ-SIZE,MODEL,TRAN,FSTYPE";
            let path = path.to_string_lossy();
            output("lsblk", &["--bytes", "--inverse", "-o", columns, &path])
                .unwrap_or_else(|error| format!("  {error}"))
        }
        Ok(found) => {
            let on = rustix::fs::statfs(path).map_or(0, |it| it.f_type);
            let allocated = found.blocks().saturating_mul(512);
            format!(
                "  a file of {} bytes, {allocated} allocated, on a file system of the type {on:#x}\n",
                found.size()
            )
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_TEXT as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs something that may hang, on a thread of its own.
fn within<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || tell.send(run()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(ApiError::failed("it does not answer")))
}

/// Returns the output of a program.
fn output(program: &str, arguments: &[&str]) -> Result<String, ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::failed(format!("{program}: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(&error))?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut out) = out {
            let _ = std::io::Read::read_to_end(&mut out, &mut bytes);
        }
        bytes
    });
    let end = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= end {
            let _ = child.kill();
            return Err(failed(&"it does not end"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut bytes = reader.join().unwrap_or_default();
    bytes.truncate(MAX_TEXT);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
