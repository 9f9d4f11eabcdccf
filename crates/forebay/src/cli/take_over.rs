//! `forebay daemon --take-over`: replaces the program of the running daemon by this one.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind, HandOverRequest, api};

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::print_line;

/// Time limit for the next program to serve everything again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval at which it is polled.
const STEP: Duration = Duration::from_millis(50);

/// Asks for the hand-over, and waits until the next program serves everything again.
pub(crate) fn run(client: &DaemonClient) -> VerbResult {
    let program = std::env::current_exe()
        .map_err(|error| ApiError::failed(format!("cannot tell where this program is: {error}")))?;
    let before = client.get(&api::DAEMON, &())?;
    let request = HandOverRequest { program: program.clone() };
    let mut last = match client.call(&api::HAND_OVER, &(), &request) {
        Ok(_) => None,
        // The answer may be lost with the program that would have given it.
        Err(error) if matches!(error.kind, ErrorKind::Failed | ErrorKind::NoAnswer) => Some(error),
        Err(error) => return Err(error),
    };
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        std::thread::sleep(STEP);
        match client.get(&api::DAEMON, &()) {
            Ok(now) if now.hand_overs > before.hand_overs && now.ready => {
                if !now.program.is_empty() && Path::new(&now.program) != program {
                    return Err(ApiError::failed(format!(
                        "the daemon continues with {}; see its log",
                        now.program
                    )));
                }
                return print_line(&format!("version {} has taken over", now.version));
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
