//! The page of `--web`: shows the activity of the daemon, and changes nothing.
//!
//! - `live`: checks the volumes every second while browsers are connected, and sends the changes
//! - `history`: the last hours, over restarts
//! - `page/`: the page itself, which loads nothing from other hosts

mod history;
mod live;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::why::Why;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use hyper::{Request, Response};
use serde_json::json;

use super::http::{HttpAnswer, HttpRequest, HyperBody};
use super::volumes::Volumes;
use super::{api, tcp};
use live::LiveFeed;

/// Most connections at a time; more than the number of streams, so that the page itself can always
/// be read.
const MAX_CONNECTIONS: usize = 64;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page: path, media type, text.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("web/page/index.html")),
    ("/style.css", CSS, include_str!("web/page/style.css")),
    ("/main.js", JAVASCRIPT, include_str!("web/page/main.js")),
    ("/volume.js", JAVASCRIPT, include_str!("web/page/volume.js")),
    ("/charts.js", JAVASCRIPT, include_str!("web/page/charts.js")),
    ("/words.js", JAVASCRIPT, include_str!("web/page/words.js")),
];

/// Rights of browsers with the page: load its own files, run in no frame, and send no referrer.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The address of the page, claimed.
pub(crate) struct Claimed {
    listener: TcpListener,
    bound: SocketAddr,
}

/// Claims an address.
///
/// # Errors
/// [`ErrorKind::Refused`] if the address is in use, or not one of this machine.
pub(crate) fn claim(address: SocketAddr) -> Result<Claimed, ApiError> {
    let readable = "the page, which names volumes and devices and shows all settings";
    Ok(Claimed { listener: tcp::claim("--web", readable, address)?, bound: address })
}

/// The page.
pub(crate) struct Web {
    claimed: Claimed,
    volumes: Arc<Volumes>,
    live: Arc<LiveFeed>,
}

impl Web {
    /// Creates the page; its history is in `state_dir`.
    pub(crate) fn new(claimed: Claimed, state_dir: &Path, volumes: &Arc<Volumes>) -> Arc<Self> {
        let live = LiveFeed::new(state_dir, volumes.clone());
        Arc::new(Web { claimed, volumes: volumes.clone(), live })
    }

    /// Serves the page until this is dropped.
    pub(crate) async fn serve(self: &Arc<Self>) {
        let listener = match self.claimed.listener.try_clone() {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("--web: cannot listen: {error}");
                return std::future::pending().await;
            }
        };
        let web = self.clone();
        let answer = move |request| answer(web.clone(), request);
        tokio::select! {
            () = tcp::serve(listener, MAX_CONNECTIONS, answer) => (),
            () = self.live.clone().watch() => (),
        }
    }

    /// Writes the history, as at an orderly stop.
    pub(crate) fn save(&self) {
        self.live.save();
    }
}

async fn answer<B>(web: Arc<Web>, request: Request<B>) -> Response<HyperBody> {
    let answered = match tcp::guard::check("--web", request.headers(), web.claimed.bound) {
        Ok(()) => web.answer(&request).await,
        Err(error) => Err(error),
    };
    let mut response = answered.unwrap_or_else(|error| HttpAnswer::error(&error).into());
    for (name, value) in &HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Web {
    async fn answer<B>(&self, request: &Request<B>) -> Result<Response<HyperBody>, ApiError> {
        if let Some(refused) = tcp::refuse_changes(request.method()) {
            return Ok(refused);
        }
        let path = request.uri().path();
        if let Some((_, media_type, text)) = FILES.iter().find(|(file, ..)| *file == path) {
            return Ok(HttpAnswer::text(media_type, (*text).to_owned()).into());
        }
        match path {
            "/live" => self.live.follow(),
            "/history" => Ok(HttpAnswer::text("application/json", self.live.history()).into()),
            "/reasons" => Ok(HttpAnswer::json(200, &reasons()).into()),
            _ if is_shown(path) => {
                let target = request.uri().path_and_query().map_or(path, |target| target.as_str());
                self.ask(target.to_owned()).await
            }
            _ => {
                let message = "there is no such page; the admin API is on the admin socket";
                Err(ApiError::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// Answers like the admin API, on a thread that may block.
    async fn ask(&self, target: String) -> Result<Response<HyperBody>, ApiError> {
        let (method, accept, last_event) = ("GET".to_owned(), String::new(), None);
        let request = HttpRequest { method, target, accept, last_event, body: Vec::new() };
        let volumes = self.volumes.clone();
        let answered = tokio::task::spawn_blocking(move || api::answer(&volumes, &request)).await;
        let answer = answered.map_err(|error| ApiError::failed(format!("failed: {error}")))?;
        Ok(answer.into())
    }
}

/// Whether the page needs a path of the admin API.
fn is_shown(path: &str) -> bool {
    let curve = || path.strip_prefix("/v1/volumes/")?.strip_suffix("/curve");
    matches!(path, "/v1/daemon" | "/v1/memory" | "/v1/knobs" | "/v1/events" | "/v1/reports")
        || curve().is_some()
}

/// Returns every counted reason with its meaning.
fn reasons() -> serde_json::Value {
    let reason = |(group, name, help)| json!({"group": group, "name": name, "help": help});
    Why::meanings().into_iter().map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_files_load_nothing_foreign_and_insert_no_html() {
        for (path, _, text) in FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for foreign in ["http:", "https:", "url(", "@import"] {
                assert!(!text.contains(foreign), "{path} has {foreign}");
            }
            for unsafe_part in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"]
            {
                assert!(!text.contains(unsafe_part), "{path} has {unsafe_part}");
            }
        }
    }

    #[test]
    fn only_what_the_page_shows_is_asked_of_the_api() {
        for path in ["/v1/knobs", "/v1/reports", "/v1/volumes/v/curve"] {
            assert!(is_shown(path), "{path}");
        }
        for path in
            ["/metrics", "/v1/log", "/v1/volumes", "/v1/volumes/v", "/v1/operations", "/v1/"]
        {
            assert!(!is_shown(path), "{path}");
        }
    }
}
