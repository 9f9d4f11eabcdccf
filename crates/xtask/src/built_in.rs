//! Third-party crates in the program, which run as root: `docs/supply.md` gives the reason for
//! each, and a release contains the list of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::Finding;
use crate::tree::Tree;

/// The page with the reasons.
const PAGE: &str = "docs/supply.md";

/// The package that makes the program.
const PROGRAM: &str = "forebay";

/// A crate in the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BuiltIn {
    name: String,
    version: String,
    license: Option<String>,
    /// `None`: a crate of this tree.
    source: Option<String>,
    /// The crates that it needs, by their ids.
    needs: BTreeSet<String>,
}

/// Returns the crates in the program by their ids, from the output of `cargo metadata`, without
/// crates that only build or test it.
fn built_in(metadata: &Value) -> BTreeMap<String, BuiltIn> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> =
        all(&metadata["packages"]).into_iter().map(|it| (text(&it["id"]), it)).collect();
    let nodes: BTreeMap<String, Value> =
        all(&metadata["resolve"]["nodes"]).into_iter().map(|it| (text(&it["id"]), it)).collect();
    let is_macro = |id: &str| {
        let targets = packages.get(id).map(|package| all(&package["targets"])).unwrap_or_default();
        targets.iter().any(|target| all(&target["kind"]).contains(&json!("proc-macro")))
    };
    let root = packages.iter().find(|(_, package)| package["name"] == PROGRAM);
    let mut todo: Vec<String> = root.map(|(id, _)| id.clone()).into_iter().collect();
    let mut found = BTreeMap::new();
    while let Some(id) = todo.pop() {
        let (Some(package), Some(node)) = (packages.get(&id), nodes.get(&id)) else { continue };
        let is_needed = |dep: &Value| all(&dep["dep_kinds"]).iter().any(|it| it["kind"].is_null());
        let needs: BTreeSet<String> = all(&node["deps"])
            .iter()
            .filter(|dep| is_needed(dep))
            .map(|dep| text(&dep["pkg"]))
            .filter(|id| !is_macro(id))
            .collect();
        todo.extend(needs.iter().filter(|id| !found.contains_key(*id)).cloned());
        let one = BuiltIn {
            name: text(&package["name"]),
            version: text(&package["version"]),
            license: package["license"].as_str().map(str::to_owned),
            source: package["source"].as_str().map(str::to_owned),
            needs,
        };
        found.insert(id, one);
    }
    found
}

/// Checks that the page has a line for each crate, and for no other.
pub(crate) fn check(tree: &Tree, metadata: &Value) -> Vec<Finding> {
    let Some(page) = tree.file(PAGE) else { return vec![Finding::new(PAGE, 0, "is missing")] };
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let rows: Vec<(usize, String)> =
        page.lines().filter_map(|(line, text)| Some((line, row(text)?))).collect();
    let crates = built_in(metadata);
    let others: BTreeSet<&str> =
        crates.values().filter(|it| it.source.is_some()).map(|it| it.name.as_str()).collect();
    let absent = others.iter().filter(|name| !rows.iter().any(|(_, row)| row == *name));
    let absent = absent.map(|name| {
        Finding::new(
            PAGE,
            0,
            format!("has no line for {name}, which runs as root: give the reason"),
        )
    });
    let gone = rows.iter().filter(|(_, row)| !others.contains(row.as_str()));
    let gone = gone.map(|(line, row)| Finding::new(PAGE, *line, format!("{row} is not built in")));
    absent.chain(gone).collect()
}

/// Returns the crates of a release of this version as CycloneDX. `lock` is the text of Cargo.lock.
///
/// # Errors
/// When the lock file cannot be read.
pub(crate) fn bill(metadata: &Value, lock: &str, version: &str) -> Result<Value, String> {
    let lock: toml::Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let locked = lock.get("package").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let checksum = |one: &BuiltIn| {
        let is = |entry: &toml::Value, key: &str, value: &str| {
            entry.get(key).and_then(toml::Value::as_str) == Some(value)
        };
        let entry = locked
            .iter()
            .find(|it| is(it, "name", &one.name) && is(it, "version", &one.version))?;
        Some(entry.get("checksum")?.as_str()?.to_owned())
    };
    let crates = built_in(metadata);
    let purl = |one: &BuiltIn| format!("pkg:cargo/{}@{}", one.name, one.version);
    let component = |one: &BuiltIn| {
        let mut value = json!({
            "type": "library", "bom-ref": purl(one), "name": one.name, "version": one.version,
            "purl": purl(one),
        });
        if let Some(license) = &one.license {
            value["licenses"] = json!([{"expression": license}]);
        }
        if let Some(checksum) = checksum(one) {
            value["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        value
    };
    let dependency = |one: &BuiltIn| {
        let needs: BTreeSet<String> =
            one.needs.iter().filter_map(|id| crates.get(id)).map(purl).collect();
        json!({"ref": purl(one), "dependsOn": needs})
    };
    let program = json!({
        "type": "application", "bom-ref": format!("pkg:cargo/{PROGRAM}@{}", program_version(&crates)),
        "name": PROGRAM, "version": version,
    });
    let libraries = crates.values().filter(|it| it.name != PROGRAM);
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": program},
        "components": libraries.map(component).collect::<Vec<_>>(),
        "dependencies": crates.values().map(dependency).collect::<Vec<_>>(),
    }))
}

fn program_version(crates: &BTreeMap<String, BuiltIn>) -> String {
    let program = crates.values().find(|it| it.name == PROGRAM);
    program.map(|it| it.version.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let package = |name: &str, kind: &str, source: Value| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT",
                "source": source, "targets": [{"kind": [kind]}]})
        };
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let registry = json!("registry+x");
        json!({
            "packages": [
                package("forebay", "bin", Value::Null), package("clap", "lib", registry.clone()),
                package("derive", "proc-macro", registry.clone()),
                package("tests", "lib", registry.clone()), package("inner", "lib", registry.clone()),
            ],
            "resolve": {"nodes": [
                {"id": "forebay", "deps": [
                    dep("clap", Value::Null), dep("derive", Value::Null), dep("tests", json!("dev")),
                ]},
                {"id": "clap", "deps": [dep("inner", Value::Null)]},
                {"id": "derive", "deps": []}, {"id": "tests", "deps": []},
                {"id": "inner", "deps": []},
            ]},
        })
    }

    #[test]
    fn crates_that_only_build_or_test_the_program_are_not_in_it() {
        let names: Vec<_> = built_in(&metadata()).into_values().map(|it| it.name).collect();
        assert_eq!(names, ["clap", "forebay", "inner"]);
    }

    #[test]
    fn each_crate_has_a_line_and_no_other_has() {
        let found = |page: &str| {
            let tree = Tree::of(&[(PAGE, page)]);
            check(&tree, &metadata()).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(found("| `clap` | options |\n| `inner` | clap |\n"), [""; 0]);
        assert_eq!(found("| `clap` | options |\n").len(), 1);
        let more = found("| `clap` | options |\n| `inner` | clap |\n| `tests` | x |\n");
        assert_eq!(more, ["tests is not built in"]);
    }

    #[test]
    fn the_bill_has_versions_checksums_and_what_needs_what() {
        let lock = "[[package]]\nname = \"clap\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = bill(&metadata(), lock, "2.0").expect("a lock file");
        assert_eq!(bill["metadata"]["component"]["version"], "2.0");
        let components = bill["components"].as_array().expect("a list");
        assert_eq!(components.len(), 2);
        assert_eq!(components[0]["purl"], "pkg:cargo/clap@1.0.0");
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        let clap = json!({"ref": "pkg:cargo/clap@1.0.0", "dependsOn": ["pkg:cargo/inner@1.0.0"]});
        assert!(bill["dependencies"].as_array().expect("a list").contains(&clap));
    }
}
