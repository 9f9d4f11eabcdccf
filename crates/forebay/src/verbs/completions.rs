//! `forebay completions`: a completion script for a shell.

use crate::cli;
use crate::exit::Outcome;
use crate::output::print_bytes;

/// Prints the script.
pub(super) fn run(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "forebay", &mut script);
    print_bytes(&script)
}
