//! Follows server-sent events of the daemon.

use std::time::Duration;

use forebay_admin::ApiError;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::patience::Asking;
use super::{DaemonClient, MAX_ANSWER, error_in};
use forebay_daemon::{HEARTBEAT, MEDIA_TYPE};

/// Splits a stream into messages.
#[derive(Default)]
struct Messages {
    line: Vec<u8>,
}

impl Messages {
    /// Takes bytes, and hands the data of each message that is complete to `take` until that
    /// returns `false`. The daemon writes the data of a message on one line.
    fn feed<E>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&str) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data: ")
                && !take(&String::from_utf8_lossy(data))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl DaemonClient {
    /// Follows the events at a path, and hands the data of each to `take`, until that returns
    /// `false`. Returns `true` if the connection is lost or cannot be made.
    ///
    /// # Errors
    /// The daemon refuses, or `take` fails.
    pub(crate) fn follow(
        &self,
        path: &str,
        mut take: impl FnMut(&str) -> Result<bool, ApiError>,
    ) -> Result<bool, ApiError> {
        let request = self.request("GET", path, MEDIA_TYPE, &[])?;
        let asking = Asking::new(false);
        self.runtime()?.block_on(async {
            let answer = async {
                let stream = self.connect(&asking).await?;
                let shaken = http1::handshake(TokioIo::new(stream)).await;
                let (mut sender, connection) = shaken.map_err(|error| self.failed(&error))?;
                tokio::spawn(connection);
                sender.send_request(request).await.map_err(|error| self.failed(&error))
            };
            let answer = self.patiently(&asking, Duration::ZERO, answer).await;
            let Ok(response) = answer else { return Ok(true) };
            let status = response.status().as_u16();
            let mut body = response.into_body();
            if status != 200 {
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                return Err(error_in(status, &body.map(|it| it.to_bytes()).unwrap_or_default()));
            }
            let mut messages = Messages::default();
            // The daemon sends something every few seconds.
            let mut next = async || {
                let frame = async { Ok(body.frame().await) };
                self.patiently(&asking, HEARTBEAT, frame).await
            };
            while let Ok(Some(Ok(frame))) = next().await {
                let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
                if !messages.feed(bytes, &mut take)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Hands the answer at a path to `take`, piece by piece. Nothing may come for as long as
    /// `pause`, in addition to the usual time limit.
    ///
    /// # Errors
    /// The daemon refuses or cannot be reached, the connection is lost, or `take` fails.
    pub(crate) fn download(
        &self,
        path: &str,
        pause: Duration,
        mut take: impl FnMut(&[u8]) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let request = self.request("GET", path, "*/*", &[])?;
        let asking = Asking::new(false);
        self.runtime()?.block_on(async {
            let answer = async {
                let stream = self.connect(&asking).await?;
                let shaken = http1::handshake(TokioIo::new(stream)).await;
                let (mut sender, connection) = shaken.map_err(|error| self.failed(&error))?;
                tokio::spawn(connection);
                sender.send_request(request).await.map_err(|error| self.failed(&error))
            };
            let response = self.patiently(&asking, Duration::ZERO, answer).await?;
            let status = response.status().as_u16();
            let mut body = response.into_body();
            if status != 200 {
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                return Err(error_in(status, &body.map(|it| it.to_bytes()).unwrap_or_default()));
            }
            let mut next = async || {
                let frame = async { Ok(body.frame().await) };
                self.patiently(&asking, pause, frame).await
            };
            while let Some(frame) = next().await? {
                let frame = frame.map_err(|error| self.failed(&error))?;
                take(frame.data_ref().map_or(&[][..], |bytes| bytes))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_apart_wherever_they_are_cut() {
        let stream = b"retry: 1000\n\n:\n\nid: 1\ndata: {\"a\":1}\n\nid: 2\ndata: {}\n\n";
        for cut in 0..stream.len() {
            let (mut messages, mut found) = (Messages::default(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                let fed = messages.feed(part, |data| -> Result<bool, ()> {
                    found.push(data.to_owned());
                    Ok(true)
                });
                assert_eq!(fed, Ok(true));
            }
            assert_eq!(found, ["{\"a\":1}", "{}"]);
        }
    }
}
