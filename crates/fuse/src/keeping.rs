//! Files that outlive the daemon: the service manager keeps their connections, and the next daemon
//! takes them over. The kernel then sends it the requests again that the former daemon had taken
//! and not answered.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_device::fuse::resend;
use forebay_engine::DescriptorStore;
use forebay_export::{Identify, VolumeIdentity};

use crate::inherited::{CONNECTION, LeftExport};

/// First word of the labels in the store, which other front ends use too.
const FUSE: &str = "fuse";
/// The first version of Linux that sends requests again to another server. With older ones, users
/// would wait for ever.
const RESENDS: (u32, u32) = (6, 9);

/// See the module.
pub(crate) struct Keeping {
    /// `None`: no service manager keeps descriptors, or the kernel cannot resume a connection.
    store: Option<Arc<dyn DescriptorStore>>,
    identify: Identify,
}

impl Keeping {
    pub(crate) fn new(store: Option<Arc<dyn DescriptorStore>>, identify: Identify) -> Self {
        let able = release().is_some_and(|release| release >= RESENDS);
        Keeping { store: store.filter(|_| able), identify }
    }

    /// Gives the connections of a volume to the service manager. Returns whether it keeps them. It
    /// does not if RAM holds data that the volume has acknowledged as durable.
    pub(crate) fn keep(&self, volume: &str, connections: &[OwnedFd]) -> bool {
        let (Some(store), Some(identity)) = (&self.store, self.lasting(volume)) else {
            return false;
        };
        let label = [FUSE, CONNECTION, volume, &identity];
        let all = connections.iter().all(|connection| store.keep(&label, connection.as_fd()));
        if !all {
            store.forget(&label);
        }
        all
    }

    /// Returns the identity of a volume for the next daemon.
    fn lasting(&self, volume: &str) -> Option<String> {
        (self.identify)(volume).and_then(VolumeIdentity::lasting)
    }

    /// Has the connections of a volume closed.
    pub(crate) fn forget(&self, volume: &str) {
        if let Some(identity) = self.lasting(volume) {
            self.forget_former(volume, &identity);
        }
    }

    /// Forgets, like [`Keeping::forget`], the connections of the volume that had the name under a
    /// former daemon.
    pub(crate) fn forget_former(&self, volume: &str, identity: &str) {
        if let Some(store) = &self.store {
            store.forget(&[FUSE, CONNECTION, volume, identity]);
        }
    }

    /// Prepares a file of a former daemon for being served again. Returns `false` if it cannot be
    /// served, for example because another volume has the name by now.
    pub(crate) fn revive(&self, volume: &str, left: &LeftExport) -> bool {
        let Some(connection) = left.connections.first() else { return false };
        let own = (self.identify)(volume);
        let is_own = match left.kept {
            true => own.and_then(VolumeIdentity::lasting) == left.identity,
            false => own.map(|own| own.text) == left.identity,
        };
        if !is_own {
            tracing::error!(
                volume,
                "a file of the former daemon belongs to another volume of this name; its users get errors"
            );
            return false;
        }
        if !left.kept {
            // A daemon that hands over leaves requests unanswered only if the kernel can send them
            // again.
            if let Err(error) = resend(connection) {
                tracing::debug!(volume, %error, "the kernel does not give requests again");
            }
            return true;
        }
        // This must precede the first receive: a request that was received already would be
        // executed twice.
        let resent = resend(connection);
        if let Err(error) = &resent {
            tracing::error!(volume, %error, "the kernel does not give the requests of the former daemon again");
        }
        resent.is_ok()
    }
}

/// Returns the first two numbers of the kernel's version.
fn release() -> Option<(u32, u32)> {
    let name = rustix::system::uname();
    parse(name.release().to_str().ok()?)
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use forebay_device::loop_device::LoopNumber;

    use super::*;
    use crate::marks::Mark;

    #[test]
    fn a_file_is_served_again_for_its_own_volume_only() {
        for (lasts, kept) in [(true, false), (false, false), (false, true)] {
            let identify = move |volume: &str| {
                (volume == "v").then(|| VolumeIdentity { text: "of v".to_owned(), lasts })
            };
            let keeping = Keeping::new(None, Box::new(identify));
            let revives = |volume: &str, identity: Option<&str>| {
                let left = LeftExport {
                    mark: Mark::of(LoopNumber(3)),
                    link: None,
                    connections: vec![
                        std::fs::File::open("/dev/null").expect("there is one").into(),
                    ],
                    identity: identity.map(str::to_owned),
                    kept,
                };
                keeping.revive(volume, &left)
            };
            assert_eq!(revives("v", Some("of v")), !kept, "what was kept outlives the program");
            assert!(!revives("v", Some("of another")) && !revives("v", None));
            assert!(!revives("w", Some("of v")));
        }
    }

    #[test]
    fn versions_of_the_kernel_are_compared_as_numbers() {
        for (release, expected) in [
            ("6.12.95+deb12-amd64", Some((6, 12))),
            ("6.9-rc1", Some((6, 9))),
            ("6.8.0-31-generic", Some((6, 8))),
            ("10.0", Some((10, 0))),
            ("x", None),
            ("6", None),
        ] {
            assert_eq!(parse(release), expected, "{release}");
        }
        assert!(RESENDS <= (6, 12) && (6, 8) < RESENDS && RESENDS < (10, 0));
        assert!(release().is_some());
    }
}
