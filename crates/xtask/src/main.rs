//! Checks of the source tree that the compiler cannot make: `cargo run -p xtask -- tidy`.
//!
//! - [`tree`]: the files under version control
//! - [`supply`], [`built_in`]: crates of others, their licences, and why they are in the program
//! - [`arrows`]: which crate may depend on which
//! - [`picture`]: the picture of the crates, which `cargo run -p xtask -- picture` writes
//! - [`modules`]: which module of a crate may import which
//! - [`sources`]: what every source file has, and what none may have
//! - [`paths`]: no path of somebody's machine anywhere
//! - [`references`]: what pages refer to exists
//! - [`invariants`]: every invariant has its line in `docs/testing.md`, and the tests it names exist
#![forbid(unsafe_code)]

mod arrows;
mod built_in;
mod invariants;
mod modules;
mod paths;
mod picture;
mod references;
mod sources;
mod supply;
mod tree;
mod words;

use std::process::ExitCode;

use tree::Tree;

/// One thing that is not as it should be.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The file, relative to the root of the tree.
    pub(crate) file: String,
    /// The line, from 1; 0 for the whole file.
    pub(crate) line: usize,
    /// What is wrong, and what to do.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { file: file.to_owned(), line, what: what.into() }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => match tidy() {
            Ok(findings) => report(&findings),
            Err(error) => {
                eprintln!("tidy: {error}");
                ExitCode::FAILURE
            }
        },
        ["picture"] => match picture::write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("picture: {error}");
                ExitCode::FAILURE
            }
        },
        ["sbom", version] => match bill(version) {
            Ok(bill) => {
                println!("{bill:#}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("sbom: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy, picture, or sbom VERSION");
            ExitCode::from(2)
        }
    }
}

/// Returns the crates that are in the program of a version.
///
/// # Errors
/// When cargo fails, or the lock file cannot be read.
fn bill(version: &str) -> Result<serde_json::Value, String> {
    let lock =
        std::fs::read_to_string("Cargo.lock").map_err(|error| format!("Cargo.lock: {error}"))?;
    built_in::bill(&supply::metadata()?, &lock, version)
}

/// Runs every check.
///
/// # Errors
/// When the tree cannot be read.
fn tidy() -> Result<Vec<Finding>, String> {
    let tree = Tree::read()?;
    let mut findings = arrows::check(&arrows::dependencies()?);
    findings.extend(picture::check(&tree));
    findings.extend(modules::check(&tree));
    let metadata = supply::metadata()?;
    findings.extend(supply::check(&tree, &metadata)?);
    findings.extend(built_in::check(&tree, &metadata));
    findings.extend(words::check(&tree));
    findings.extend(sources::check(&tree));
    findings.extend(paths::check(&tree));
    findings.extend(references::check(&tree));
    findings.extend(invariants::check(&tree));
    findings.extend(invariants::check_security(&tree));
    findings.sort();
    Ok(findings)
}

fn report(findings: &[Finding]) -> ExitCode {
    for Finding { file, line, what } in findings {
        match line {
            0 => println!("{file}: {what}"),
            _ => println!("{file}:{line}: {what}"),
        }
    }
    match findings.len() {
        0 => {
            println!("tidy: ok");
            ExitCode::SUCCESS
        }
        number => {
            println!("tidy: {number} findings");
            ExitCode::FAILURE
        }
    }
}
