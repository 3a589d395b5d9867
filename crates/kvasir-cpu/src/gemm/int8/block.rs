//! Integer GEMM of one work item: a range of panels times a block of rows, by ISA level.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::panel_pair::{Pair, PairScratch, with_room};
use crate::gemm::int8::{amx, vnni};
use crate::gemm::output::Output;
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::weights::int8::format::Format;
use crate::weights::int8::layouts::Layout;
use crate::weights::int8::panels::QuantReader;
use crate::weights::panels::PanelScratch;
use std::ops::Range;

/// Row count up to which a panel pair takes so little time that several form one work item.
pub(crate) const SHORT: usize = 64;

/// Whether `rows` rows are multiplied by this GEMM rather than by the GEMV kernels.
pub(crate) fn takes(level: Level, format: Format, rows: usize) -> bool {
    let from = match level {
        Level::Amx if format.stores_unpacked() => 5,
        Level::AvxVnni if !format.stores_unpacked() => 3,
        Level::Avx512Vnni | Level::Avx512Bf16 => 5,
        Level::Amx | Level::AvxVnni | Level::Avx2 => 4,
        _ => return false,
    };
    rows >= from
}

/// `panels x rows` for a block of at most [`BLOCK`] rows that begins with a tile. The sums go to
/// `out`, from the given output on; without `out` they stay in `room.sums`.
///
/// # Safety
/// [`takes`] must hold, and `room` must come from [`with_room`] at this level. The panels must have
/// layout `L`, the rows must exist, and no other thread may write their outputs of the panels
/// concurrently.
pub(crate) unsafe fn pair_times_rows<L: Layout, const P: usize>(
    level: Level,
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut PairScratch,
    out: Option<(&Output, usize)>,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        match level {
            Level::Amx => amx::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Vnni => vnni::v512::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Bf16 => vnni::v512_bf16::panels::<L, P>(pair, x, rows, room, out),
            Level::AvxVnni => vnni::v256_dots::panels::<L, P>(pair, x, rows, room, out),
            _ => vnni::v256::panels::<L, P>(pair, x, rows, room, out),
        }
    }
}

/// GEMM: panels, in pairs where there are two, times a block of rows.
///
/// # Safety
/// [`takes`] must hold for the level and row count. The rows must exist and begin with a tile.
/// No other thread may write these outputs concurrently.
pub(crate) unsafe fn gemm<L: Layout>(
    level: Level,
    (w, panels): (QuantReader<'_, '_>, Range<usize>),
    x: &QuantActivations,
    rows: Range<usize>,
    [made, next_made]: &mut [PanelScratch; 2],
    out: &Output<'_>,
) {
    // AVX2 multiplies only four rows at once, so little time passes per superblock with few rows:
    // single panels keep memory reads sequential.
    let at_once = if level == Level::Avx2 && rows.len() <= SHORT { 1 } else { 2 };
    with_room(level, |room| {
        for panel in panels.clone().step_by(at_once) {
            let (rows, to) = (rows.clone(), Some((out, panel * LANES)));
            let one = w.panel_at(panel, made);
            // SAFETY: upheld by the caller; the panels have layout `L`.
            unsafe {
                if at_once == 2 && panel + 1 < panels.end {
                    let both = [one, w.panel_at(panel + 1, next_made)];
                    let next = w.packed_at(panel + 2).zip(w.packed_at(panel + 3));
                    let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
                    pair_times_rows::<L, 2>(level, &pair, x, rows, room, to);
                } else {
                    let next = w.packed_at(panel + 1).map(|next| [next]);
                    pair_times_rows::<L, 1>(level, &Pair { panels: [one], next }, x, rows, room, to);
                }
            }
        }
    });
}
