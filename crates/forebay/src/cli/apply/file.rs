//! Reads the file that declares the volumes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use forebay_admin::declared::{self, Declared};
use forebay_admin::{ApiError, ErrorKind};

use super::plan::Wanted;
use crate::paths::io_error;
use forebay_daemon::definition;

/// Largest file, in bytes: 4096 volumes with a few lines each.
const MOST: u64 = 4 << 20;

/// Reads and checks a file.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the line and the key; or the file cannot be read.
pub(super) fn read(path: &Path) -> Result<Vec<Wanted>, ApiError> {
    let invalid =
        |what: String| ApiError::new(ErrorKind::Invalid, format!("{}: {what}", path.display()));
    let metadata = path.metadata().map_err(|error| io_error("cannot open", path, &error))?;
    if !metadata.is_file() {
        return Err(invalid("it is no regular file; name one with --config".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
        .map_err(|error| io_error("cannot read", path, &error))?;
    if bytes.len() as u64 > MOST {
        return Err(invalid(format!("it is over {MOST} bytes; declare volumes only")));
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        invalid(format!("line {line}: it is not UTF-8; write it as such"))
    })?;
    let all = declared::parse(text).map_err(|error| invalid(error.to_string()))?;
    all.into_iter().map(|declared| define(path, declared)).collect()
}

/// Checks the keys of a volume together, as the daemon does when it creates one.
fn define(path: &Path, declared: Declared) -> Result<Wanted, ApiError> {
    match definition(&declared.request) {
        Ok(definition) => Ok(Wanted { declared, definition }),
        Err(mut error) => {
            let line = declared.line_of(error.field.as_deref().unwrap_or_default());
            error.message = format!("{}: line {line}: {}", path.display(), error.message);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn unusable_files_are_refused_in_one_line() {
        let dir = TempDir::new("declared");
        let path = dir.path().join("f");
        let volume = "[volumes.v]\ncache = '/c'\norigin = '/o'\n";
        for (content, part) in [
            (b"[volumes.v]\norigin = '\xff'\n".to_vec(), "line 2: it is not UTF-8"),
            (vec![b'#'; 5 << 20], "over 4194304 bytes"),
            (format!("{volume}dirty_high = 10\n").into_bytes(), "line 1: dirty_low"),
            (format!("{volume}mode = 'wt'\nordered = true\n").into_bytes(), "line 5: ordered"),
            (format!("{volume}alignment = 4096\n").into_bytes(), "line 4: alignment"),
            (b"[volumes.v]\norigin = 'ram:1G'\nram = '1G'\n".to_vec(), "line 2: origin"),
            (b"[volumes.v]\norigin = '/o'\n".to_vec(), "line 1: cache"),
            (b"[volumes.v]\norigin = \"/o\\u0000\"\nram = '1G'\n".to_vec(), "line"),
        ] {
            std::fs::write(&path, &content).expect("writable");
            let error = read(&path).expect_err(part);
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
            assert!(error.message.contains(part) && !error.message.contains('\n'), "{error}");
        }
        for bad in [dir.path().to_owned(), dir.path().join("missing"), "/dev/null".into()] {
            assert_eq!(read(&bad).expect_err("no file").kind, ErrorKind::Invalid);
        }
    }
}
