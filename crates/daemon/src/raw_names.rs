//! The names of exports that are no volumes. Clients find both by name, so no volume may have one
//! of these.

use std::collections::BTreeSet;

use forebay_admin::{ApiError, ErrorKind, VolumeName};

/// The names, none of which is that of a volume.
#[derive(Debug, Default)]
pub(crate) struct RawNames(BTreeSet<VolumeName>);

impl RawNames {
    /// Takes names for exports beside `volumes`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: one name is given twice, or a volume has it.
    pub(crate) fn new<'a>(
        raw: impl IntoIterator<Item = &'a VolumeName>,
        volumes: &[VolumeName],
    ) -> Result<Self, ApiError> {
        let mut names = BTreeSet::new();
        for name in raw {
            let why = if volumes.contains(name) {
                format!(
                    "there is a volume '{name}', and clients could not tell the two apart; choose another name"
                )
            } else if !names.insert(name.clone()) {
                format!("the name '{name}' is given twice; choose another name")
            } else {
                continue;
            };
            return Err(ApiError::invalid("--export-raw", why));
        }
        Ok(RawNames(names))
    }

    /// Checks that a volume may have a name.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`].
    pub(crate) fn check_free(&self, name: &VolumeName) -> Result<(), ApiError> {
        if !self.0.contains(name) {
            return Ok(());
        }
        let message = format!(
            "name: the daemon exports a device as '{name}' (--export-raw); choose another name"
        );
        Err(ApiError::new(ErrorKind::Refused, message).about("name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_volume_or_of_another_export() {
        let names = |names: &[&str]| -> Vec<VolumeName> {
            names.iter().map(|name| name.parse().expect("valid")).collect()
        };
        let volumes = names(&["v", "w"]);
        for refused in [&["v"][..], &["x", "w"], &["x", "y", "x"]] {
            let error = RawNames::new(&names(refused), &volumes).expect_err("taken");
            let field = error.field.as_deref();
            assert_eq!((error.kind, field), (ErrorKind::Invalid, Some("--export-raw")));
        }
        let raw = RawNames::new(&names(&["x", "y"]), &volumes).expect("free");
        for (name, free) in [("x", false), ("y", false), ("v", true), ("z", true)] {
            assert_eq!(raw.check_free(&names(&[name])[0]).is_ok(), free, "{name}");
        }
    }
}
