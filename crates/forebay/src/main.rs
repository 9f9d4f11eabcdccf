//! The one binary: `forebay daemon` owns the caches, every other verb talks to it or works on a
//! device that no daemon uses.
//!
//! - `cli`: the verbs, declared once for the parser, help, man pages and completions; one file per
//!   verb, with its arguments
//! - `values`: parsers of arguments
//! - `client`: the client of the daemon
//! - `misaligned`: partitions that do not begin where blocks do
//! - `process`: the state of a daemon that does not answer
//! - `sparse`: files whose filesystem is too small for them
//! - `output`: tables and other text for people
//! - `exit`: reports errors as one line and an exit code
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    clippy::disallowed_methods,
    reason = "outside the data path, the binary owns its threads and its time"
)]

mod cli;
mod client;
mod exit;
mod misaligned;
mod output;
mod paths;
mod process;
mod sparse;
mod values;

fn main() {
    let code = match cli::parse() {
        Ok(cli) => exit::code(cli::run(cli)),
        Err(code) => forebay_daemon::exit_code(code),
    };
    forebay_rbd::exit(code);
}
