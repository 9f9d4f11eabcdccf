//! vhost-user: a control message, and a guest's memory with a queue in it.

use crate::{memory, mend, mutation};
use forebay_vhost_user::chain::{Buffers, total};
use forebay_vhost_user::config::{REQUEST_MAX, SECTOR, ZEROED_MAX};
use forebay_vhost_user::memory::{ClientAddress, GuestAddress, GuestMemory, RegionPlace};
use forebay_vhost_user::message::{Header, Message, PAYLOAD_MAX, RingAddresses};
use forebay_vhost_user::request::{BlockRequest, GuestOperation, Status};
use forebay_vhost_user::virtqueue::{QueueFeatures, QueueSize, Virtqueue};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Bytes before the guest's memory in an input.
const CHOICES: usize = 4;
/// Bytes of the guest's memory, in two regions with a gap between them.
const BYTES: u64 = 64 << 10;
const GAP: u64 = 4096;
/// Descriptors of the queue, and where its rings are.
const SIZE: u16 = 16;
const AVAILABLE: usize = 256;
const USED: usize = 512;

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = mutation::change(data, size, max_size);
    if !seed.is_multiple_of(8) {
        mend_queue(&mut data[..size]);
    }
    size
}

/// A queue with some requests, most of which refer to descriptors and buffers that are there.
fn mend_queue(data: &mut [u8]) {
    let Some(image) = data.get_mut(CHOICES..) else { return };
    for descriptor in image.chunks_exact_mut(16) {
        descriptor[2..8].fill(0);
        descriptor[10..12].fill(0);
        descriptor[13] = 0;
        descriptor[14] &= 31;
        descriptor[15] = 0;
    }
    mend::put(image, AVAILABLE + 2, &8_u16.to_le_bytes());
    for entry in 0..usize::from(SIZE) {
        mend::put(image, AVAILABLE + 5 + 2 * entry, &[0]);
    }
    mend::put(image, USED + 2, &[0, 0]);
}

thread_local! {
    static GUEST: GuestMemory = guest().expect("memory for a guest");
}

fn guest() -> Result<GuestMemory, Box<dyn std::error::Error>> {
    // Memory of a guest is in memory: other files are refused.
    let file = memfd_create("guest", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, BYTES)?;
    let mut memory = GuestMemory::default();
    for start in [0, BYTES / 2] {
        let guest = GuestAddress(start + if start == 0 { 0 } else { GAP });
        let client = ClientAddress(start);
        let place = RegionPlace { guest, size: BYTES / 2, client, file_offset: start };
        memory.add(place, &file)?;
    }
    Ok(memory)
}

fn check(request: &BlockRequest, buffers: &Buffers, memory: &GuestMemory) {
    for segment in buffers.readable().iter().chain(buffers.writable()) {
        assert!(memory.check(segment.at, segment.len as usize).is_ok(), "a buffer is outside");
    }
    match request.kind {
        GuestOperation::Read { offset, len } | GuestOperation::Write { offset, len } => {
            assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR));
            assert!(len <= REQUEST_MAX);
        }
        GuestOperation::Discard { offset, len }
        | GuestOperation::WriteZeroes { offset, len, .. } => {
            assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR));
            assert!(len <= ZEROED_MAX);
        }
        GuestOperation::Flush | GuestOperation::Id | GuestOperation::Refused(_) => {}
    }
}

/// Serves the queue until it is empty or broken.
fn serve(memory: &GuestMemory, base: u16, features: QueueFeatures) -> Option<()> {
    let addresses = RingAddresses {
        descriptors: ClientAddress(0),
        available: ClientAddress(AVAILABLE as u64),
        used: ClientAddress(USED as u64),
    };
    let size = QueueSize::new(SIZE.into())?;
    let mut queue = Virtqueue::new(size, addresses, features, base, memory).ok()?;
    // An answer may overwrite the rings, and make more requests available.
    for _ in 0..64 {
        if queue.available().ok()? == 0 {
            queue.ask_for_notification().ok()?;
            return Some(());
        }
        let head = queue.take().ok()?;
        assert!(head.0 < SIZE);
        let mut buffers = Buffers::default();
        queue.walk(head, memory, &mut buffers).ok()?;
        let writable = total(buffers.writable());
        let request = BlockRequest::parse(head, buffers.clone(), memory).ok()?;
        check(&request, &buffers, memory);
        let written = request.answer(memory, &[7; 600], Status::Ok).ok()?;
        assert!(u64::from(written) <= writable, "more is written than there is room for");
        queue.put(head, written).ok()?;
        queue.publish().ok()?;
    }
    Some(())
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let Some((choices, image)) = data.split_at_checked(CHOICES) else { return };
    memory::within((1 << 20) + 32 * data.len(), || {
        let payload = image.get(..image.len().min(PAYLOAD_MAX)).unwrap_or_default();
        let header = Header { code: choices[0].into(), need_reply: false, len: payload.len() };
        let _ = Message::parse(header, payload, usize::from(choices[1] & 15));
        GUEST.with(|memory| {
            let whole = memory.window(ClientAddress(0), BYTES / 2).expect("a region");
            let image = image.get(..image.len().min(BYTES as usize / 2)).unwrap_or_default();
            whole.write(0, image).expect("inside");
            whole
                .write(image.len() as u64, &vec![0; BYTES as usize / 2 - image.len()])
                .expect("inside");
            let features =
                QueueFeatures { event_index: choices[2] & 1 != 0, indirect: choices[2] & 2 != 0 };
            serve(memory, u16::from(choices[3] & 7), features);
        });
    });
}
