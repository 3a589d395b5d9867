//! Integer GEMM of one work item: a range of panels times a block of rows.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::panel_pair::{Pair, PairScratch, with_room};
use crate::gemm::int8::{amx, vnni};
use crate::gemm::output::Output;
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::weights::int8::layouts::Layout;
use crate::weights::int8::panels::QuantReader;
use crate::weights::panels::PanelScratch;
use std::ops::Range;

/// `panels x rows` for a block of at most [`BLOCK`] rows that begins with a tile. The sums go to
/// `out`, from the given output on; without `out` they stay in `room.sums`.
///
/// # Safety
/// The machine must have the kernel's instructions, and `room` must come from [`with_room`] for it. The
/// panels must have layout `L`, the rows must exist, and no other thread may write their outputs of the panels
/// concurrently.
pub(crate) unsafe fn pair_times_rows<L: Layout, const P: usize>(
    kernel: Int8Gemm,
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut PairScratch,
    out: Option<(&Output, usize)>,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        match kernel {
            Int8Gemm::Amx => amx::panels::<L, P>(pair, x, rows, room, out),
            Int8Gemm::Avx512Vnni => vnni::v512::panels::<L, P>(pair, x, rows, room, out),
            Int8Gemm::Avx512Bf16 => vnni::v512_bf16::panels::<L, P>(pair, x, rows, room, out),
            Int8Gemm::AvxVnni => vnni::v256_dots::panels::<L, P>(pair, x, rows, room, out),
            Int8Gemm::Avx2 => vnni::v256::panels::<L, P>(pair, x, rows, room, out),
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
    (w, panels): (QuantReader<'_, '_>, Range<usize>),
    x: &QuantActivations,
    rows: Range<usize>,
    [made, next_made]: &mut [PanelScratch; 2],
    out: &Output<'_>,
) {
    let at_once = kernel.panels_at_once(rows.len());
    with_room(kernel, |room| {
        for panel in panels.clone().step_by(at_once) {
            let (rows, to) = (rows.clone(), Some((out, panel * LANES)));
            let one = w.panel_at(panel, made);
            // SAFETY: upheld by the caller; the panels have layout `L`.
            unsafe {
                if at_once == 2 && panel + 1 < panels.end {
                    let both = [one, w.panel_at(panel + 1, next_made)];
                    let next = w.packed_at(panel + 2).zip(w.packed_at(panel + 3));
                    let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
                    pair_times_rows::<L, 2>(kernel, &pair, x, rows, room, to);
                } else {
                    let next = w.packed_at(panel + 1).map(|next| [next]);
                    pair_times_rows::<L, 1>(kernel, &Pair { panels: [one], next }, x, rows, room, to);
                }
            }
        }
    });
}
