//! The parts of a request of the admin API. Each request is declared once, in [`crate::api`]; the
//! daemon's route, its description in OpenAPI and the client's call follow from the declaration.

use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{ApiError, Operation, OperationId, VolumeName};

/// Returns the schema of a type, and notes those of its parts.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of a type.
pub fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The answer to a request that succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// JSON with status 200.
    Json,
    /// JSON with status 202.
    Accepted,
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
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its effect, in a sentence.
    pub help: &'static str,
}

/// The description of an endpoint, without its types.
pub struct About {
    /// The HTTP method.
    pub method: &'static str,
    /// The path; one part may be a name in braces.
    pub path: &'static str,
    /// The effect of the request, in a sentence.
    pub summary: &'static str,
    /// The parts of its query.
    pub query: &'static [Parameter],
    /// The schema of the body, and whether it may be empty; without one the body is empty or an
    /// empty object.
    pub body: Option<(SchemaOf, bool)>,
    /// The form of the answer.
    pub answer: ResponseKind,
    /// The schema of the answer as JSON.
    pub answer_schema: SchemaOf,
}

impl About {
    /// Returns the name in braces, if the path has one.
    pub fn argument(&self) -> Option<&'static str> {
        let (_, rest) = self.path.split_once('{')?;
        rest.split_once('}').map(|(name, _)| name)
    }

    /// Returns what stands for the part in braces if this is the endpoint of a path; empty without
    /// such a part.
    pub fn matches<'a>(&self, path: &'a str) -> Option<&'a str> {
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

/// The type of the part of a path that is in braces.
pub trait Argument: Sized {
    /// Parses it.
    ///
    /// # Errors
    /// It is none.
    fn parse(text: &str) -> Result<Self, ApiError>;

    /// Returns it as text.
    fn text(&self) -> String;
}

impl Argument for () {
    fn parse(_: &str) -> Result<Self, ApiError> {
        Ok(())
    }

    fn text(&self) -> String {
        String::new()
    }
}

impl Argument for VolumeName {
    fn parse(text: &str) -> Result<Self, ApiError> {
        Ok(text.parse::<VolumeName>()?)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Argument for OperationId {
    fn parse(text: &str) -> Result<Self, ApiError> {
        text.parse().map_err(|_| ApiError::invalid("id", "operations have whole numbers"))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A request without parameters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A kind of request: `A` stands in its path, `Q` is its body, and `R` the answer.
pub struct Endpoint<A, Q, R> {
    /// Its description.
    pub about: About,
    /// The request that an empty body stands for, if it may be empty.
    pub absent: Option<fn() -> Q>,
    types: PhantomData<fn(A, Q) -> R>,
}

impl<A: Argument, Q, R> Endpoint<A, Q, R> {
    /// Returns its path for this argument.
    pub fn path(&self, argument: &A) -> String {
        match self.about.path.split_once('{').zip(self.about.path.split_once('}')) {
            Some(((before, _), (_, after))) => format!("{before}{}{after}", argument.text()),
            None => self.about.path.to_owned(),
        }
    }

    pub(crate) const fn query(mut self, query: &'static [Parameter]) -> Self {
        self.about.query = query;
        self
    }

    pub(crate) const fn answered(mut self, answer: ResponseKind) -> Self {
        self.about.answer = answer;
        self
    }
}

impl<A, Q, R: JsonSchema> Endpoint<A, Q, R> {
    const fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        let (query, body): (&[_], _) = (&[], None);
        let (answer, answer_schema): (_, SchemaOf) = (ResponseKind::Json, of::<R>);
        let about = About { method, path, summary, query, body, answer, answer_schema };
        Endpoint { about, absent: None, types: PhantomData }
    }
}

impl<A, R: JsonSchema> Endpoint<A, Nothing, R> {
    pub(crate) const fn get(path: &'static str, summary: &'static str) -> Self {
        let mut endpoint = Endpoint::new("GET", path, summary);
        endpoint.absent = Some(Nothing::default);
        endpoint
    }
}

impl<A, Q: JsonSchema, R: JsonSchema> Endpoint<A, Q, R> {
    pub(crate) const fn post(path: &'static str, summary: &'static str) -> Self {
        let mut endpoint = Endpoint::new("POST", path, summary);
        endpoint.about.body = Some((of::<Q>, false));
        endpoint
    }
}

/// Requests that begin an operation.
impl<A, Q: JsonSchema> Endpoint<A, Q, Operation> {
    pub(crate) const fn operate(path: &'static str, summary: &'static str) -> Self {
        let mut endpoint = Endpoint::post(path, summary);
        endpoint.about.answer = ResponseKind::Operation;
        endpoint
    }
}

impl<A, Q: JsonSchema + Default> Endpoint<A, Q, Operation> {
    /// Its body may be empty.
    pub(crate) const fn operate_by_default(path: &'static str, summary: &'static str) -> Self {
        let mut endpoint = Endpoint::operate(path, summary);
        endpoint.about.body = Some((of::<Q>, true));
        endpoint.absent = Some(Q::default);
        endpoint
    }
}

impl<A> Endpoint<A, Nothing, Operation> {
    /// It has no parameters.
    pub(crate) const fn ask(path: &'static str, summary: &'static str) -> Self {
        let mut endpoint = Endpoint::get(path, summary);
        (endpoint.about.method, endpoint.about.answer) = ("POST", ResponseKind::Operation);
        endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_back_to_its_argument() {
        let endpoint = Endpoint::<VolumeName, Nothing, Operation>::ask("/v1/volumes/{name}/x", "");
        let path = endpoint.path(&"v.1".parse().expect("valid"));
        assert_eq!(
            (path.as_str(), endpoint.about.matches(&path)),
            ("/v1/volumes/v.1/x", Some("v.1"))
        );
        assert_eq!(endpoint.about.argument(), Some("name"));
        for other in ["/v1/volumes/v.1", "/v1/volumes/v.1/x/", "/v1/volumes/v.1/y", "/v1/volumes"] {
            assert_eq!(endpoint.about.matches(other), None, "{other}");
        }
        let list = Endpoint::<(), Nothing, Operation>::get("/v1/volumes", "");
        assert_eq!(
            (list.path(&()).as_str(), list.about.matches("/v1/volumes")),
            ("/v1/volumes", Some(""))
        );
    }
}
