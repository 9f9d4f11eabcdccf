//! Files compressed with zstd: a sequence of frames, each with an optional checksum, which is
//! verified.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::BlockDecodingStrategy;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// Returns whether a file that begins with these bytes is compressed.
pub(super) fn is_compressed(head: &[u8]) -> bool {
    let skippable = matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18]);
    head == [0x28, 0xb5, 0x2f, 0xfd] || skippable
}

/// The content of all frames of a stream.
pub(super) struct Frames<S: Read> {
    source: BufReader<S>,
    decoder: FrameDecoder,
    in_frame: bool,
}

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("the compressed data is damaged or cut off: {error}"))
}

impl<S: Read> Frames<S> {
    pub(super) fn new(source: S) -> Self {
        let source = BufReader::with_capacity(1 << 17, source);
        Frames { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame. Returns false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = self.source.by_ref().take(u64::from(length));
                    io::copy(&mut { skipped }, &mut io::sink())?;
                }
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (stored, found) =
            (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        if stored.is_some() && stored != found {
            return Err(broken("a checksum does not match"));
        }
        Ok(())
    }
}

impl<S: Read> Read for Frames<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(broken)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.end()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compress(content: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(content, level)
    }

    fn read(compressed: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Frames::new(compressed).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn all_frames_are_read_and_others_skipped() {
        let mut random = fastrand::Rng::with_seed(1);
        let content: Vec<u8> = (0..300_000).map(|_| random.u8(b'a'..b'f')).collect();
        let (one, other) = content.split_at(123_456);
        let skipped = [&[0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let file =
            [&skipped[..], &compress(one), &skipped, &compress(b""), &compress(other)].concat();
        assert!(is_compressed(&file[..4]) && is_compressed(&compress(one)[..4]));
        assert!(!is_compressed(b"ts_u"));
        assert!(read(&file).expect("reads") == content);
    }

    #[test]
    fn damage_is_an_error() {
        let whole = compress(&b"0123456789".repeat(2000));
        for len in 1..whole.len() {
            assert!(read(&whole[..len]).is_err(), "cut off at {len}");
        }
        let trailing = [&whole[..], b"rubbish"].concat();
        assert!(read(&trailing).is_err());
    }
}
