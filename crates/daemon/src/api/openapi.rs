//! The description of the admin API as OpenAPI 3.1, made from its routes and from the types of
//! their bodies.

use std::collections::BTreeMap;

use forebay_admin::endpoint::{About, ResponseKind};
use forebay_admin::{ErrorBody, ErrorKind};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::route::Route;
use crate::events::stream;
use crate::recording;

/// Path of the types' schemas in the document.
const SCHEMAS: &str = "#/components/schemas";

/// Schemas of types that are received, and of types that are sent: fields with defaults are always
/// sent.
struct Generators {
    received: SchemaGenerator,
    sent: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = SCHEMAS.trim_start_matches('#').into();
                settings.meta_schema = None;
            })
        };
        let plain = RecursiveTransform(without_links);
        let sent = settings().for_serialize().with_transform(RecursiveTransform(
            // A default is meaningless for a field that is always present.
            |schema: &mut Schema| _ = schema.remove("default"),
        ));
        Generators {
            received: settings().for_deserialize().with_transform(plain.clone()).into_generator(),
            sent: sent.with_transform(plain).into_generator(),
        }
    }
}

/// Removes links from a description, because they lead into the source.
fn without_links(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`");
    }
}

/// Returns the document.
pub(super) fn document(routes: &[Route]) -> Value {
    let mut generators = Generators::new();
    let mut paths = BTreeMap::<&str, Map<String, Value>>::new();
    for Route { about: route, .. } in routes {
        let described = describe(route, &mut generators);
        paths.entry(route.path).or_default().insert(route.method.to_lowercase(), described);
    }
    let refusal = of_json(&generators.sent.subschema_for::<ErrorBody>());
    let refusals = refusals().into_iter().map(|(status, names)| {
        let description = format!("Refused: {}.", names.join(", "));
        (status.to_string(), json!({ "description": description, "content": refusal }))
    });
    let refusals: Map<String, Value> = refusals.collect();
    let mut schemas = generators.received.take_definitions(true);
    // A type that is received and sent is the same in both directions; a test checks this.
    schemas.extend(generators.sent.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "The admin API of Forebay",
            "description": "HTTP on the admin socket of the daemon. An operation is answered with status 202 \
                while it runs, and with 200 once it has succeeded or failed. Sizes are in bytes. Fields may be added.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [
            { "url": "http://localhost", "description": "The admin socket, /run/forebay/admin.sock" },
        ],
        "paths": paths,
        "components": { "schemas": schemas, "responses": refusals },
    })
}

/// Returns the statuses of refusals, with the kinds of errors that have them.
fn refusals() -> BTreeMap<u16, Vec<String>> {
    let mut kinds = BTreeMap::<u16, Vec<String>>::new();
    for kind in ErrorKind::ALL {
        let name = serde_json::to_value(kind).unwrap_or_default();
        let names = kinds.entry(kind.http_status()).or_default();
        names.extend(name.as_str().map(str::to_owned));
    }
    kinds
}

fn describe(route: &About, generators: &mut Generators) -> Value {
    let mut parameters = Vec::new();
    if let Some(name) = route.argument() {
        let schema = match name {
            "id" => json!({ "type": "integer", "minimum": 0 }),
            _ => json!(generators.received.subschema_for::<forebay_admin::VolumeName>()),
        };
        parameters.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
    }
    parameters.extend(route.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.help,
            "schema": { "type": "string" },
        })
    }));
    let mut described = json!({
        "operationId": name_of(route),
        "summary": route.summary,
        "responses": answers(route, &mut generators.sent),
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some((schema, may_be_empty)) = route.body {
        let content = of_json(&schema(&mut generators.received));
        described["requestBody"] = json!({ "required": !may_be_empty, "content": content });
    }
    described
}

fn answers(route: &About, sent: &mut SchemaGenerator) -> Value {
    let mut answers = Map::new();
    let mut add = |status: &str, description: &str, content: Value| {
        let answer = json!({ "description": description, "content": content });
        answers.insert(status.to_owned(), answer);
    };
    let text = json!({ "type": "string" });
    let mut own = || of_json(&(route.answer_schema)(sent));
    match route.answer {
        ResponseKind::Json => add("200", "Done.", own()),
        ResponseKind::Accepted => add("202", "It begins.", own()),
        ResponseKind::Operation => {
            add("200", "The operation has ended, well or not.", own());
            add("202", "The operation runs.", own());
        }
        ResponseKind::Events => {
            let mut content = own();
            content[stream::MEDIA_TYPE] = json!({ "schema": text });
            add("200", "The events.", content);
        }
        ResponseKind::Metrics => add(
            "200",
            "The metrics.",
            json!({ "application/openmetrics-text": { "schema": text }, "text/plain": { "schema": text } }),
        ),
        ResponseKind::Trace => {
            add("200", "The trace.", json!({ recording::MEDIA_TYPE: { "schema": text } }))
        }
        ResponseKind::Document => add(
            "200",
            "The document.",
            json!({ "application/json": { "schema": { "type": "object" } } }),
        ),
    }
    for status in refusals().keys() {
        let reference = format!("#/components/responses/{status}");
        answers.insert(status.to_string(), json!({ "$ref": reference }));
    }
    answers.into()
}

fn of_json(schema: &Schema) -> Value {
    json!({ "application/json": { "schema": schema } })
}

/// Returns a name for a route that programs can use.
fn name_of(route: &About) -> String {
    let path = route.path.trim_start_matches("/v1").trim_end_matches(".json");
    let parts = path.split('/').filter(|part| !part.is_empty() && !part.starts_with('{'));
    let verb = route.method.to_lowercase();
    let each = if route.path.ends_with('}') { "_one" } else { "" };
    format!("{verb}_{}{each}", parts.collect::<Vec<_>>().join("_").replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::routes::ROUTES;
    use super::*;

    /// With `UPDATE_OPENAPI=1` the file is written instead.
    #[test]
    fn the_document_is_as_published() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document(&ROUTES)).expect("plain data") + "\n";
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(file, &text).expect("writable");
        }
        let published = std::fs::read_to_string(file).unwrap_or_default();
        assert!(text == published, "docs/openapi.json differs; look, then set UPDATE_OPENAPI=1");
    }

    #[test]
    fn every_route_is_described_under_a_name_of_its_own() {
        let document = document(&ROUTES);
        let mut names = BTreeSet::new();
        for Route { about: route, .. } in &*ROUTES {
            let described = &document["paths"][route.path][route.method.to_lowercase()];
            let name = described["operationId"].as_str().expect("a name").to_owned();
            assert!(names.insert(name.clone()), "{name} comes twice");
        }
        let described = document["paths"].as_object().expect("an object").values();
        let count: usize = described.map(|path| path.as_object().map_or(0, Map::len)).sum();
        assert_eq!(count, ROUTES.len());
    }

    #[test]
    fn types_are_the_same_in_both_directions() {
        let Generators { mut received, mut sent } = Generators::new();
        for Route { about: route, .. } in &*ROUTES {
            route.body.map(|(schema, _)| schema(&mut received));
            (route.answer_schema)(&mut sent);
        }
        let (received, sent) = (received.take_definitions(true), sent.take_definitions(true));
        for (name, schema) in &received {
            assert!(sent.get(name).is_none_or(|other| other == schema), "{name}");
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        fn references(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(object) => {
                    if let Some(Value::String(reference)) = object.get("$ref") {
                        found.insert(reference.clone());
                    }
                    object.values().for_each(|value| references(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document(&ROUTES);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("in the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
