//! Places of the habits that are counted.

/// A place where a habit was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Occurrence {
    /// The name of its measure.
    pub(crate) measure: &'static str,
    /// The crate, or the name of the type.
    pub(crate) key: String,
    /// The file, relative to the root of the tree.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// The crate of a file: the folder below `crates`, or the first folder.
pub(crate) fn crate_of(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_crate_of_their_folder() {
        assert_eq!(crate_of("crates/a/src/lib.rs"), "a");
        assert_eq!(crate_of("fuzz/fuzz_targets/x.rs"), "fuzz");
    }
}
