//! State of an origin at an orderly stop, in addition to its fingerprint.
//!
//! The state is stored as parts of the identity with separate codes: releases that do not know the
//! codes compare them with nothing, and remove them when they start the volume, because they
//! determine the identity again after an orderly stop.

use forebay_core::identity::MAX_IDENTITY_PARTS;
use forebay_core::{Evidence, Identity};

use super::IdentityParts;

/// Code of the evidence.
const EVIDENCE: u8 = 128;
/// Code of the digest of starts.
const STARTS: u8 = 129;

/// State of an origin at an orderly stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The origin system's evidence about writes to it.
    pub evidence: Option<Evidence>,
    /// Digest of the starts of its partitions and of the filesystems in them.
    pub starts: Option<u128>,
}

impl Left {
    /// Returns whether the state is unknown.
    pub fn is_empty(&self) -> bool {
        *self == Left::default()
    }

    /// Returns the parts of an identity and of this state, as they are stored.
    pub(super) fn beside(&self, identity: Option<&Identity>) -> IdentityParts {
        let parts = identity.into_iter().flat_map(Identity::parts);
        let mut parts: IdentityParts = parts.map(|(code, text)| (code, text.to_owned())).collect();
        let evidence = self.evidence.as_ref().map(|evidence| (EVIDENCE, evidence.to_string()));
        let starts = self.starts.map(|digest| (STARTS, format!("1 {digest:032x}")));
        parts.extend(evidence.into_iter().chain(starts));
        parts.truncate(MAX_IDENTITY_PARTS);
        parts
    }

    /// Extracts this state from stored parts; the others are the identity. Returns `None` if the
    /// parts are impossible.
    pub(super) fn taken_from(parts: IdentityParts) -> Option<(Self, Option<Identity>)> {
        // All parts obey the same limits.
        Identity::from_parts(parts.clone())?;
        let mut left = Left::default();
        let mut rest = Vec::new();
        for (code, text) in parts {
            match code {
                // Parts that a later release has stored are unknown to this one, and are not kept.
                EVIDENCE => left.evidence = text.parse().ok(),
                STARTS => {
                    let digest = text.strip_prefix("1 ").filter(|digest| digest.len() == 32);
                    left.starts = digest.and_then(|digest| u128::from_str_radix(digest, 16).ok());
                }
                _ => rest.push((code, text)),
            }
        }
        let identity = match rest.is_empty() {
            true => None,
            false => Some(Identity::from_parts(rest)?),
        };
        Some((left, identity))
    }
}
