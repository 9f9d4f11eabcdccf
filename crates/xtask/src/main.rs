//! Checks of the source tree that the compiler cannot make: `cargo run -p xtask -- tidy`.
//!
//! - [`tree`]: the files under version control
//! - [`supply`], [`built_in`]: third-party crates, their licences, and why they are in the program
//! - [`arrows`]: allowed dependencies between crates
//! - [`picture`]: the picture of the crates, which `cargo run -p xtask -- picture` writes
//! - [`modules`]: allowed imports between modules of a crate
//! - [`sources`]: rules for every source file
//! - [`paths`]: no path of a developer's machine anywhere
//! - [`prose`], [`names`]: comments and names, counted against [`ceilings`] that may only fall
//! - [`pages`]: lines of prose have at most 100 columns, and decisions are listed by their titles
//! - [`references`]: files and headings that pages refer to exist
//! - [`invariants`]: every invariant has its line in `docs/testing.md`, and the tests it names
//!   exist
#![forbid(unsafe_code)]

mod arrows;
mod built_in;
mod ceilings;
mod invariants;
mod modules;
mod names;
mod occurrence;
mod pages;
mod paths;
mod picture;
mod prose;
mod references;
mod sources;
mod supply;
mod tree;
mod words;

use std::process::ExitCode;

use tree::Tree;

/// A fault of the tree.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The file, relative to the root of the tree.
    pub(crate) file: String,
    /// The line, from 1; 0 for the whole file.
    pub(crate) line: usize,
    /// The fault, and the remedy.
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
        ["sbom", version] => finish("sbom", bill(version).map(|bill| println!("{bill:#}"))),
        ["picture"] => finish("picture", picture::write()),
        ["lower"] => finish("lower", Tree::read().and_then(|tree| ceilings::lower(&tree))),
        ["places", ref crates @ ..] => finish("places", list(crates)),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- tidy, picture, lower, places [CRATE...], or sbom VERSION"
            );
            ExitCode::from(2)
        }
    }
}

/// Prints the places of all measures in some crates, or in all.
///
/// # Errors
/// When the tree cannot be read.
fn list(crates: &[&str]) -> Result<(), String> {
    for place in ceilings::places(&Tree::read()?) {
        if crates.is_empty() || crates.contains(&occurrence::crate_of(&place.file)) {
            println!("{}:{}: {} of {}", place.file, place.line, place.measure, place.key);
        }
    }
    Ok(())
}

fn finish(command: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{command}: {error}");
            ExitCode::FAILURE
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
    findings.extend(ceilings::check(&tree)?);
    findings.extend(words::check(&tree));
    findings.extend(sources::check(&tree));
    findings.extend(paths::check(&tree));
    findings.extend(pages::check(&tree));
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
