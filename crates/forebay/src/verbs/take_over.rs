//! `forebay daemon --take-over`: replaces the program of the running daemon by this one.

use std::time::{Duration, Instant};

use forebay_admin::{ApiError, DaemonReport, HandOverRequest};

use crate::client::Client;
use crate::exit::Outcome;

/// How long the next program may take until it serves everything again.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked.
const STEP: Duration = Duration::from_millis(50);

/// Asks for the hand-over, and waits until the next program serves everything again.
pub(super) fn run(client: &Client) -> Outcome {
    let program = std::env::current_exe()
        .map_err(|error| ApiError::failed(format!("cannot tell where this program is: {error}")))?;
    let before: DaemonReport = client.get("/daemon")?;
    let _: DaemonReport = client.post("/daemon/hand-over", &HandOverRequest { program })?;
    let end = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < end {
        std::thread::sleep(STEP);
        match client.get::<DaemonReport>("/daemon") {
            Ok(now) if now.hand_overs > before.hand_overs && now.ready => {
                println!("version {} has taken over", now.version);
                return Ok(());
            }
            Ok(_) => {}
            // While the program is replaced, a connection may break.
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        ApiError::failed(format!(
            "the daemon does not serve everything again after {} s; see its log",
            PATIENCE.as_secs()
        ))
    }))
}
