//! Imports within a crate: layers that depend on lower ones only, and no circles.
//!
//! A module and those below it in the folder are one unit, so what a module and its own submodules
//! import from each other does not count. Test modules do not count either.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::{TextFile, Tree};

/// Crates with layers: the top-level modules that are layers, from the bottom to the top. A module
/// that is not named is below all of them.
const LAYERS: &[(&str, &[&str])] =
    &[("engine", &["state", "lane", "io", "path", "serve", "background", "control"])];

const FILE: &str = "crates/xtask/src/modules.rs";

/// Circles of imports that are left, sorted. They may only shrink.
const CIRCLES: &[(&str, &[&str])] = &[(
    "sim",
    &[
        "disk",
        "displaced",
        "engine",
        "faults",
        "features",
        "ledger",
        "presence",
        "profile",
        "protected",
        "queue",
        "ram",
        "report",
        "rot",
        "schedule",
        "settings",
        "shared",
        "system",
        "world",
    ],
)];

/// The modules of one crate, with the line of every import.
#[derive(Debug, Default)]
struct Modules {
    files: BTreeMap<String, String>,
    imports: BTreeMap<String, BTreeMap<String, usize>>,
}

/// Checks every crate.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<&TextFile>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is("rs")) {
        let parts = file.path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
        if let Some((name, _)) = parts {
            crates.entry(name).or_default().push(file);
        }
    }
    let mut findings = Vec::new();
    for (name, files) in crates {
        let modules = Modules::read(files.into_iter().map(|file| (&*file.path, &*file.text)));
        if let Some((_, layers)) = LAYERS.iter().find(|(layered, _)| *layered == name) {
            findings.extend(modules.upward(layers));
        }
        let allowed = CIRCLES.iter().filter(|(owner, _)| *owner == name);
        findings
            .extend(modules.unexpected(&allowed.map(|(_, circle)| *circle).collect::<Vec<_>>()));
    }
    findings
}

/// `crates/x/src/a/b.rs` is `a::b`. Returns `None` for tests and for the crate's root.
fn module_of(path: &str) -> Option<String> {
    let inner = path.split_once("/src/")?.1.strip_suffix(".rs")?;
    let is_test = |part: &str| part == "tests" || part.ends_with("_tests");
    if matches!(inner, "lib" | "main") || inner.split('/').any(is_test) {
        return None;
    }
    Some(inner.replace('/', "::"))
}

impl Modules {
    fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let files: Vec<_> =
            files.filter_map(|(path, text)| Some((module_of(path)?, path, text))).collect();
        let mut modules = Modules::default();
        for (module, path, _) in &files {
            modules.files.insert(module.clone(), (*path).to_owned());
        }
        for (module, _, text) in &files {
            let found = modules.imports_in(module, text);
            modules.imports.insert(module.clone(), found);
        }
        modules
    }

    /// The longest beginning of a path that is a module.
    fn resolve(&self, path: &str) -> Option<&str> {
        let mut path = path;
        loop {
            if let Some((module, _)) = self.files.get_key_value(path) {
                return Some(module);
            }
            path = path.rsplit_once("::")?.0;
        }
    }

    /// The modules that a text names, with the first line of each.
    fn imports_in(&self, module: &str, text: &str) -> BTreeMap<String, usize> {
        let parent =
            module.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_owned());
        let mut found = BTreeMap::new();
        // Modules that were imported by name: `background::watch` may follow.
        let mut named: Vec<(String, String)> = Vec::new();
        let code =
            text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
        for (number, line) in code {
            if line.trim_start().starts_with("//") {
                continue;
            }
            let mut paths: Vec<String> = paths_after(line, "crate::").collect();
            let above = paths_after(line, "super::");
            paths.extend(above.map(|path| match parent.is_empty() {
                true => path,
                false => format!("{parent}::{path}"),
            }));
            for (name, full) in &named {
                let through = paths_after(line, &format!("{name}::"));
                paths.extend(through.map(|path| format!("{full}::{path}")));
            }
            for path in paths {
                if line.starts_with("use ") && self.files.contains_key(&path) {
                    let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                    named.push((name, path.clone()));
                }
                if let Some(import) = self.resolve(&path)
                    && !is_within(import, module)
                    && !is_within(module, import)
                {
                    found.entry(import.to_owned()).or_insert(number + 1);
                }
            }
        }
        found
    }

    fn finding(&self, module: &str, import: &str, what: String) -> Finding {
        let line = self.imports.get(module).and_then(|imports| imports.get(import));
        let file = self.files.get(module).map_or("", String::as_str);
        Finding::new(file, line.copied().unwrap_or(0), what)
    }

    /// Imports from a higher layer.
    fn upward(&self, layers: &[&str]) -> Vec<Finding> {
        let layer = |module: &str| {
            let top = module.split("::").next().unwrap_or_default();
            layers.iter().position(|layer| *layer == top).map_or(0, |place| place + 1)
        };
        let mut findings = Vec::new();
        for (module, imports) in &self.imports {
            for import in imports.keys().filter(|import| layer(import) > layer(module)) {
                let what = format!("'{module}' imports '{import}', which is in a higher layer");
                findings.push(self.finding(module, import, what));
            }
        }
        findings
    }

    /// The imports between modules of the same folder: a submodule counts as the module
    /// that it is below. Each edge has the modules of one import that it stands for.
    fn contracted(&self) -> BTreeMap<String, BTreeMap<String, (&str, &str)>> {
        let mut edges: BTreeMap<String, BTreeMap<String, (&str, &str)>> = BTreeMap::new();
        for (module, imports) in &self.imports {
            for import in imports.keys() {
                let parts = module.split("::").zip(import.split("::"));
                let level = parts.take_while(|(from, to)| from == to).count();
                let (from, to) = (cut(module, level + 1), cut(import, level + 1));
                edges.entry(from).or_default().entry(to).or_insert((module, import));
            }
        }
        edges
    }

    /// Circles of imports that are not allowed, and allowed ones that are smaller now.
    fn unexpected(&self, allowed: &[&[&str]]) -> Vec<Finding> {
        let edges = self.contracted();
        let circles = circles(&edges);
        let mut findings = Vec::new();
        for circle in &circles {
            if allowed
                .iter()
                .any(|known| circle.iter().all(|module| known.contains(&module.as_str())))
            {
                continue;
            }
            for module in circle {
                for (import, (from, to)) in edges.get(module).into_iter().flatten() {
                    if circle.contains(import) {
                        let what = format!(
                            "'{module}' imports '{import}', which imports it in turn: a circle"
                        );
                        findings.push(self.finding(from, to, what));
                    }
                }
            }
        }
        for known in allowed {
            if !circles.iter().any(|circle| circle.iter().eq(known.iter())) {
                let what =
                    format!("the circle {} is smaller now: shorten it here", known.join(", "));
                findings.push(Finding::new(FILE, 0, what));
            }
        }
        findings
    }
}

/// The first segments of a path.
fn cut(path: &str, segments: usize) -> String {
    path.split("::").take(segments).collect::<Vec<_>>().join("::")
}

/// Sets of at least two modules, each of which reaches all others of its set.
fn circles<T>(edges: &BTreeMap<String, BTreeMap<String, T>>) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (from.as_str(), reach(edges, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, all) in &reached {
        let back = |to: &&&str| reached.get(**to).is_some_and(|others| others.contains(from));
        let circle: BTreeSet<String> = all.iter().filter(back).map(|it| (*it).to_owned()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles
}

/// The modules that a module imports, directly or through others.
fn reach<'a, T>(edges: &'a BTreeMap<String, BTreeMap<String, T>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        for import in edges.get(module).into_iter().flatten().map(|(import, _)| import.as_str()) {
            if reached.insert(import) {
                left.push(import);
            }
        }
    }
    reached
}

/// Whether a module is another or below it.
fn is_within(module: &str, other: &str) -> bool {
    module == other || module.strip_prefix(other).is_some_and(|rest| rest.starts_with("::"))
}

/// The paths behind a prefix in a line; of a list in braces, each.
fn paths_after<'a>(line: &'a str, prefix: &str) -> impl Iterator<Item = String> + use<'a> {
    let own_word =
        |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    let starts: Vec<usize> = line
        .match_indices(prefix)
        .filter(|(at, _)| own_word(*at))
        .map(|(at, _)| at + prefix.len())
        .collect();
    starts.into_iter().flat_map(|start| {
        let rest = &line[start..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let path = rest[..end.unwrap_or(rest.len())].trim_end_matches(':').to_owned();
        let list = rest[path.len()..].trim_start_matches("::");
        let items = list.strip_prefix('{').map(|list| list.split('}').next().unwrap_or(list));
        let join = |item: &str| match path.is_empty() {
            true => item.to_owned(),
            false => format!("{path}::{item}"),
        };
        match items {
            Some(items) => items.split(',').map(|item| join(item.trim())).collect(),
            None => vec![path],
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}.rs"), *text)).collect();
        Modules::read(files.iter().map(|(path, text)| (path.as_str(), *text)))
    }

    #[test]
    fn imports_from_a_higher_layer_are_found() {
        let found = |text| {
            let files = [("low/a", text), ("low/b", ""), ("high/c", ""), ("high", "")];
            modules(&files).upward(&["low", "high"]).len()
        };
        for text in [
            "use crate::high::c::Thing;",
            "use crate::high::{c, Other};",
            "use crate::high;\nfn f() { high::c::g() }",
            "fn f() { crate::high::c::g() }",
        ] {
            assert!(found(text) > 0, "{text}");
        }
        for text in [
            "use crate::low::b::Thing;",
            "use super::b::Thing;",
            "// crate::high::c\n",
            "use other_crate::high::c;",
            "#[cfg(test)]\nmod tests { use crate::high::c; }",
        ] {
            assert_eq!(found(text), 0, "{text}");
        }
        let upward = modules(&[("low/a", "\nuse crate::high::X;"), ("high", "")]);
        let finding = &upward.upward(&["low", "high"])[0];
        assert_eq!((finding.file.as_str(), finding.line), ("crates/x/src/low/a.rs", 2));
    }

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let circles = circles(&modules(files).contracted()).into_iter();
        circles.map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ")).collect()
    }

    const NO_CIRCLES: [&str; 0] = [];

    #[test]
    fn circles_are_found_and_submodules_are_none() {
        let a = ("a", "use crate::b::X;");
        let b = ("b", "use crate::c::X;");
        assert_eq!(circles_of(&[a, b, ("c", "")]), NO_CIRCLES);
        let around = [a, b, ("c", "use super::a::X;"), ("d", "use crate::a::X;")];
        assert_eq!(circles_of(&around), ["a b c"]);
        let within = [("a", "mod sub;\nuse crate::a::sub::X;"), ("a/sub", "use super::Y;")];
        assert_eq!(circles_of(&within), NO_CIRCLES);
        let through_sub =
            [("a", "use crate::b::sub::X;"), ("b", ""), ("b/sub", "use crate::a::Y;")];
        assert_eq!(circles_of(&through_sub), ["a b"]);
    }

    #[test]
    fn modules_and_those_below_them_are_one_unit() {
        // No file imports in a circle, but the folders do.
        let folders = [
            ("a/x", "use crate::b::x::X;"),
            ("b/y", "use crate::a::y::X;"),
            ("a/y", ""),
            ("b/x", ""),
        ];
        assert_eq!(circles_of(&folders), ["a b"]);
        let deeper = [
            ("a/b/x", "use crate::a::c::x::X;"),
            ("a/c/y", "use crate::a::b::y::X;"),
            ("a/b/y", ""),
            ("a/c/x", ""),
        ];
        assert_eq!(circles_of(&deeper), ["a::b a::c"]);
    }

    #[test]
    fn allowed_circles_may_only_shrink() {
        let files = [("a", "use crate::b::X;"), ("b", "use crate::a::X;"), ("c", "")];
        let found = |allowed: &[&[&str]]| {
            let findings = modules(&files).unexpected(allowed);
            findings.into_iter().map(|it| it.file).collect::<Vec<_>>()
        };
        assert_eq!(found(&[&["a", "b"]]), [""; 0]);
        assert_eq!(found(&[]), ["crates/x/src/a.rs", "crates/x/src/b.rs"]);
        assert_eq!(found(&[&["a", "b", "c"]]), [FILE]);
        assert_eq!(found(&[&["a", "b"], &["c", "d"]]), [FILE]);
    }
}
