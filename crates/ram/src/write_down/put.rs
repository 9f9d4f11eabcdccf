//! Writes one run of deferred data to the lower tier, in parts if writing the whole fails.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_core::IoError;
use forebay_device::IoBuf;
use forebay_engine::BlockService;

use super::{ask, write};

/// Number of parts into which a failed run is split. After `MOST_IN_VAIN` failed writes in a row
/// the lower tier counts as taking nothing.
const PARTS: u64 = 16;
const MOST_IN_VAIN: u32 = 32;

/// Writes a run to the lower tier. If that fails, splits it until the remaining failed parts are
/// single blocks of the tier, whose ranges are added to `failed`. A bad sector thus keeps no other
/// data from the lower tier. Calls `answered` at each answer.
///
/// # Errors
/// The last failure.
pub(super) async fn put(
    lower: &Rc<dyn BlockService>,
    block: u64,
    offset: u64,
    data: IoBuf,
    answered: &impl Fn(),
    failed: &RefCell<Vec<Range<u64>>>,
) -> Result<(), IoError> {
    let (mut rest, mut result, mut in_vain) = (vec![(offset, data)], Ok(()), 0);
    while let Some((offset, data)) = rest.pop() {
        let end = offset + data.len() as u64;
        let completion = ask(lower, write(offset, data)).await;
        answered();
        let Err(error) = completion.result else {
            in_vain = 0;
            continue;
        };
        in_vain += 1;
        let back = completion.data.filter(|data| data.len() as u64 == end - offset);
        match back
            .filter(|_| error == IoError::Io && in_vain < MOST_IN_VAIN && end - offset > block)
        {
            Some(data) => rest.extend(parts(offset, data, block).into_iter().rev()),
            None => {
                failed.borrow_mut().push(offset..end);
                result = Err(error);
            }
        }
        if error == IoError::ShuttingDown || in_vain >= MOST_IN_VAIN {
            let left = rest.drain(..).map(|(at, data)| at..at + data.len() as u64);
            failed.borrow_mut().extend(left);
        }
    }
    result
}

/// Cuts data into parts that end at block boundaries.
fn parts(offset: u64, mut data: IoBuf, block: u64) -> Vec<(u64, IoBuf)> {
    let part = (data.len() as u64).div_ceil(PARTS).next_multiple_of(block);
    let (mut all, mut at) = (Vec::new(), offset);
    while !data.is_empty() {
        let end = ((at + part) / block * block).min(at + data.len() as u64);
        let rest = data.split_off((end - at) as usize);
        all.push((at, std::mem::replace(&mut data, rest)));
        at = end;
    }
    all
}
