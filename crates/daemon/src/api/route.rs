//! Routes of the admin API: what one consists of, and how that of a request is found.

use std::sync::Arc;

use forebay_admin::{ApiError, EventList, Operation};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::http::{HttpAnswer, HttpRequest};
use crate::volumes::Volumes;

/// The answer of a route.
pub(super) type Answered = Result<HttpAnswer, ApiError>;

/// Answers the requests on a route.
pub(super) type Handler = fn(&Call<'_>) -> Answered;

/// A request on its route.
pub(super) struct Call<'a> {
    /// Every route.
    pub(super) routes: &'static [Route],
    pub(super) volumes: &'a Arc<Volumes>,
    pub(super) request: &'a HttpRequest,
    /// What stands for the part of the path in braces; empty without one.
    pub(super) argument: &'a str,
    /// What follows the question mark.
    pub(super) query: Option<&'a str>,
}

/// Returns the schema of a type, and notes those of its parts.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of a type.
pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The body of a request.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// None, or an empty object where the method is POST.
    None,
    /// JSON; an empty one stands for an object without fields.
    Optional(SchemaOf),
    /// JSON.
    Required(SchemaOf),
}

/// The answer to a request that succeeds.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// JSON with status 200.
    Json(SchemaOf),
    /// JSON with status 202.
    Accepted(SchemaOf),
    /// An operation: status 202 while it runs, and 200 once it has succeeded or failed.
    Operation,
    /// Events, as JSON or as a stream.
    Events,
    /// A trace as text.
    Trace,
    /// Metrics as text.
    Metrics,
    /// A document whose form is none of ours.
    Document,
}

/// A part of a query.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// A route.
pub(super) struct Route {
    pub(super) method: &'static str,
    /// The path; one part may be a name in braces.
    pub(super) path: &'static str,
    /// What it does, in a sentence.
    pub(super) summary: &'static str,
    pub(super) query: &'static [Parameter],
    pub(super) body: Body,
    pub(super) answer: Answer,
    pub(super) run: Handler,
}

pub(super) const fn get(
    path: &'static str,
    summary: &'static str,
    answer: Answer,
    run: Handler,
) -> Route {
    Route { method: "GET", path, summary, query: &[], body: Body::None, answer, run }
}

pub(super) const fn post(
    path: &'static str,
    summary: &'static str,
    body: Body,
    answer: Answer,
    run: Handler,
) -> Route {
    Route { method: "POST", path, summary, query: &[], body, answer, run }
}

/// An operation on a volume.
pub(super) const fn operate(
    path: &'static str,
    summary: &'static str,
    body: Body,
    run: Handler,
) -> Route {
    post(path, summary, body, Answer::Operation, run)
}

/// The schema of [`Answer::Operation`].
pub(super) const OPERATION: SchemaOf = of::<Operation>;

/// The schema of [`Answer::Events`].
pub(super) const EVENTS: SchemaOf = of::<EventList>;

impl Route {
    /// Returns the name in braces, if the path has one.
    pub(super) fn argument(&self) -> Option<&'static str> {
        let (_, rest) = self.path.split_once('{')?;
        rest.split_once('}').map(|(name, _)| name)
    }

    /// Returns what stands for the part in braces if a path is on this route; empty without such a part.
    fn matches<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut argument = "";
        let mut parts = path.split('/');
        for own in self.path.split('/') {
            let part = parts.next()?;
            match own.starts_with('{') {
                true => argument = part,
                false if own == part => {}
                false => return None,
            }
        }
        parts.next().is_none().then_some(argument)
    }
}

/// Finds the route of a request: the first that fits.
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
        let argument = route.matches(path).filter(|_| route.method == request.method)?;
        // Nothing is asked for that is not there.
        let understood = query.is_none() || !route.query.is_empty();
        understood.then_some((route, Call { routes, volumes, request, argument, query }))
    })
}
