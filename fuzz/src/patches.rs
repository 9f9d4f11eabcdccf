//! Patches of a device as an input writes them: a place (1 byte), an offset in it (2 bytes), what
//! to do (1 byte), and the bytes for that. Afterwards the checksums are right again.

use crate::device::ImageDevice;
use crate::image::{Kind, Spot};
use crate::{mend, say};

/// Takes `count` bytes from the front.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(head)
}

/// Applies one patch. Returns the number of its place; `None` at the end of the input.
pub(crate) fn patch(device: &ImageDevice, spots: &[Spot], rest: &mut &[u8]) -> Option<usize> {
    let head = take(rest, 4)?;
    let number = usize::from(head[0]) % spots.len();
    let spot = &spots[number];
    let at = usize::from(u16::from_le_bytes([head[1], head[2]])) % spot.len;
    let room = spot.len - at;
    say!("patch: place {number}, {spot}, offset {at:#x}, {:#x} {:x?}", head[3], rest.get(..8));
    match head[3] {
        // Zeroes from there to the end.
        0xff => device.write(spot.offset + at, &vec![0; room]),
        // The page of another place: something stale, or misdirected.
        0xfe => {
            let from = &spots[usize::from(take(rest, 1)?[0]) % spots.len()];
            let mut page = vec![0; from.len.min(spot.len)];
            device.read(from.offset, &mut page);
            device.write(spot.offset, &page);
        }
        len => {
            let bytes = take(rest, usize::from(len % 32))?;
            device.write(spot.offset + at, &bytes[..bytes.len().min(room)]);
        }
    }
    Some(number)
}

/// Corrects the checksums of touched structures, and of structures that refer to them.
pub(crate) fn mend_all(device: &ImageDevice, spots: &[Spot], cache: &[u8; 16], touched: &[usize]) {
    let mut references = Vec::new();
    let mut chunks = 0;
    for (number, spot) in spots.iter().enumerate() {
        let index = chunks;
        chunks += u32::from(spot.kind == Kind::Chunk);
        if !touched.contains(&number) {
            continue;
        }
        let mut bytes = vec![0; spot.len];
        device.read(spot.offset, &mut bytes);
        match spot.kind {
            Kind::Superblock | Kind::Plain => continue,
            Kind::Record => mend::seal_record(&mut bytes),
            Kind::Chunk => mend::seal_chunk(&mut bytes, cache, index),
            Kind::CheckpointHeader => {
                mend::seal_checkpoint_header(&mut bytes);
                references.push((192, mend::u32_at(&bytes, 8)));
            }
            Kind::VolumeTable => {
                mend::seal_volume_table(&mut bytes);
                references.push((140, mend::u32_at(&bytes, 12)));
                references.push((144, mend::u32_at(&bytes, 8)));
            }
        }
        device.write(spot.offset, &bytes);
    }
    for spot in spots.iter().filter(|spot| spot.kind == Kind::Superblock) {
        let mut bytes = vec![0; spot.len];
        device.read(spot.offset, &mut bytes);
        for (at, value) in &references {
            mend::put(&mut bytes, *at, &value.to_le_bytes());
        }
        mend::seal_superblock(&mut bytes);
        device.write(spot.offset, &bytes);
    }
}
