//! Attention on AMX tiles. The tile products of a block's keys are interleaved with the softmax of
//! the previous block, prefetches, and the packing of V.
//!
//! As few tiles as possible are used: with hyper-threading the core can keep few results in flight
//! besides the tiles, and with all eight in use each product waits for the one before.

use crate::attention::kernel::{AttentionKernel, ChunkTiles, PvTiles};
use crate::attention::packed_values::ValuePacking;
use crate::attention::softmax::avx512::WeightLoop;
use crate::attention::softmax::pipeline::SoftmaxPipeline;
use crate::attention::softmax::state::Scores;
use crate::attention::staged_kv::{KeyRows, StagedKv};
use crate::attention::work::{CHUNKS_AT_ONCE, ScoredBlock};
use crate::isa::amx::{Tiles, tile_dot_bf16, tile_load, tile_store, tile_zero};
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::rows::CHUNK;
use crate::prefetch::hint::{CacheLevel, prefetch_tile};
use crate::prefetch::ranges::PrefetchRanges;

/// The kernels on AMX tiles, with the thread's tile configuration.
pub(crate) struct AmxTiles(pub(crate) Tiles);

impl AttentionKernel for AmxTiles {
    // With many query rows per head, loading and storing O dominates; with few, memory bandwidth
    // does, and K and V are read in order.
    const CHUNKS_AT_ONCE: usize = CHUNKS_AT_ONCE;
    const SHARES_BLOCKS: bool = true;

    fn isa(&self) -> Isa {
        Isa::AMX
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn scores(&mut self, now: ScoredBlock<'_>, kv: &mut StagedKv, to: &mut SoftmaxPipeline) {
        let several = kv.keys.heads.len() > 1;
        self.0.of_shape(LANES, if several { now.block().per_head } else { LANES });
        let [first, second] = &mut to.scores[..] else { return };
        let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
        // Where there was no block before, none of its work is left.
        let softmax = &mut to.softmax[1 - now.place];
        let weights = WeightLoop::resume(softmax, scores, &mut to.packed[0]);
        let (prefetches, packing) = (&mut kv.prefetch.ranges, kv.packed.packing.as_mut());
        let mut beside = SoftmaxBeside { weights, prefetches, packing };
        // SAFETY: the block has a query tile per step, keys are 64 rows each, and tiles are
        // configured; as the caller vouches.
        unsafe { products(now, &kv.keys.heads, &kv.prefetch.values.at, out, &mut beside) };
        beside.weights.suspend();
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn values(&mut self, tiles: PvTiles<'_>, sums: &mut [f32], mut during: impl FnMut()) {
        let width = tiles.width;
        self.0.of_shape(sums.len() / width, LANES);
        let stride = width * 4;
        macro_rules! take {
            ($to:literal, $values:expr) => {
                tile_load!(6, $values, 64);
                tile_dot_bf16!($to, 2, 6);
                during();
            };
        }
        // SAFETY: as the caller vouches; tiles are configured, and the width is a multiple of two
        // tiles' columns.
        unsafe {
            for pair in 0..width / (2 * LANES) {
                let to = sums.as_mut_ptr().add(pair * 2 * LANES);
                tile_load!(0, to, stride);
                tile_load!(1, to.add(LANES), stride);
                for ChunkTiles { weights, values } in tiles.chunks {
                    let values = values.add(pair * 4096);
                    for step in [0, 1024] {
                        tile_load!(2, weights.add(step), 64);
                        take!(0, values.add(step));
                        take!(1, values.add(2048 + step));
                    }
                }
                tile_store!(0, to, stride);
                tile_store!(1, to.add(LANES), stride);
            }
        }
    }
}

/// What is interleaved with the tile products of a block's keys.
struct SoftmaxBeside<'a> {
    /// Softmax of the previous block.
    weights: WeightLoop<'a>,
    prefetches: &'a mut PrefetchRanges,
    /// Packing of the first head's V.
    packing: Option<&'a mut ValuePacking>,
}

impl SoftmaxBeside<'_> {
    /// Prefetches and packs: called before `products` products; `last` says whether they are of the
    /// last head.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[inline(always)]
    unsafe fn before(&mut self, last: bool, products: usize) {
        self.prefetches.prefetch();
        if last && let Some(packing) = self.packing.as_mut().filter(|packing| packing.is_unfinished()) {
            // SAFETY: the caller vouches for the instructions; the rows are the pool's or staged.
            (0..products).for_each(|_| unsafe { packing.step(Isa::AMX) });
        }
    }
}

/// S = Q K^T for the heads of a block, with `beside` called at every tile product. What is read
/// `behind` the last head is prefetched into L2 if it is not contiguous.
///
/// # Safety
/// The machine must have the instructions. The block must have a query tile per step, and the keys
/// of each head be 64 rows of as many steps. Tiles must be configured for a head's rows as columns,
/// or for 16 if there is one head.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn products(
    now: ScoredBlock<'_>,
    keys: &[KeyRows],
    behind: &[*const u8; 4],
    out: &mut Scores,
    beside: &mut SoftmaxBeside<'_>,
) {
    let (steps, rows_per_head) = (now.work.queries.steps, now.block().per_head);
    let queries = now.queries().as_ptr().cast::<u8>();
    let out = out.as_mut_ptr().cast::<u8>();
    macro_rules! take {
        ($to:literal, $keys:expr, $quarter:expr, $step:expr) => {
            tile_load!(2, $keys.base[$quarter].wrapping_add($step * 64), $keys.stride[$quarter]);
            tile_dot_bf16!($to, 2, 6);
            beside.weights.step();
        };
    }
    // SAFETY: as the caller vouches.
    unsafe {
        if let [keys] = keys {
            for half in [0, 2] {
                tile_zero!(0);
                tile_zero!(1);
                for step in 0..steps {
                    beside.before(true, 2);
                    tile_load!(6, queries.add(step * 1024), 64);
                    take!(0, keys, half, step);
                    take!(1, keys, half + 1, step);
                }
                tile_store!(0, out.add(half * 1024));
                tile_store!(1, out.add(half * 1024 + 1024));
            }
            return;
        }
        // With several heads K streams from memory: it is read in memory order and prefetched
        // 16 positions ahead. The products of 16 positions are stored only after those of the
        // next were issued.
        let quarters = now.seen.div_ceil(LANES);
        let elsewhere =
            keys.last().is_some_and(|keys| keys.base[0].wrapping_add(CHUNK * steps * 64) != behind[0]);
        let mut ready: Option<*mut u8> = None;
        let mut odd = false;
        macro_rules! quarter {
            ($to:literal, $other:literal, $keys:expr, $quarter:expr, $head:expr, $next:expr) => {
                tile_zero!($to);
                for step in 0..steps {
                    let last = $head + 1 == keys.len();
                    beside.before(last, 1);
                    prefetch_tile(CacheLevel::L1, $next.wrapping_add(step * 1024));
                    if last && elsewhere {
                        prefetch_tile(CacheLevel::L2, behind[$quarter].wrapping_add(step * 1024));
                    }
                    tile_load!(6, queries.add(step * 1024 + $head * rows_per_head * 4), 64);
                    take!($to, $keys, $quarter, step);
                }
                if let Some(ready) = ready {
                    tile_store!($other, ready);
                }
            };
        }
        for (head, these) in keys.iter().enumerate() {
            let next_head = keys.get(head + 1).map_or(behind[0], |keys| keys.base[0]);
            for quarter in 0..quarters {
                let next = if quarter + 1 < quarters { these.base[quarter + 1] } else { next_head };
                if odd {
                    quarter!(1, 0, these, quarter, head, next);
                } else {
                    quarter!(0, 1, these, quarter, head, next);
                }
                ready = Some(out.add(quarter * 1024 + head * rows_per_head * 4));
                odd = !odd;
            }
        }
        if let Some(ready) = ready {
            if odd {
                tile_store!(0, ready);
            } else {
                tile_store!(1, ready);
            }
        }
    }
}
