//! Dependencies between crates. Every arrow points down; an arrow or a crate that is not in the
//! table here is an error.

use std::process::Command;

use serde_json::Value;

use crate::Finding;

/// Every crate of the workspace with the crates of the workspace that it may use.
pub(crate) const ALLOWED: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("settings", &["core"]),
    ("format", &["core"]),
    ("host", &["core"]),
    ("device", &["core", "host"]),
    ("policy", &["core", "settings"]),
    ("trace", &["core"]),
    ("threads", &["core"]),
    ("lane", &["core", "device", "threads"]),
    ("testkit", &["core", "device", "lane"]),
    ("store", &["core", "format", "device", "lane", "policy", "testkit"]),
    ("engine", &["core", "settings", "format", "device", "lane", "policy", "store", "testkit"]),
    ("ram", &["core", "device", "lane", "policy", "store", "engine"]),
    ("nbd-wire", &["core", "device"]),
    ("nbd-client", &["core", "device", "lane", "nbd-wire"]),
    ("rbd", &["core", "device", "lane"]),
    ("export", &["core", "host", "device", "lane", "engine"]),
    ("nbd", &["core", "host", "device", "lane", "engine", "nbd-wire", "export"]),
    ("vhost-user", &["core", "host", "device", "lane", "engine", "export"]),
    ("fuse", &["core", "host", "device", "lane", "engine", "export"]),
    ("ublk", &["core", "host", "device", "lane", "engine", "export"]),
    ("nbd-kernel", &["core", "host", "device", "lane", "engine", "export", "nbd"]),
    ("admin", &["core", "settings"]),
    (
        "daemon",
        &[
            "core",
            "settings",
            "format",
            "host",
            "device",
            "threads",
            "lane",
            "policy",
            "store",
            "engine",
            "ram",
            "nbd",
            "nbd-client",
            "rbd",
            "vhost-user",
            "export",
            "fuse",
            "ublk",
            "nbd-kernel",
            "admin",
            "testkit",
        ],
    ),
    ("offline", &["core", "format", "device", "lane", "store", "engine", "admin"]),
    (
        "forebay",
        &[
            "core", "settings", "format", "host", "device", "policy", "nbd-wire", "rbd", "admin",
            "trace", "daemon", "offline", "testkit",
        ],
    ),
    ("sim-control", &["core", "threads", "device", "lane", "engine", "admin", "daemon"]),
    ("sim", &["core", "format", "device", "lane", "policy", "store", "engine", "ram"]),
    ("stress", &["core", "format", "device", "lane", "store", "engine", "ram"]),
    (
        "lab",
        &[
            "core",
            "settings",
            "format",
            "host",
            "device",
            "lane",
            "policy",
            "store",
            "engine",
            "ram",
            "nbd",
            "vhost-user",
            "admin",
            "trace",
            "sim",
        ],
    ),
    (
        "fuzz",
        &[
            "core",
            "settings",
            "format",
            "device",
            "lane",
            "store",
            "engine",
            "nbd",
            "nbd-client",
            "nbd-wire",
            "vhost-user",
            "fuse",
            "ublk",
            "admin",
            "testkit",
        ],
    ),
    ("xtask", &[]),
];

/// Test support: only dev-dependencies and the crates in [`TESTS`] may refer to it.
const TEST_SUPPORT: &str = "testkit";
const TESTS: &[&str] = &["fuzz"];

/// A dependency of one crate of the workspace on another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    from: String,
    to: String,
    /// Whether it is a dev-dependency.
    dev: bool,
}

/// The crates of the workspace and the arrows between them, tests and build scripts included.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    crates: Vec<String>,
    arrows: Vec<Arrow>,
}

/// Asks cargo.
///
/// # Errors
/// When cargo cannot be run or says something unexpected.
pub(crate) fn dependencies() -> Result<Dependencies, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", why.trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata printed no JSON: {error}"))?;
    read(&metadata).ok_or_else(|| "cargo metadata has no packages".to_owned())
}

fn read(metadata: &Value) -> Option<Dependencies> {
    let short =
        |name: &Value| name.as_str().map(|name| name.trim_start_matches("forebay-").to_owned());
    let packages = metadata.get("packages")?.as_array()?;
    let crates: Vec<String> =
        packages.iter().map(|package| short(package.get("name")?)).collect::<Option<_>>()?;
    let mut arrows = Vec::new();
    for (package, from) in packages.iter().zip(&crates) {
        for dependency in package.get("dependencies")?.as_array()? {
            let to = short(dependency.get("name")?)?;
            // Only a dependency inside the workspace has a path.
            if dependency.get("path").is_some() {
                let dev = dependency.get("kind").is_some_and(|kind| kind == "dev");
                arrows.push(Arrow { from: from.clone(), to, dev });
            }
        }
    }
    Some(Dependencies { crates, arrows })
}

/// Compares the arrows with the table.
pub(crate) fn check(dependencies: &Dependencies) -> Vec<Finding> {
    let allowed = |name: &str| ALLOWED.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    let manifest = |name: &str| format!("crates/{name}/Cargo.toml");
    let unknown = dependencies.crates.iter().filter(|name| allowed(name).is_none()).map(|name| {
        let what = "this crate is not in the table of arrows in crates/xtask/src/arrows.rs";
        Finding::new(&manifest(name), 0, what)
    });
    let wrong = dependencies
        .arrows
        .iter()
        .filter(|arrow| allowed(&arrow.from).is_some_and(|to| !to.contains(&arrow.to.as_str())));
    let wrong = wrong.map(|Arrow { from, to, .. }| {
        Finding::new(&manifest(from), 0, format!("'{from}' may not depend on '{to}'"))
    });
    let built_in = dependencies.arrows.iter().filter(|arrow| {
        arrow.to == TEST_SUPPORT && !arrow.dev && !TESTS.contains(&arrow.from.as_str())
    });
    let built_in = built_in.map(|Arrow { from, to, .. }| {
        let what = format!("'{from}' may have '{to}' in [dev-dependencies] only");
        Finding::new(&manifest(from), 0, what)
    });
    unknown.chain(wrong).chain(built_in).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(from: &str, to: &str) -> Dependencies {
        Dependencies {
            crates: vec![from.to_owned(), to.to_owned()],
            arrows: vec![Arrow { from: from.to_owned(), to: to.to_owned(), dev: false }],
        }
    }

    #[test]
    fn test_support_is_built_into_tests_only() {
        for (from, dev, good) in [
            ("store", true, true),
            ("store", false, false),
            ("fuzz", false, true),
            ("core", true, false),
        ] {
            let mut graph = graph(from, TEST_SUPPORT);
            graph.arrows[0].dev = dev;
            assert_eq!(check(&graph).is_empty(), good, "{from}");
        }
    }

    #[test]
    fn the_table_has_no_cycle() {
        // A crate may use only crates above it in the table, so the table is an order.
        for (index, (from, to)) in ALLOWED.iter().enumerate() {
            for name in *to {
                let place = ALLOWED.iter().position(|(other, _)| other == name);
                assert!(place.is_some_and(|place| place < index), "{from} -> {name}");
            }
        }
    }

    #[test]
    fn arrows_that_are_not_in_the_table_are_found() {
        for (from, to, good) in [
            ("store", "format", true),
            ("engine", "store", true),
            ("store", "engine", false),
            ("core", "device", false),
            ("policy", "device", false),
            ("nbd", "store", false),
            ("engine", "nbd", false),
            ("forebay", "sim", false),
            ("core", "core", false),
        ] {
            assert_eq!(check(&graph(from, to)).is_empty(), good, "{from} -> {to}");
        }
        assert_eq!(check(&graph("newcomer", "core")).len(), 1);
    }

    #[test]
    fn the_answer_of_cargo_is_read() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "forebay-nbd", "dependencies": [
                { "name": "forebay-core", "path": "/x" },
                { "name": "forebay-store", "path": "/x", "kind": "dev" },
                { "name": "rustix" },
            ] },
            { "name": "forebay-core", "dependencies": [] },
        ] });
        let found = read(&metadata).expect("well formed");
        assert_eq!(found.crates, ["nbd", "core"]);
        let arrows: Vec<_> = found.arrows.iter().map(|arrow| arrow.to.as_str()).collect();
        assert_eq!(arrows, ["core", "store"]);
        assert_eq!(check(&found).len(), 1, "tests must keep to the table as well");
        assert!(read(&serde_json::json!({})).is_none());
    }
}
