//! Truncates and copies idle cache sequences: those retained for sessions and pins, which no
//! request runs. They consist of whole blocks. With recurrent states, they end at a checkpoint,
//! hold no live state and have no gaps.

use crate::request::gaps::Gaps;
use kvasir_kv::{Cache, SeqId};

/// Truncates a sequence that no request runs to at most `len` tokens, in whole blocks, so that it
/// holds no live state. Returns its length; 0 if it cannot be truncated.
pub(crate) fn truncate_idle(cache: &mut dyn Cache, seq: SeqId, gaps: &Gaps, len: u32) -> u32 {
    let end = gaps.position(len);
    let reached = cache.rewind().and_then(|capability| capability.rewind_to_checkpoint(seq, end));
    reached.map_or(0, |reached| len.saturating_sub(end - reached))
}

/// The greatest number of tokens up to `len`, in whole blocks, to which the cache can rewind a
/// sequence. 0 if it cannot.
pub(crate) fn rewindable_len(cache: &mut dyn Cache, seq: SeqId, gaps: &Gaps, mut len: u32) -> u32 {
    let block = cache.shape().block_size.max(1);
    while len > 0 {
        let end = gaps.position(len);
        let floor = cache.rewind().and_then(|capability| capability.rewind_floor(seq, end));
        let whole = floor.map_or(0, |floor| gaps.whole_blocks(len.saturating_sub(end - floor), block));
        if whole == len {
            break;
        }
        len = whole;
    }
    len
}

/// Opens a sequence that shares the first `len` tokens of `source`, which are whole blocks. With
/// recurrent states it ends at the last checkpoint among them. `None` if the cache cannot share.
pub(crate) fn copy_idle(cache: &mut dyn Cache, source: SeqId, gaps: &Gaps, len: u32) -> Option<(SeqId, u32)> {
    cache.sequences().ok()?;
    let into = cache.open().ok()?;
    let end = gaps.position(len);
    let copied = cache.sequences().and_then(|capability| capability.copy(source, into, 0..end));
    let copied_len = copied.and_then(|()| cache.claimed_len(into)).unwrap_or(0).min(len);
    let block = cache.shape().block_size.max(1);
    let len = truncate_idle(cache, into, gaps, gaps.whole_blocks(copied_len, block));
    if len > 0 {
        return Some((into, len));
    }
    let closed = cache.close(into);
    debug_assert!(closed.is_ok(), "{closed:?}");
    None
}
