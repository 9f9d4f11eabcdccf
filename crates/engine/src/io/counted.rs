//! Appends that are counted among the dirty blocks of their volume.

use forebay_store::{Appended, Class, Entry, Version};

use crate::lane::LaneVolume;

/// Appends versions of a volume's blocks. Dirty ones are counted before another task can clean
/// them, so that the counts never miss a dirty block.
#[derive(Clone, Copy)]
pub(crate) struct CountedAppends<'a>(pub(crate) &'a LaneVolume);

impl CountedAppends<'_> {
    /// Appends a version: `copy` writes the payload into its place.
    #[inline]
    pub(crate) fn append(
        self,
        version: Version<'_>,
        class: Class,
        copy: impl FnOnce(&mut [u8]),
    ) -> Appended {
        let (block, dirty) = (version.block, version.dirty);
        let count = |old: Option<&Entry>| self.0.volume.appended(self.0.lane(), block, old, dirty);
        self.0.store.append_counted(version, class, copy, count)
    }

    /// Like [`CountedAppends::append`] with the whole payload at hand.
    #[inline]
    pub(crate) fn append_whole(
        self,
        version: Version<'_>,
        class: Class,
        payload: &[u8],
    ) -> Appended {
        let (block, dirty) = (version.block, version.dirty);
        let count = |old: Option<&Entry>| self.0.volume.appended(self.0.lane(), block, old, dirty);
        self.0.store.append_whole_counted(version, class, payload, count)
    }
}
