//! Third-party crates: their licences, their registries, and crates that may not be built in. The
//! policy is `deny.toml`, which `cargo deny` reads as well; this check is the part of it that needs
//! no database.

use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::Finding;
use crate::tree::Tree;

/// The file of the policy.
const POLICY: &str = "deny.toml";

/// The contents of `deny.toml`.
struct Policy {
    licenses: Vec<String>,
    registries: Vec<String>,
    banned: Vec<String>,
}

/// A crate that is built in.
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None`: a crate of this workspace.
    source: Option<String>,
}

/// Checks every crate that a build for this machine takes.
///
/// # Errors
/// When the policy or the output of cargo cannot be read.
pub(crate) fn check(tree: &Tree, metadata: &Value) -> Result<Vec<Finding>, String> {
    let text = tree.files.iter().find(|file| file.path == POLICY);
    let text = text.ok_or_else(|| format!("{POLICY} is missing"))?;
    let policy = Policy::read(&text.text)?;
    let packages = packages(metadata)?;
    Ok(packages.iter().flat_map(|package| policy.judge(package)).collect())
}

/// Returns cargo's metadata of the crates in a build for this machine.
///
/// # Errors
/// When cargo fails.
pub(crate) fn metadata() -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", &host])
        .output()
        .map_err(|error| format!("cargo metadata cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn packages(all: &Value) -> Result<Vec<Package>, String> {
    let text = |package: &Value, key: &str| package[key].as_str().map(str::to_owned);
    let packages = all["packages"].as_array().ok_or("cargo metadata names no packages")?;
    Ok(packages
        .iter()
        .map(|package| Package {
            name: text(package, "name").unwrap_or_default(),
            version: text(package, "version").unwrap_or_default(),
            license: text(package, "license"),
            source: text(package, "source"),
        })
        .collect())
}

impl Policy {
    fn read(text: &str) -> Result<Self, String> {
        let all: toml::Table = text.parse().map_err(|error| format!("{POLICY}: {error}"))?;
        let list = |section: &str, key: &str| -> Result<Vec<toml::Value>, String> {
            let found = all.get(section).and_then(|section| section.get(key)?.as_array());
            found.cloned().ok_or_else(|| format!("{POLICY}: [{section}] has no list '{key}'"))
        };
        let words = |values: Vec<toml::Value>| {
            values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
        };
        let banned = list("bans", "deny")?;
        Ok(Policy {
            licenses: words(list("licenses", "allow")?),
            registries: words(list("sources", "allow-registry")?),
            banned: words(banned.iter().filter_map(|ban| ban.get("crate").cloned()).collect()),
        })
    }

    fn judge(&self, package: &Package) -> Vec<Finding> {
        let Some(source) = &package.source else { return Vec::new() };
        let mut findings = Vec::new();
        let mut find = |what: String| {
            let Package { name, version, .. } = package;
            findings.push(Finding::new("Cargo.lock", 0, format!("{name} {version} {what}")));
        };
        if !self
            .registries
            .iter()
            .any(|known| source.strip_prefix("registry+") == Some(known.as_str()))
        {
            find(format!("comes from {source}, which {POLICY} does not allow"));
        }
        if self.banned.contains(&package.name) {
            find(format!("is banned by {POLICY}"));
        }
        if let Err(why) = self.allows(package.license.as_deref().unwrap_or_default()) {
            find(why);
        }
        findings
    }

    fn allows(&self, license: &str) -> Result<(), String> {
        let expression = Expression::parse_mode(license, ParseMode::LAX)
            .map_err(|_| format!("has a licence that cannot be read: '{license}'"))?;
        let allowed = expression.evaluate(|required| {
            let name = required.license.id().map(|id| id.name);
            required.addition.is_none()
                && name.is_some_and(|name| self.licenses.iter().any(|it| it == name))
        });
        if allowed {
            Ok(())
        } else {
            Err(format!("has the licence {license}, which {POLICY} does not allow"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::read(include_str!("../../../deny.toml")).expect("the policy of this tree")
    }

    #[test]
    fn licenses_are_choices_and_sums() {
        let policy = policy();
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND NCSA"] {
            assert_eq!(policy.allows(good), Ok(()), "{good}");
        }
        for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "", "Apache-2.0 WITH LLVM-exception"] {
            assert!(policy.allows(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sources_and_names_are_checked() {
        let package = |name: &str, source: &str| Package {
            name: name.into(),
            version: "1.0.0".into(),
            license: Some("MIT".into()),
            source: Some(source.into()),
        };
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert!(policy().judge(&package("serde", registry)).is_empty());
        assert_eq!(policy().judge(&package("openssl-sys", registry)).len(), 1);
        assert_eq!(policy().judge(&package("serde", "git+https://example.com/serde")).len(), 1);
    }
}
