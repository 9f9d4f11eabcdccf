//! Shared parts of the tests of the binary: running it, and daemons that end with the test.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]
#![allow(
    clippy::disallowed_methods,
    reason = "these tests are about processes, outside the data path"
)]

use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed with all it holds.
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new directory; `what` makes it recognisable.
    pub fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-{what}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        TempDir(path)
    }

    /// The path of something in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Everything in it, below it too: paths with content, in order.
    pub fn snapshot(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut open = vec![self.0.clone()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).expect("readable") {
                let path = entry.expect("readable").path();
                let kind = std::fs::symlink_metadata(&path).expect("there").file_type();
                if kind.is_dir() {
                    open.push(path.clone());
                }
                let content = if kind.is_file() {
                    std::fs::read(&path).expect("readable")
                } else {
                    Vec::new()
                };
                found.push((path, content));
            }
        }
        found.sort();
        found
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The binary, with an environment that is the same everywhere.
pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .env_clear()
        .env("COLUMNS", "100")
        .env("PATH", "/usr/bin:/bin")
        .env("XDG_RUNTIME_DIR", "/nonexistent")
        .stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    forebay().args(args).output().expect("it runs")
}

/// Returns the exit code and the text on stderr.
pub fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A daemon in a directory of its own; killed at the latest when this is dropped.
pub struct Daemon {
    child: Option<Child>,
    socket: PathBuf,
    told: UnixDatagram,
}

impl Daemon {
    /// Starts a daemon and waits until it says that it is ready.
    pub fn start(dir: &TempDir) -> Self {
        let notify = dir.at("notify");
        let _ = std::fs::remove_file(&notify);
        let told = UnixDatagram::bind(&notify).expect("a free name");
        let socket = dir.at("admin.sock");
        let child = forebay()
            .arg("--socket")
            .arg(&socket)
            .args(["daemon", "--lanes", "1", "--log", "error", "--state-dir"])
            .arg(dir.at("state"))
            .env("NOTIFY_SOCKET", &notify)
            .spawn()
            .expect("it runs");
        let mut daemon = Daemon { child: Some(child), socket, told };
        daemon.wait_for("READY=1");
        daemon
    }

    /// Waits until the daemon has told the service manager so.
    pub fn wait_for(&mut self, wanted: &str) {
        let mut message = [0; 512];
        let told = &self.told;
        told.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("a timeout");
        loop {
            if let Ok(len) = told.recv(&mut message) {
                if String::from_utf8_lossy(&message[..len]).lines().any(|line| line == wanted) {
                    return;
                }
            } else if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait().expect("a child")
            {
                panic!("the daemon ended before it said {wanted}: {status}");
            }
        }
    }

    /// Path of its admin socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs a verb against it.
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        forebay().arg("--socket").arg(&self.socket).args(args).output().expect("it runs")
    }

    /// Sends a signal and waits for the end.
    pub fn signal(mut self, name: &str) -> ExitStatus {
        let mut child = self.child.take().expect("still there");
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(sent.expect("there is a kill").success());
        let status = child.wait().expect("a child");
        if status.success() {
            self.wait_for("STOPPING=1");
        }
        status
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
