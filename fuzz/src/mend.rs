//! Mutations that correct checksums. Each function here corrects the fields that a reader checks
//! first (magic, cache, checksum), so that the fuzzer reaches the later checks.

use forebay_format::checkpoint::CHUNK_BYTES;
use forebay_format::{PAGE, checkpoint, crc32c, crc32c_append, record, superblock, volume};

use crate::{CACHE, mutation};

const ZEROES: [u8; PAGE] = [0; PAGE];

/// Copies `value` to `at`; bytes that do not fit are left out.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(value) {
        *place = *byte;
    }
}

/// The `u32` at `at`, with zeroes behind the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_at(bytes, at) as u32
}

/// The `u64` at `at`, with zeroes behind the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    for (place, byte) in value.iter_mut().zip(bytes.iter().skip(at)) {
        *place = *byte;
    }
    u64::from_le_bytes(value)
}

/// Mutates an input whose first `pages` pages begin with the important fields: half of the time
/// anywhere, as libFuzzer chooses, otherwise only within the fields of one page, so that nothing
/// else moves. Then corrects it, except once in 16 times.
pub(crate) fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    pages: usize,
    mend: impl FnOnce(&mut [u8]),
) -> usize {
    let mut rng = fastrand::Rng::with_seed(u64::from(seed));
    let mut new_size = size;
    let page = rng.usize(0..pages) * PAGE;
    if rng.bool() || page >= size {
        new_size = mutation::change(data, size, max_size);
    } else {
        let longest = (size - page).min(256);
        let start = page + rng.usize(0..longest);
        let end = (start + rng.usize(1..=16)).min(page + longest);
        let window = &mut data[start..end];
        let len = window.len();
        mutation::change(window, len, len);
    }
    if rng.u32(0..16) != 0 {
        mend(&mut data[..new_size]);
    }
    new_size
}

/// The checksum of a page from `from` on, of which `bytes` may be a part, the rest being zeroes.
fn page_checksum(bytes: &[u8], from: usize) -> u32 {
    let bytes = &bytes[..bytes.len().min(PAGE)];
    crc32c_append(crc32c(bytes.get(from..).unwrap_or_default()), &ZEROES[bytes.len().max(from)..])
}

/// A superblock copy that lies at `at` on the device.
pub(crate) fn superblock(page: &mut [u8], at: u64) {
    put(page, 0, &superblock::MAGIC);
    put(page, 8, &superblock::VERSION.to_le_bytes());
    put(page, 56 + 8, &at.to_le_bytes());
    seal_superblock(page);
}

/// Corrects only the checksum of a superblock.
pub(crate) fn seal_superblock(page: &mut [u8]) {
    if let Some(checked) = page.get(..PAGE - 4) {
        let checksum = crc32c(checked);
        put(page, PAGE - 4, &checksum.to_le_bytes());
    }
}

/// A record header.
pub(crate) fn record(page: &mut [u8]) {
    put(page, 0, &record::MAGIC.to_le_bytes());
    put(page, 8, CACHE.as_bytes());
    seal_record(page);
}

/// Corrects only the checksum of a record header.
pub(crate) fn seal_record(page: &mut [u8]) {
    let checksum = page_checksum(page, 8);
    put(page, 4, &checksum.to_le_bytes());
}

/// A volume table that reaches to the end of `bytes`.
pub(crate) fn volume_table(bytes: &mut [u8]) {
    put(bytes, 0, &volume::MAGIC);
    put(bytes, 12, &(bytes.len() as u32).to_le_bytes());
    put(bytes, 16, CACHE.as_bytes());
    seal_volume_table(bytes);
}

/// Corrects only the checksum of a volume table, whose length is the one that it states.
pub(crate) fn seal_volume_table(bytes: &mut [u8]) {
    let len = u32_at(bytes, 12) as usize;
    if let Some(checked) = bytes.get(12..len) {
        let checksum = crc32c(checked);
        put(bytes, 8, &checksum.to_le_bytes());
    }
}

/// Corrects only the checksum of a checkpoint header.
pub(crate) fn seal_checkpoint_header(page: &mut [u8]) {
    let checksum = page_checksum(page, 12);
    put(page, 8, &checksum.to_le_bytes());
}

/// Corrects only the checksum of chunk `index` of a checkpoint of `cache`, if its length is the one
/// that it states.
pub(crate) fn seal_chunk(chunk: &mut [u8], cache: &[u8; 16], index: u32) {
    let end = (u32_at(chunk, 4) as usize).saturating_add(16);
    if let Some(checked) = chunk.get(4..end) {
        let mut checksum = crc32c(checked);
        checksum = crc32c_append(checksum, cache);
        checksum = crc32c_append(checksum, &index.to_le_bytes());
        put(chunk, 0, &checksum.to_le_bytes());
    }
}

/// Chunk `index` of a checkpoint in its short form: the first page of the header and of each chunk,
/// one behind the other; all else is zeroes. `len` is that of the whole chunk.
pub(crate) fn chunk_of(short: &[u8], index: u32, len: usize) -> Vec<u8> {
    let start = (index as usize + 1) * PAGE;
    let page = short.get(start..short.len().min(start + PAGE)).unwrap_or_default();
    let mut chunk = page.to_vec();
    chunk.resize(len, 0);
    chunk
}

/// A checkpoint in its short form, of a cache with so many segments.
pub(crate) fn checkpoint(short: &mut [u8], segments: u32) {
    put(short, 0, &checkpoint::MAGIC);
    put(short, 16, CACHE.as_bytes());
    put(short, 72, &segments.to_le_bytes());
    put(short, 76, &(CHUNK_BYTES as u32).to_le_bytes());
    let number = u64_at(short, 32);
    let len = u64_at(short, 80);
    for index in 0..(short.len().saturating_sub(PAGE)).div_ceil(PAGE) as u32 {
        let place = PAGE as u64 + u64::from(index) * CHUNK_BYTES as u64;
        let Some(left) = len.checked_sub(place).filter(|left| *left > 0) else { break };
        let start = (index as usize + 1) * PAGE;
        put(short, start + 8, &number.to_le_bytes());
        let mut chunk = chunk_of(short, index, left.min(CHUNK_BYTES as u64) as usize);
        seal_chunk(&mut chunk, CACHE.as_bytes(), index);
        put(short, start, &chunk[..4.min(chunk.len())]);
    }
    let header = PAGE.min(short.len());
    seal_checkpoint_header(&mut short[..header]);
}
