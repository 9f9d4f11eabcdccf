//! Names of images of RBD, the block storage of Ceph: `rbd:POOL/IMAGE` or
//! `rbd:POOL/NAMESPACE/IMAGE`.
//!
//! Parameters behind `?`, with `&` in between: `conf=PATH`, the cluster's configuration, by default
//! that of the system; `id=USER`, the name of the client without `client.`, by default `admin`;
//! `timeout=SECONDS`, the time limit of a request. Characters with a meaning here are written as
//! `%` and two hex digits.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::nbd_uri::{percent_decode, percent_encode, seconds};

const SCHEME: &str = "rbd:";
/// Default time limit, in seconds.
const TIMEOUT: u64 = 60;

/// An image of RBD, see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The configuration file; `None` for `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The client name without `client.`; `None` for `admin`.
    pub user: Option<String>,
    /// Time limit of a request.
    pub timeout: Duration,
}

/// Why a text is not the name of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RbdNameError {
    /// The form is wrong.
    #[error("{0}; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE")]
    Form(&'static str),
    /// An unknown parameter.
    #[error("'{0}' is not a parameter of an image of RBD; choose conf, id or timeout")]
    Parameter(String),
    /// A time limit that is not a number in the valid range.
    #[error("'{0}' is not a time limit; write a number of seconds from 1 to 86400")]
    Seconds(String),
}

/// Decodes a part of a name, which must not be empty.
fn decode(text: &str) -> Result<String, RbdNameError> {
    let bytes =
        percent_decode(text).ok_or(RbdNameError::Form("a percent sign needs two hex digits"))?;
    match String::from_utf8(bytes) {
        Ok(part) if !part.is_empty() && !part.contains('\0') => Ok(part),
        _ => Err(RbdNameError::Form("a part of the name is empty, not UTF-8, or has a zero byte")),
    }
}

impl RbdName {
    /// Returns whether a text has the form of an image's name.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Returns the same image with an absolute path of the configuration.
    ///
    /// # Errors
    /// The process has no working directory.
    pub(crate) fn absolute(&self) -> std::io::Result<Self> {
        let conf = self.conf.as_deref().map(std::path::absolute).transpose()?;
        Ok(RbdName { conf, ..self.clone() })
    }

    /// Returns whether both names lead to the same image, as far as names can show.
    pub fn same_image(&self, other: &Self) -> bool {
        let of = |name: &Self| {
            let parts = [&name.pool, &name.namespace, &name.image].map(String::clone);
            (parts, name.conf.clone())
        };
        of(self) == of(other)
    }

    fn parameter(&mut self, text: &str) -> Result<(), RbdNameError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match name {
            "conf" => {
                let bytes =
                    percent_decode(value).filter(|path| !path.is_empty() && !path.contains(&0));
                let path = bytes.ok_or(RbdNameError::Form("the path of conf cannot be used"))?;
                self.conf = Some(PathBuf::from(std::ffi::OsString::from_vec(path)));
            }
            "id" => self.user = Some(decode(value)?),
            "timeout" => {
                let bad = || RbdNameError::Seconds(value.chars().take(40).collect());
                self.timeout = seconds(value).ok_or_else(bad)?;
            }
            _ => return Err(RbdNameError::Parameter(name.chars().take(40).collect())),
        }
        Ok(())
    }
}

impl FromStr for RbdName {
    type Err = RbdNameError;

    fn from_str(text: &str) -> Result<Self, RbdNameError> {
        let rest = text.strip_prefix(SCHEME).ok_or(RbdNameError::Form("it is no image"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(RbdNameError::Form("a snapshot cannot be written to"));
        }
        let parts = place.split('/').map(decode).collect::<Result<Vec<_>, _>>()?;
        let (pool, namespace, image) = match parts.as_slice() {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, namespace.as_str(), image),
            _ => return Err(RbdNameError::Form("the name has no two or three parts")),
        };
        let mut name = RbdName {
            pool: pool.clone(),
            namespace: namespace.to_owned(),
            image: image.clone(),
            conf: None,
            user: None,
            timeout: Duration::from_secs(TIMEOUT),
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            name.parameter(parameter)?;
        }
        Ok(name)
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = SCHEME.to_owned();
        for part in [&self.pool, &self.namespace].into_iter().filter(|part| !part.is_empty()) {
            percent_encode(&mut text, part.as_bytes(), b"");
            text.push('/');
        }
        percent_encode(&mut text, self.image.as_bytes(), b"");
        let mut mark = '?';
        let mut add = |text: &mut String, name: &str, value: &[u8]| {
            text.push(std::mem::replace(&mut mark, '&'));
            text.push_str(name);
            text.push('=');
            percent_encode(text, value, b"/");
        };
        if let Some(path) = &self.conf {
            add(&mut text, "conf", path.as_os_str().as_bytes());
        }
        if let Some(user) = &self.user {
            add(&mut text, "id", user.as_bytes());
        }
        let seconds = self.timeout.as_secs();
        if seconds != TIMEOUT {
            add(&mut text, "timeout", seconds.to_string().as_bytes());
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_are_read_and_written_back() {
        for text in [
            "rbd:pool/image",
            "rbd:pool/space/image",
            "rbd:a%40b/c%2Fd%3F",
            "rbd:p/i?conf=/etc/ceph/a%26b.conf&id=forebay&timeout=7",
            "rbd:p/i?id=u",
        ] {
            let name: RbdName = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(name.to_string(), text);
            assert!(RbdName::is_one(text));
        }
        let name: RbdName = "rbd:p/n/i?timeout=60&conf=c".parse().expect("good");
        let parts = (name.pool.as_str(), name.namespace.as_str(), name.image.as_str());
        assert_eq!(parts, ("p", "n", "i"));
        assert!(name.absolute().expect("a folder").conf.is_some_and(|path| path.is_absolute()));
        for (other, same) in [
            ("rbd:p/n/i?conf=c&id=x&timeout=9", true),
            ("rbd:p/n/i?conf=d", false),
            ("rbd:p/i?conf=c", false),
        ] {
            assert_eq!(name.same_image(&other.parse().expect("good")), same, "{other}");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        for text in [
            "rbd:",
            "rbd:image",
            "rbd:/image",
            "rbd:pool/",
            "rbd:a/b/c/d",
            "rbd:pool/image@snapshot",
            "rbd:p/i%zz",
            "rbd:p/i%00",
            "rbd:p/i?conf=",
            "rbd:p/i?id=",
        ] {
            assert!(matches!(text.parse::<RbdName>(), Err(RbdNameError::Form(_))), "{text}");
        }
        for text in ["rbd:p/i?timeout=0", "rbd:p/i?timeout=", "rbd:p/i?timeout=86401"] {
            assert!(matches!(text.parse::<RbdName>(), Err(RbdNameError::Seconds(_))), "{text}");
        }
        let unknown = "rbd:p/i?key=x".parse::<RbdName>();
        assert_eq!(unknown, Err(RbdNameError::Parameter("key".to_owned())));
    }
}
