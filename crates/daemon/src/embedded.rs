//! A daemon within another program, without sockets, signals and its own process. Operations, state
//! and data path are those of every daemon, so that a simulator runs the code that operators run.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::ApiError;
use forebay_engine::FrontEnd;
use forebay_lane::MemoryBudget;

use crate::api;
use crate::hand_over::Items;
use crate::host::{self, DaemonRecords, DataPathParts, Opener};
use crate::http::{HttpRequest, ResponseBody};
use crate::notify::{ServiceManager, ShutdownProgress};
use crate::raw_names::RawNames;
use crate::signals::{EndRequest, StopRequest};
use crate::state::State;
use crate::volumes::{Programs, Volumes};

/// The parts of a daemon.
pub struct Environment {
    /// The state directory.
    pub state_dir: PathBuf,
    /// The lock of the state directory, if the previous program has handed it over.
    pub state_lock: Option<OwnedFd>,
    /// Number of previous programs.
    pub hand_overs: u64,
    /// Front ends that have claimed their addresses.
    pub front_ends: Vec<Arc<dyn FrontEnd>>,
    /// Opens devices.
    pub opener: Arc<dyn Opener>,
    /// Number of lanes, at least 1.
    pub lanes: u32,
    /// Memory limit in bytes.
    pub memory_limit: u64,
}

/// An answer of the admin API.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body; null if it is not JSON.
    pub body: serde_json::Value,
}

/// A running daemon. Dropping it is not an orderly end: see [`Embedded::shut_down`].
pub struct Embedded {
    volumes: Arc<Volumes>,
    stop: Arc<StopRequest>,
}

impl Embedded {
    /// Opens the state, and starts the lanes. No volume is served yet.
    ///
    /// # Errors
    /// The same errors as at the start of any daemon.
    pub fn open(environment: Environment) -> Result<Self, ApiError> {
        let Environment { front_ends, opener, lanes, .. } = environment;
        let state = State::go_on(&environment.state_dir, environment.state_lock)?;
        let memory = Arc::new(MemoryBudget::new(environment.memory_limit));
        let ending = Arc::new(ShutdownProgress::new(&ServiceManager::default()));
        let host = host::open(DataPathParts {
            lanes,
            front_ends: &front_ends,
            raw: &[],
            opener,
            records: DaemonRecords::open(&state)?,
            memory: &memory,
            ending: &ending,
        })?;
        let stop = Arc::<StopRequest>::default();
        let programs = Programs::new(environment.hand_overs, &stop, RawNames::default());
        Ok(Embedded { volumes: Volumes::new(host, state, front_ends, programs), stop })
    }

    /// Starts the volumes that should be served, and watches them. Returns when each one is served,
    /// has failed, or waits for a device.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn restore(&self) -> Result<(), ApiError> {
        self.volumes.watch(&self.stop)?;
        self.volumes.restore(&self.stop, Duration::ZERO);
        if !self.stop.is_asked() {
            self.volumes.note_ready();
        }
        Ok(())
    }

    /// Answers a request of the admin API, such as `POST` to `/v1/volumes/v/stop`. May wait.
    pub fn ask(&self, method: &str, target: &str, body: &serde_json::Value) -> ApiResponse {
        let request = HttpRequest {
            method: method.to_owned(),
            target: target.to_owned(),
            accept: String::new(),
            last_event: None,
            body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        };
        let answer = api::answer(&self.volumes, &request);
        let body = match answer.body {
            ResponseBody::Whole(text) => serde_json::from_slice(&text).unwrap_or_default(),
            ResponseBody::Events(_) | ResponseBody::Trace(_) => serde_json::Value::Null,
        };
        ApiResponse { status: answer.status, body }
    }

    /// Stores the positions of the caches; every daemon does this every few seconds.
    pub fn note_positions(&self) {
        self.volumes.note_positions();
    }

    /// Ends as on SIGTERM.
    ///
    /// # Errors
    /// Something did not stop cleanly.
    pub fn shut_down(&self) -> Result<(), ApiError> {
        self.stop.ask(EndRequest::Stop);
        self.volumes.shut_down()
    }

    /// Ends for the next program, which takes over the result and the lock of the state directory.
    ///
    /// # Errors
    /// A hand-over is refused, and everything is served as before.
    pub fn hand_over(&self) -> Result<(Option<Items>, OwnedFd), ApiError> {
        self.volumes.begin_hand_over("the next program".into(), || Ok(()))?;
        let (items, closed) = self.volumes.hand_over();
        if let Err(error) = closed {
            tracing::warn!("the hand-over: {error}");
        }
        let lock = self.volumes.state_lock();
        Ok((items, lock.map_err(|error| ApiError::failed(error.to_string()))?))
    }
}
