//! The operations of one queue, and the checks that every queue makes.

use std::sync::Arc;

use crate::api::{DeviceError, DeviceErrorKind, DeviceOp, OpId};

/// Operations in flight by [`OpId`]. Slots are reused under a new id.
pub struct OpTable<T> {
    entries: Vec<TableEntry<T>>,
    free: Vec<u32>,
}

struct TableEntry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for OpTable<T> {
    fn default() -> Self {
        OpTable { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> OpTable<T> {
    /// Adds an operation.
    pub fn add(&mut self, value: T) -> OpId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push(TableEntry { generation: 0, value: None });
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        OpId(u64::from(entry.generation) << 32 | u64::from(index))
    }

    fn entry(&mut self, id: OpId) -> Option<&mut TableEntry<T>> {
        let entry = self.entries.get_mut(id.0 as u32 as usize)?;
        (u64::from(entry.generation) == id.0 >> 32).then_some(entry)
    }

    /// Returns the operation, if it is in the table.
    pub fn get_mut(&mut self, id: OpId) -> Option<&mut T> {
        self.entry(id)?.value.as_mut()
    }

    /// Removes the operation; its id becomes invalid.
    pub fn take(&mut self, id: OpId) -> Option<T> {
        let entry = self.entry(id)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.0 as u32);
        Some(value)
    }

    /// Returns the ids of all operations.
    pub fn ids(&self) -> impl Iterator<Item = OpId> {
        let there = self.entries.iter().enumerate().filter(|(_, entry)| entry.value.is_some());
        there.map(|(index, entry)| OpId(u64::from(entry.generation) << 32 | index as u64))
    }

    /// Removes all operations.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().filter_map(|entry| entry.value)
    }
}

/// The properties of a device that checks and error messages need.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: Arc<str>,
    pub(crate) size: u64,
    pub(crate) logical_block: u64,
}

impl Shape {
    /// Returns the error of a failed operation on this device.
    pub(crate) fn error(
        &self,
        kind: DeviceErrorKind,
        what: &'static str,
        offset: u64,
        cause: impl Into<Arc<str>>,
    ) -> DeviceError {
        DeviceError { kind, device: self.name.clone(), what, offset, cause: cause.into() }
    }

    /// Checks that `len` bytes at `offset` are inside the device and in whole logical blocks.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Invalid`], with the reason.
    pub(crate) fn check(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<(), DeviceError> {
        let cause = if !offset.is_multiple_of(self.logical_block)
            || !len.is_multiple_of(self.logical_block)
        {
            format!("{len} bytes are not in whole blocks of {} bytes", self.logical_block)
        } else if offset.checked_add(len).is_none_or(|end| end > self.size) {
            format!("{len} bytes reach beyond the end of the device at {}", self.size)
        } else {
            return Ok(());
        };
        Err(self.error(DeviceErrorKind::Invalid, what, offset, cause))
    }

    /// [`Shape::check`] for an operation.
    pub(crate) fn check_op(&self, op: &DeviceOp) -> Result<(), DeviceError> {
        let Some(range) = op.range() else { return Ok(()) };
        self.check(op.what(), range.start, range.end - range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_ended_operations_are_not_valid() {
        let mut table = OpTable::default();
        let first = table.add(1);
        let second = table.add(2);
        assert_eq!(table.take(first), Some(1));
        assert_eq!(table.take(first), None);
        let third = table.add(3);
        assert_ne!(first, third);
        assert_eq!(table.get_mut(first), None);
        assert_eq!((table.take(second), table.take(third)), (Some(2), Some(3)));
        assert_eq!(table.entries.len(), 2);
        assert_eq!(table.take(OpId(99)), None);
    }

    #[test]
    fn ranges_are_checked_at_every_edge() {
        let shape = Shape { name: "x".into(), size: 8192, logical_block: 4096 };
        for (offset, len, good) in [
            (0, 0, true),
            (0, 8192, true),
            (4096, 4096, true),
            (8192, 0, true),
            (0, 4097, false),
            (512, 4096, false),
            (4096, 8192, false),
            (8192, 4096, false),
            (u64::MAX - 4095, 4096, false),
        ] {
            let checked = shape.check("read", offset, len);
            assert_eq!(checked.is_ok(), good, "{len} at {offset}");
            assert!(checked.err().is_none_or(|error| error.kind == DeviceErrorKind::Invalid));
        }
    }
}
