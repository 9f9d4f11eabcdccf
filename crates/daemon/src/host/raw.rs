//! Serves a device without a cache: a baseline for benchmarks, through the same front end and on
//! the same lanes.

use std::rc::{Rc, Weak};
use std::str::FromStr;

use forebay_admin::VolumeName;
use forebay_core::{IoError, Op, SECTOR_SIZE, Sectors, Survives};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceSpec, IoBuf, IoData, Queue,
};
use forebay_engine::{BlockService, Completion, CompletionSink, Extent, Request};
use forebay_lane::Lane;

/// A device and its export name, written `NAME=DEVICE`.
#[derive(Clone, Debug)]
pub struct RawExport {
    /// The name of the export.
    pub name: VolumeName,
    /// The device.
    pub device: DeviceSpec,
}

impl FromStr for RawExport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, device) = text.split_once('=').ok_or("write NAME=DEVICE")?;
        let name: VolumeName = name.parse().map_err(|error| format!("{error}"))?;
        let device: DeviceSpec = device.parse().map_err(|error| format!("{error}"))?;
        Ok(RawExport { name, device })
    }
}

/// Returns the names of exports.
pub(crate) fn names(exports: &[RawExport]) -> impl Iterator<Item = &VolumeName> {
    exports.iter().map(|export| &export.name)
}

/// A device on one lane.
pub(super) struct RawTarget {
    lane: Rc<Lane>,
    queue: Queue,
    size: u64,
    unit: u64,
    read_only: bool,
    sectors: Sectors,
    own: Weak<RawTarget>,
}

impl RawTarget {
    /// Creates a target on the lane's `queue` to `device`.
    pub(super) fn new(lane: Rc<Lane>, queue: Queue, device: &dyn Device) -> Rc<Self> {
        let (size, unit) = (device.size(), device.logical_block());
        let (read_only, sectors) = (device.for_reading_only(), device.sectors());
        Rc::new_cyclic(|own| RawTarget {
            lane,
            queue,
            size,
            unit,
            read_only,
            sectors,
            own: own.clone(),
        })
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        let whole = offset.is_multiple_of(self.unit) && len.is_multiple_of(self.unit);
        match op {
            Op::Flush => Ok(()),
            Op::Write | Op::WriteZeroes if !inside => Err(IoError::NoSpace),
            _ if inside && whole => Ok(()),
            _ => Err(IoError::Invalid),
        }
    }

    /// Zeroes a range, by a discard if holes are allowed and the device supports them.
    async fn zero(&self, offset: u64, len: u64, fast: bool, no_hole: bool) -> DeviceDone {
        if !no_hole {
            let done = self.queue.run(DeviceOp::Discard { offset, len }).await;
            let refused = |error: &DeviceError| error.kind == DeviceErrorKind::NotSupported;
            if fast || !done.result.as_ref().is_err_and(refused) {
                return done;
            }
        }
        self.queue.run(DeviceOp::WriteZeroes { offset, len }).await
    }

    async fn serve(&self, request: Request) -> Completion {
        let Request { tag, op, offset, len, survives, fast, no_hole, data } = request;
        // Only holes are known to be fast.
        let slow = op == Op::WriteZeroes && fast && no_hole;
        let checked = if slow { Err(IoError::NotSupported) } else { self.check(op, offset, len) };
        if let Err(error) = checked {
            return Completion { tag, result: Err(error), data };
        }
        let op = match (op, data) {
            (Op::Read, data) => {
                let buf = data.unwrap_or_else(|| IoBuf::for_overwrite(len as usize));
                DeviceOp::Read { offset, buf }
            }
            (Op::Write, Some(data)) => DeviceOp::Write { offset, data: IoData::Owned(data) },
            (Op::Write, None) => {
                return Completion { tag, result: Err(IoError::Invalid), data: None };
            }
            (Op::Flush, _) => DeviceOp::Sync,
            (Op::Discard, _) => DeviceOp::Discard { offset, len },
            (Op::WriteZeroes, _) => DeviceOp::WriteZeroes { offset, len },
            (Op::Prefetch, data) => return Completion { tag, result: Ok(()), data },
        };
        let advice = matches!(op, DeviceOp::Discard { .. });
        let done = match op {
            DeviceOp::WriteZeroes { offset, len } => self.zero(offset, len, fast, no_hole).await,
            op => self.queue.run(op).await,
        };
        let mut result = done.result.map_err(|error| (error.kind, error));
        if advice && matches!(result, Err((DeviceErrorKind::NotSupported, _))) {
            // A discard is a hint: the data may stay.
            result = Ok(());
        }
        if result.is_ok() && survives == Survives::PowerLoss {
            result = self.queue.sync().await.map_err(|error| (error.kind, error));
        }
        let result = result.map_err(|(kind, error)| {
            tracing::debug!(%error, "a request to a raw device fails");
            match kind {
                DeviceErrorKind::NotSupported if fast => IoError::NotSupported,
                DeviceErrorKind::ReadOnly => IoError::ReadOnly,
                _ => IoError::Io,
            }
        });
        Completion { tag, result, data: done.buf }
    }
}

impl BlockService for RawTarget {
    fn size(&self) -> u64 {
        self.size / SECTOR_SIZE * SECTOR_SIZE
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn sectors(&self) -> Sectors {
        self.sectors
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_now(&self, _: u64, _: &mut [u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn write_now(&self, _: u64, _: &[u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        // The target is reachable only through its `Rc`, so it is alive.
        let Some(this) = self.own.upgrade() else { return };
        let sink = sink.clone();
        self.lane.spawn(async move { sink.complete(this.serve(request).await) });
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let len = len.min(self.size().saturating_sub(offset));
        vec![Extent { len, hole: false, zero: false }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_written_name_equals_device() {
        let export: RawExport = "disk=hdd7200:/a=b".parse().expect("good");
        assert_eq!(export.name.as_str(), "disk");
        assert_eq!(export.device.to_string(), "hdd7200:/a=b");
        for bad in ["", "disk", "=/a", "disk=", "a/b=/c", "disk=ram:"] {
            assert!(bad.parse::<RawExport>().is_err(), "{bad}");
        }
    }
}
