//! The device that the jobs run on, and whether it may be written to.

use std::path::Path;

use forebay_device::NbdUri;
use forebay_device::nbd_uri::NbdUriError;

use super::remote::{self, Looks};
use crate::error::{LabError, LabResult, usage};
use crate::real::device::{self, Claim, Local};

/// A device as the command line names it.
pub(crate) struct Target {
    name: String,
    engine: String,
    place: Place,
}

enum Place {
    /// A file or a block device, claimed as long as the target is there.
    Local(Local, Option<Claim>),
    /// An NBD export.
    Remote(Looks),
}

impl Target {
    /// Looks what is there. Nothing is changed.
    /// Errors: `Usage`: nothing that could be a device; or a server cannot be reached.
    pub(crate) fn find(name: &str, engine: &str) -> LabResult<Self> {
        let (engine, place) = if NbdUri::is_one(name) {
            let refused = |why: String| usage(format!("--device: '{name}': {why}"));
            let uri: NbdUri = name.parse().map_err(|why: NbdUriError| refused(why.to_string()))?;
            if uri.tls {
                return Err(refused("fio has no TLS".to_owned()));
            }
            ("nbd", Place::Remote(remote::look(&uri, device::HEAD)?))
        } else {
            let local = Local::find("--device", Path::new(name))?;
            // One that is in use cannot be claimed, which need not hinder a reader.
            let claim = local.claim().ok();
            (engine, Place::Local(local, claim))
        };
        Ok(Target { name: name.to_owned(), engine: engine.to_owned(), place })
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        match &self.place {
            Place::Local(local, _) => local.size,
            Place::Remote(looks) => looks.size,
        }
    }

    /// fio's engine for it.
    pub(crate) fn engine(&self) -> &str {
        &self.engine
    }

    /// The variables by which a job file finds it.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let (device, target) = match &self.place {
            Place::Local(local, _) => {
                // To fio a colon separates names.
                let path = local.path().to_string_lossy().replace(':', "\\:");
                (path.clone(), format!("filename={path}"))
            }
            Place::Remote(_) => (self.name.clone(), format!("uri={}", self.name)),
        };
        vec![("ENGINE", self.engine.clone()), ("DEVICE", device), ("TARGET", target)]
    }

    /// Checks that the device may be written to, and changes nothing.
    /// Errors: `AtRisk`: it is in use or holds something, and `destroy` was not asked for; `InUse`:
    /// it is in use, and then `destroy` does not help; `Usage`: it cannot be written to.
    pub(crate) fn check(&self, destroy: bool) -> LabResult<()> {
        let content = match &self.place {
            Place::Local(local, claim) => {
                if let Some(why) = local.user()? {
                    // A device under a mounted filesystem is never overwritten.
                    return Err(if destroy { LabError::InUse(why) } else { LabError::AtRisk(why) });
                }
                if claim.is_none() {
                    local.claim()?;
                }
                local.content()?
            }
            Place::Remote(looks) if looks.read_only => {
                return Err(LabError::Usage(format!(
                    "--device: {} is read-only, and these jobs write",
                    self.name
                )));
            }
            Place::Remote(looks) => device::recognise(&looks.head),
        };
        match content {
            Some(what) if !destroy => Err(LabError::AtRisk(format!(
                "{} holds {what}, which these jobs would overwrite; with --destroy they do",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_a_mistake_on_the_command_line() {
        for bad in [
            "nbd:///x",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
            "nbds://h/x",
            "nbd://h:p/x",
            "nbd://h/%zz",
            "http://a/",
        ] {
            let found = Target::find(bad, "libaio");
            assert_eq!(found.err().map(|error| error.exit_code()), Some(2), "{bad}");
        }
    }
}
