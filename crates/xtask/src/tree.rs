//! The files under version control, and those that are about to be.

use std::path::Path;
use std::process::Command;

/// A text file.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Relative to the root, with `/` between its parts.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl TextFile {
    /// The lines, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Whether the name ends in `.extension`.
    pub(crate) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Every text file of the tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The files, in the order of their paths.
    pub(crate) files: Vec<TextFile>,
}

impl Tree {
    /// Reads the tree of the present directory.
    ///
    /// # Errors
    /// When git cannot list the files, or one of them cannot be read.
    pub(crate) fn read() -> Result<Self, String> {
        let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let output = Command::new("git")
            .args(listing)
            .output()
            .map_err(|error| format!("git cannot be run: {error}"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("git ls-files failed: {}", why.trim()));
        }
        let names = String::from_utf8_lossy(&output.stdout);
        let mut files = Vec::new();
        for path in names.split('\0').filter(|path| !path.is_empty()) {
            // A file that was removed is listed until the removal is staged.
            let Ok(metadata) = std::fs::symlink_metadata(path) else { continue };
            if !metadata.is_file() {
                continue;
            }
            let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(TextFile { path: path.to_owned(), text });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// The file of this path.
    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[cfg(test)]
impl Tree {
    /// A tree made up for a test.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| TextFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Tree { files: files.iter().map(file).collect() }
    }
}
