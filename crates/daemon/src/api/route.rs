//! Routes of the admin API: finds the route of a request, and runs it.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::endpoint::{About, Argument, Endpoint, ResponseKind};
use forebay_admin::{ApiError, ErrorKind, Operation, OperationId, OperationState};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::{HttpAnswer, HttpRequest};
use crate::volumes::Volumes;

/// Delay of the answer to a new operation, so that it can report the end of a quick operation.
pub(super) const GRACE: Duration = Duration::from_millis(150);

/// The answer of a route.
pub(super) type Answered = Result<HttpAnswer, ApiError>;

/// A request on its route.
pub(super) struct Call<'a> {
    pub(super) volumes: &'a Arc<Volumes>,
    pub(super) request: &'a HttpRequest,
    /// The part of the path that is in braces; empty if there is none.
    argument: &'a str,
    /// The text behind the question mark.
    pub(super) query: Option<&'a str>,
}

/// An endpoint and the function that answers its requests.
pub(super) struct Route {
    pub(super) about: &'static About,
    run: Box<dyn Fn(&Call<'_>) -> Answered + Send + Sync>,
}

impl Route {
    /// Answers a request of this route.
    pub(super) fn answer(&self, call: &Call<'_>) -> Answered {
        (self.run)(call)
    }
}

/// Makes a route whose answer is made by `run`.
pub(super) fn answer<A: Argument, Q: DeserializeOwned, R>(
    endpoint: &'static Endpoint<A, Q, R>,
    run: impl Fn(&Call<'_>, A, Q) -> Answered + Send + Sync + 'static,
) -> Route {
    let answer = move |call: &Call<'_>| {
        let argument = A::parse(call.argument)?;
        run(call, argument, body(endpoint, call.request)?)
    };
    Route { about: &endpoint.about, run: Box::new(answer) }
}

/// Makes a route whose answer is JSON.
pub(super) fn json<A: Argument, Q: DeserializeOwned, R: Serialize>(
    endpoint: &'static Endpoint<A, Q, R>,
    run: impl Fn(&Call<'_>, A, Q) -> Result<R, ApiError> + Send + Sync + 'static,
) -> Route {
    let status = if endpoint.about.answer == ResponseKind::Accepted { 202 } else { 200 };
    answer(endpoint, move |call, argument, request| {
        run(call, argument, request).map(|answer| HttpAnswer::json(status, &answer))
    })
}

/// Makes a route that begins an operation.
pub(super) fn begin<A: Argument, Q: DeserializeOwned>(
    endpoint: &'static Endpoint<A, Q, Operation>,
    run: impl Fn(&Arc<Volumes>, &A, Q) -> Result<OperationId, ApiError> + Send + Sync + 'static,
) -> Route {
    answer(endpoint, move |call, argument, request| {
        state_of(call.volumes, run(call.volumes, &argument, request)?, GRACE)
    })
}

/// Answers with the state of an operation when it has ended, or after `wait`.
pub(super) fn state_of(volumes: &Volumes, id: OperationId, wait: Duration) -> Answered {
    let operation = volumes.operations().wait(id, Some(wait)).ok_or_else(|| {
        ApiError::new(ErrorKind::NotFound, format!("operation {id} is not known (any more)"))
    })?;
    let status = if operation.state == OperationState::Running { 202 } else { 200 };
    Ok(HttpAnswer::json(status, &operation))
}

fn body<A, Q: DeserializeOwned, R>(
    endpoint: &Endpoint<A, Q, R>,
    request: &HttpRequest,
) -> Result<Q, ApiError> {
    let unread = request.body.is_empty() || endpoint.about.method == "GET";
    if let Some(absent) = endpoint.absent.filter(|_| unread) {
        return Ok(absent());
    }
    // Otherwise a JSON list would be read as the fields of an object in the order of their
    // declaration.
    if request.body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::new(ErrorKind::Invalid, "body: send a JSON object"));
    }
    serde_json::from_slice(&request.body)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("body: {error}")))
}

/// Finds the route of a request: the first one that matches.
pub(super) fn find<'a>(
    routes: &'static [Route],
    volumes: &'a Arc<Volumes>,
    request: &'a HttpRequest,
) -> Option<(&'static Route, Call<'a>)> {
    let (path, query) = match request.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*request.target, None),
    };
    routes.iter().find_map(|route| {
        let about = route.about;
        let argument = about.matches(path).filter(|_| about.method == request.method)?;
        // A query with unknown fields is refused.
        let understood = query.is_none() || !about.query.is_empty();
        understood.then_some((route, Call { volumes, request, argument, query }))
    })
}
