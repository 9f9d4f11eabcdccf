//! Imports within a crate: layers that depend on lower ones only, and no cycles.
//!
//! A module and those below it in the folder are one unit, so what a module and its own submodules import
//! from each other does not count. Test modules do not count either.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::{TextFile, Tree};

/// Crates with layers: the top-level modules that are layers, from the bottom to the top. A module that is
/// not named is below all of them.
const LAYERS: &[(&str, &[&str])] =
    &[("engine", &["state", "lane", "io", "path", "serve", "background", "control"])];

/// Crates whose modules still import each other in cycles.
const WITH_CYCLES: &[&str] = &["sim"];

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
        if !WITH_CYCLES.contains(&name) {
            findings.extend(modules.cycle());
        }
    }
    findings
}

/// `crates/x/src/a/b.rs` is `a::b`, and so is `crates/x/src/a/b/mod.rs`. None: tests, or the crate's root.
fn module_of(path: &str) -> Option<String> {
    let inner = path.split_once("/src/")?.1.strip_suffix(".rs")?;
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
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

    /// The first import of a module that is among some others.
    fn next<'a>(&self, module: &str, others: &BTreeSet<&'a str>) -> Option<&'a str> {
        self.imports.get(module)?.keys().find_map(|import| others.get(import.as_str()).copied())
    }

    /// A cycle, if there is one.
    fn cycle(&self) -> Option<Finding> {
        // Modules without imports among those that are left are taken away until none has none.
        let mut left: BTreeSet<&str> = self.imports.keys().map(String::as_str).collect();
        while let Some(free) = left.iter().copied().find(|it| self.next(it, &left).is_none()) {
            left.remove(free);
        }
        let mut path = vec![*left.first()?];
        loop {
            let import = self.next(path.last()?, &left)?;
            if let Some(start) = path.iter().position(|module| *module == import) {
                let around = [&path[start..], &[import]].concat().join(" -> ");
                let what = format!("modules import each other in a cycle: {around}");
                return Some(self.finding(path.last()?, import, what));
            }
            path.push(import);
        }
    }
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
            let files = [("low/a", text), ("low/b", ""), ("high/c", ""), ("high/mod", "")];
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
        let upward = modules(&[("low/a", "\nuse crate::high::X;"), ("high/mod", "")]);
        let finding = &upward.upward(&["low", "high"])[0];
        assert_eq!((finding.file.as_str(), finding.line), ("crates/x/src/low/a.rs", 2));
    }

    #[test]
    fn cycles_are_found_and_submodules_are_none() {
        let a = ("a", "use crate::b::X;");
        let b = ("b", "use crate::c::X;");
        assert!(modules(&[a, b, ("c", "")]).cycle().is_none());
        let around = modules(&[a, b, ("c", "use super::a::X;"), ("d", "use crate::a::X;")]);
        let what = around.cycle().expect("a cycle").what;
        assert!(what.ends_with("a -> b -> c -> a"), "{what}");
        let within =
            modules(&[("a", "mod sub;\nuse crate::a::sub::X;"), ("a/sub", "use super::Y;")]);
        assert!(within.cycle().is_none());
        let through_sub =
            modules(&[("a", "use crate::b::sub::X;"), ("b", ""), ("b/sub", "use crate::a::Y;")]);
        assert!(through_sub.cycle().is_some());
    }
}
