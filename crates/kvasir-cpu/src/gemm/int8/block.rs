//! Integer GEMM of one work item: a range of panels times a block of rows.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::panel_pair::{GemmScratch, Pair, PairScratch};
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::{amx, vnni};
use crate::gemm::output::{Output, OutputsFrom};
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::threads::worker::Worker;
use crate::weights::int8::layouts::Layout;
use crate::weights::int8::panels::QuantReader;
use std::ops::Range;

/// `panels x rows` for a block of at most [`BLOCK`](super::panel_pair::BLOCK) rows that begins with
/// a tile. The sums go to `out`, from the given output on; without `out` they stay in
/// `scratch.sums`. The KV cache of the next layer may be prefetched alongside.
///
/// # Safety
/// The machine must have the kernel's instructions, and `scratch` must have begun with it. The
/// panels must have layout `L`, the rows must exist, and no other thread may write their outputs of
/// the panels concurrently.
pub(crate) unsafe fn pair_times_rows<L: Layout, const P: usize>(
    kernel: Int8Gemm,
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    scratch: &mut PairScratch,
    kv_queue: &mut KvPrefetchQueue,
    out: Option<OutputsFrom<'_>>,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: upheld by the caller.
    unsafe {
        match kernel {
            Int8Gemm::Amx => amx::panels::<L, P>(pair, x, rows, scratch, out),
            Int8Gemm::Avx512Vnni => vnni::v512::panels::<L, P>(pair, x, rows, scratch, kv_queue, out),
            Int8Gemm::Avx512Bf16 => vnni::v512_bf16::panels::<L, P>(pair, x, rows, scratch, kv_queue, out),
            Int8Gemm::AvxVnni => vnni::v256_dots::panels::<L, P>(pair, x, rows, scratch, kv_queue, out),
            Int8Gemm::Avx2 => vnni::v256::panels::<L, P>(pair, x, rows, scratch, kv_queue, out),
        }
    }
}

/// GEMM: panels, in pairs where there are two, times a block of rows.
///
/// # Safety
/// The machine must have the kernel's instructions. The rows must exist and begin with a tile.
/// No other thread may write these outputs concurrently.
pub(crate) unsafe fn gemm<L: Layout>(
    kernel: Int8Gemm,
    w: QuantReader<'_, '_>,
    panels: Range<usize>,
    x: &QuantActivations,
    rows: Range<usize>,
    worker: &mut Worker,
    out: &Output<'_>,
) {
    let at_once = kernel.panels_at_once(rows.len());
    let (scratch, kv_queue) = worker.scratches::<GemmScratch, KvPrefetchQueue>();
    let GemmScratch { panels: [first, second], pair: scratch, .. } = scratch;
    let _tiles = scratch.begin(kernel);
    for panel in panels.clone().step_by(at_once) {
        let (rows, to) = (rows.clone(), Some(OutputsFrom { out, first: panel * LANES }));
        let one = w.panel_at(panel, first);
        // SAFETY: upheld by the caller; the panels have layout `L`.
        unsafe {
            if at_once == 2 && panel + 1 < panels.end {
                let both = [one, w.panel_at(panel + 1, second)];
                let next = w.packed_at(panel + 2).zip(w.packed_at(panel + 3));
                let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
                pair_times_rows::<L, 2>(kernel, &pair, x, rows, scratch, kv_queue, to);
            } else {
                let pair = Pair { panels: [one], next: w.packed_at(panel + 1).map(|next| [next]) };
                pair_times_rows::<L, 1>(kernel, &pair, x, rows, scratch, kv_queue, to);
            }
        }
    }
}
