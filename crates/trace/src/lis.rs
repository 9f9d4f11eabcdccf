//! The format of the ARC paper's traces (`.lis`): `first_block blocks ignored sequence_number`, in
//! blocks of 512 bytes. All requests are reads without times.

use forebay_core::Op;

use super::text::{LineFormat, field, number};
use super::{Parsed, request, sectors};

/// See the module.
#[derive(Debug)]
pub(super) struct Lis;

impl LineFormat for Lis {
    fn line(&mut self, line: &str) -> Parsed {
        let mut fields = line.split_ascii_whitespace();
        let first = number(field(&mut fields, "first block")?, "block")?;
        let count = number(field(&mut fields, "blocks")?, "number of blocks")?;
        request(None, Op::Read, sectors(first)?, sectors(count)?, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::{parse, refused};

    #[test]
    fn blocks_are_sectors() {
        let found = parse(Lis, "230027 8 0 0\n1842745 64 0 1\n5 0 0 2\n").expect("reads");
        let places: Vec<(u64, u64)> = found.iter().map(|one| (one.offset, one.len)).collect();
        assert_eq!(places, [(230_027 * 512, 4096), (1_842_745 * 512, 32768)]);
        assert!(found.iter().all(|one| one.op == Op::Read && one.time.is_none()));
    }

    #[test]
    fn malformed_input_is_reported() {
        for (text, word) in
            [("1\n", "blocks"), ("x 1 0 0\n", "'x'"), ("36028797018963968 1 0 0\n", "2^64")]
        {
            let why = refused(Lis, text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
