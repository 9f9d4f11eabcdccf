//! Runs a job on a cache device that no daemon uses, on a lane of this process.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::{Access, Device, DeviceError, DeviceSpec, OpenErrorKind, Queue};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_store::StoreError;

/// Interval at which the waiting thread wakes.
const STEP: Duration = Duration::from_millis(100);

/// Opens the device for reading, and runs `job` on a lane. Meanwhile calls `waiting` repeatedly.
///
/// # Errors
/// The device does not exist or is in use; or the error of the job.
pub(crate) fn run<T, F>(
    device: &str,
    access: Access,
    job: impl FnOnce(LaneLoop, Arc<dyn Device>) -> F + Send + 'static,
    mut waiting: impl FnMut(),
) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ApiError>> + 'static,
{
    let spec: DeviceSpec = device.parse().map_err(|error| ApiError::invalid("DEVICE", error))?;
    let device = spec.open(access).map_err(|error| {
        let kind = match error.kind {
            OpenErrorKind::InUse | OpenErrorKind::ReadOnly => ErrorKind::Refused,
            OpenErrorKind::Denied | OpenErrorKind::Io => ErrorKind::Failed,
            _ => ErrorKind::Invalid,
        };
        let hint = match error.kind {
            OpenErrorKind::InUse => "; stop its volumes first",
            _ => "",
        };
        ApiError::new(kind, format!("{error}{hint}"))
    })?;
    let (tell, hear) = sync_channel(1);
    let setup = move |this: &LaneLoop| {
        let job = job(this.clone(), device);
        this.lane().spawn(async move {
            let _ = tell.send(job.await);
        });
    };
    let clock = Arc::new(MonotonicClock::new());
    let lane = LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup);
    let lane = lane.map_err(|error| ApiError::failed(format!("no lane: {error}")))?;
    let result = loop {
        match hear.recv_timeout(STEP) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Timeout) => waiting(),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(ApiError::failed("the job ended unexpectedly; see the output above"));
            }
        }
    };
    drop(lane);
    result
}

/// Converts an error of the store about a device that was opened for reading only.
pub(crate) fn store_error(error: StoreError) -> ApiError {
    let kind = match error {
        StoreError::Device(_) | StoreError::Failed(_) => ErrorKind::Failed,
        StoreError::Format { .. } => ErrorKind::Failed,
        StoreError::Exists(_) | StoreError::Memory(_) | StoreError::Refused(_) => {
            ErrorKind::Refused
        }
    };
    ApiError::new(kind, error.to_string())
}

/// Opens a device on the lane of [`run`].
type QueueOpener = Rc<dyn Fn(&Arc<dyn Device>) -> Result<Queue, DeviceError>>;

/// Returns a function that opens queues on the lane of [`run`].
pub(crate) fn opener(lane: &LaneLoop) -> QueueOpener {
    let lane = lane.clone();
    Rc::new(move |device| lane.open(&**device))
}
