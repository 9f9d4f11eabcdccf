//! The host over the engine.

use std::sync::Arc;

use forebay_admin::ApiError;

use super::host_api::Host;
use super::nbd_address::NbdAddress;

/// Sets up lanes and front ends.
///
/// # Errors
/// When an address for NBD is in use, or the system has no threads or rings left.
pub(crate) fn open(_lanes: u32, _nbd: &[NbdAddress]) -> Result<Arc<dyn Host>, ApiError> {
    Ok(Arc::new(unlinked::Unlinked))
}

/// A host without a data path: it serves nothing, and says so.
mod unlinked {
    use forebay_admin::{ApiError, Settings, VolumeName, VolumeReport};

    use crate::daemon::host_api::{Definition, Host};
    use crate::daemon::operations::Work;

    /// See the module.
    pub(super) struct Unlinked;

    fn unlinked() -> Result<(), ApiError> {
        Err(ApiError::failed("this build serves no volumes: the engine is not linked"))
    }

    impl Host for Unlinked {
        fn lanes(&self) -> u32 {
            0
        }

        fn create(&self, _: &Definition, _: bool, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn start(&self, _: &Definition, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn stop(&self, _: &VolumeName, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn set(&self, _: &VolumeName, _: &Settings, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn flush(&self, _: &VolumeName, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn delete(&self, _: &Definition, _: bool, _: &Work) -> Result<(), ApiError> {
            unlinked()
        }

        fn report(&self, _: &VolumeName) -> Option<VolumeReport> {
            None
        }

        fn shut_down(&self, _: &Work) -> Result<(), ApiError> {
            Ok(())
        }
    }
}
