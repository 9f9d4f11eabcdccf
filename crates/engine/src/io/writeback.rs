//! Writes dirty blocks to the origin in address order, with neighbours merged.
//!
//! - [`span`]: the blocks of one write
//! - [`run`]: carries out one write
//! - [`split`]: splits a write that fails
//! - [`read_turns`]: limits how many writes read from the cache device at a time
//! - [`flow`]: writes in progress, and the syncs that make them durable

pub(crate) mod flow;
mod read_turns;
pub(crate) mod run;
pub(crate) mod span;
pub(crate) mod split;

use std::rc::Rc;

use forebay_core::OriginBlock;
use forebay_core::why::WritebackReason;

use crate::error::WritebackError;
use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use flow::Flow;
use read_turns::ReadTurns;
use run::SpanWriter;
use span::Spans;

/// Writes the current versions of dirty blocks to the origin. The blocks become clean with the next
/// sync.
///
/// # Errors
/// The first failure; blocks that were not written stay dirty.
pub(crate) async fn put_on_origin(
    view: &LaneVolume,
    mut blocks: Vec<OriginBlock>,
) -> Result<(), WritebackError> {
    let turns = ReadTurns::new(Rc::default());
    blocks.sort_unstable();
    let mut rest = &blocks[..];
    while let Some(span) = Spans(view).next_span(rest, Spans(view).merging()) {
        rest = rest.get(span.dirty.len()..).unwrap_or(&[]);
        let (written, error) =
            SpanWriter(view).write_back_parts(span, WritebackReason::Mode, 0, &turns).await;
        // If a sync has failed since these were written, their state on the origin is unknown: they
        // stay dirty and are written again. The check is made where they are recorded, because a
        // failure clears the records.
        let syncs = &view.volume.syncs;
        let known = written.into_iter().filter(|written| written.failures == syncs.failures());
        OriginIo(view).note_through(known.map(|written| (written.block, written.version)));
        if let Some(error) = error {
            return Err(error);
        }
    }
    if let Some(block) = blocks.iter().find(|block| view.volume.is_bad(**block)) {
        return Err(WritebackError::Unreadable(*block));
    }
    let refused = blocks.iter().any(|block| view.volume.is_refused(*block));
    view.volume.refusal().filter(|_| refused).map_or(Ok(()), Err)
}

/// Writes sorted blocks back, syncs the origin and marks them clean; counts them under `why`. Skips
/// blocks that are not dirty.
///
/// # Errors
/// The first failure; blocks that were not written stay dirty.
pub(crate) async fn write_back(
    view: &Rc<LaneVolume>,
    blocks: &[OriginBlock],
    why: WritebackReason,
) -> Result<(), WritebackError> {
    let flow = Flow::new(view.clone());
    let mut rest = blocks;
    while !flow.has_failed() {
        let Some(span) = Spans(view).next_span(rest, Spans(view).merging()) else { break };
        rest = rest.get(span.dirty.len()..).unwrap_or(&[]);
        flow.room(view.volume.settings().writeback_depth).await;
        flow.start(span, why);
    }
    flow.settle().await
}
