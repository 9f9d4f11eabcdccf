//! `forebay man`: the manual pages, from the same declarations as the parser.

use std::path::Path;

use forebay_admin::ApiError;

use crate::cli;
use crate::exit::Outcome;
use crate::output::print_bytes;
use crate::paths::io_error;

/// Prints the main page, or writes all pages into a directory.
pub(super) fn run(dir: Option<&Path>) -> Outcome {
    match dir {
        Some(dir) => clap_mangen::generate_to(cli::command(), dir)
            .map_err(|error| io_error("cannot write the pages into", dir, &error)),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(cli::command())
                .render(&mut page)
                .map_err(|error| ApiError::failed(error.to_string()))?;
            print_bytes(&page)
        }
    }
}
