//! The two products of attention, on tiles of bf16: keys times queries, shares times values.

use super::softmax::Scores;
use super::view::CHUNK;
#[cfg(target_arch = "x86_64")]
use super::{in_pairs, pairs};
use crate::Level;
use crate::chains::{Columns, Rows, multiply};
use crate::dense::dot_step;
use crate::level::per_level;
use crate::tile::{LANES, STEP, Tile};

/// Keys of a chunk: four times 16 rows of bf16, each padded to whole steps of 32.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) base: [*const u8; 4],
    /// Bytes between the rows of each 16.
    pub(crate) stride: [usize; 4],
}

/// Something to do while a product of keys is made.
pub(crate) trait Beside {
    /// Some of it, beside a product.
    ///
    /// # Safety
    /// The machine must have the instructions of [`Level::Amx`].
    unsafe fn some(&mut self);
    /// What is done less often: before `products` products, of the last head's keys or not.
    ///
    /// # Safety
    /// As above.
    unsafe fn before(&mut self, last: bool, products: usize);
}

/// How often [`Beside::before`] is called for one head's keys of `steps` times 32 numbers.
pub(crate) fn asks(steps: usize) -> usize {
    2 * steps
}

/// Products of one head's keys of a chunk with 16 lanes of queries, a tile for each of `steps`. This is how levels below [`Level::Amx`] do it; `open`
/// may have the keys' numbers, per step four times 16 rows.
///
/// # Safety
/// `queries` must be `steps` tiles, the keys 64 rows of as many steps.
pub(crate) unsafe fn scores(
    level: Level,
    (keys, open): (&Keys, &[[Rows; 4]]),
    queries: *const u8,
    steps: usize,
    out: &mut Scores,
) {
    #[cfg(target_arch = "x86_64")]
    if in_pairs(level) {
        // SAFETY: as the caller vouches; the level was found on this machine.
        return unsafe { pairs::scores(keys, queries, steps, out) };
    }
    let (mut columns, mut room) = (Columns::NONE, Rows::NONE);
    *out = [[0.0; LANES]; CHUNK];
    for step in 0..steps {
        // SAFETY: as the caller vouches.
        unsafe { columns.open(level, queries.wrapping_add(step * 1024)) };
        for (n, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            if let Some(rows) = open.get(step) {
                multiply(level, &rows[n], &columns, out);
                continue;
            }
            // SAFETY: as the caller vouches.
            unsafe { room.open(level, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
            multiply(level, &room, &columns, out);
        }
    }
}

/// One head's keys of a chunk, `steps` times 32 numbers each, widened for all blocks of lanes.
///
/// # Safety
/// They must be 64 rows of so many steps.
pub(crate) unsafe fn open_keys(level: Level, keys: &Keys, steps: usize, to: &mut Vec<[Rows; 4]>) {
    for step in 0..steps {
        to.push([Rows::NONE; 4]);
        for (n, rows) in to.iter_mut().next_back().into_iter().flatten().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe { rows.open(level, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
        }
    }
}

/// One head's values of a chunk, widened for all blocks of lanes.
pub(crate) fn open_values(level: Level, values: &[Tile], to: &mut Vec<Columns>) {
    to.resize(values.len(), Columns::NONE);
    for (tile, to) in values.iter().zip(to) {
        // SAFETY: a tile.
        unsafe { to.open(level, tile.as_ptr().cast()) };
    }
}

/// Lanes that are not worth the work on all 16.
pub(crate) const FEW: usize = 4;

/// # Safety
/// As for [`few_values`].
#[inline(always)]
unsafe fn few_values_body(shares: *const u8, values: *const u8, sums: &mut [[f32; LANES]; FEW]) {
    for step in 0..CHUNK / STEP {
        let a = std::array::from_fn(|n| shares.wrapping_add(step * 1024 + n * 64));
        // SAFETY: as the caller vouches.
        unsafe { dot_step::<FEW>(a, values.wrapping_add(step * 1024), sums) };
    }
}

per_level! {
    /// Adds the products of a chunk's shares of so many lanes with 16 places of its values.
    ///
    /// # Safety
    /// There must be two tiles of each, of which the shares' lanes count.
    unsafe few_values(shares: *const u8, values: *const u8, sums: &mut [[f32; LANES]; FEW]) => few_values_body
}

/// What is multiplied of one chunk: two tiles of shares, and two tiles of values for each 16 places.
pub(crate) type Shared = (*const u8, *const u8);

/// Adds the products of some lanes of shares with the values of `chunks`, 16 places of the values to a tile, to the lanes' `sums` of `width` places
/// each. `during` is run beside every product. Without tiles `open` has the values' numbers of the only chunk, if lanes are more than [`FEW`].
///
/// # Safety
/// The chunks' tiles must be there; at level [`Level::Amx`] tiles must be configured, those of shares and products with as many rows as there are
/// lanes.
pub(crate) unsafe fn values(
    level: Level,
    (chunks, open): (&[Shared], &[Columns]),
    sums: &mut [f32],
    width: usize,
    mut during: impl FnMut(),
) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx {
        // SAFETY: as the caller vouches; the level was found on this machine.
        return unsafe { tiles::values(chunks, sums, width, during) };
    }
    #[cfg(target_arch = "x86_64")]
    if in_pairs(level) {
        // SAFETY: as above.
        return chunks.iter().for_each(|chunk| unsafe { pairs::values(*chunk, sums, width, &mut during) });
    }
    let lanes = sums.len() / width;
    for (shares, values) in chunks {
        let mut rows = [Rows::NONE; CHUNK / STEP];
        if lanes > FEW {
            for (step, rows) in rows.iter_mut().enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { rows.open(level, shares.wrapping_add(step * 1024), 64) };
            }
        }
        let mut part = [[0.0; LANES]; LANES];
        for tile in 0..width / LANES {
            let at = tile * LANES;
            for (part, sums) in part.iter_mut().zip(sums.chunks_exact(width)) {
                part.copy_from_slice(&sums[at..at + LANES]);
            }
            if lanes > FEW {
                for (rows, columns) in rows.iter().zip(&open[2 * tile..]) {
                    multiply(level, rows, columns, &mut part);
                }
            } else if let Some(part) = part.first_chunk_mut() {
                // SAFETY: as the caller vouches.
                unsafe { few_values(level, *shares, values.wrapping_add(tile * 2048), part) };
            }
            for (part, sums) in part.iter().zip(sums.chunks_exact_mut(width)) {
                sums[at..at + LANES].copy_from_slice(part);
            }
            during();
        }
    }
}

/// The products on the tile unit. What runs beside them may be made of 512-bit vectors, and becomes part of these functions.
///
/// No more tiles are touched than it takes: where a core's other thread is at work, few results can be on their way besides what the tiles
/// hold, and with all eight in use a product waits for the one before.
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles {
    use super::{Beside, CHUNK, Keys, LANES, Scores, Shared};
    use crate::amx::{tile_dot_bf16, tile_load, tile_store, tile_zero};
    use crate::ask::{Near, ask_tile};

    /// Products of a chunk's keys with the queries of a block, with something `beside` every product. A tile of queries has the numbers of `lanes` lanes
    /// of each head in as many columns, one head's behind the other's. If heads are many, there may be anything of positions from `seen` on, and what is
    /// read `behind` them, for each 16 positions, is asked for beside the last one's if it lies elsewhere.
    ///
    /// # Safety
    /// As for [`super::scores`], for all heads; tiles must be configured for so many columns, or for 16 if there is one head.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) unsafe fn scores(
        (keys, seen, behind): (&[Keys], usize, &[*const u8; 4]),
        (queries, lanes): (*const u8, usize),
        steps: usize,
        out: &mut Scores,
        beside: &mut impl Beside,
    ) {
        let out = out.as_mut_ptr().cast::<u8>();
        macro_rules! take {
            ($to:literal, $keys:expr, $quarter:expr, $step:expr) => {
                tile_load!(2, $keys.base[$quarter].wrapping_add($step * 64), $keys.stride[$quarter]);
                tile_dot_bf16!($to, 2, 6);
                beside.some();
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
            // Many heads' keys come from memory: in the order in which they lie there, 16 positions ahead. The products of 16 positions are stored when those of
            // the next have been asked of the unit.
            let quarters = seen.div_ceil(LANES);
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
                        ask_tile(Near::First, $next.wrapping_add(step * 1024));
                        if last && elsewhere {
                            ask_tile(Near::Second, behind[$quarter].wrapping_add(step * 1024));
                        }
                        tile_load!(6, queries.add(step * 1024 + $head * lanes * 4), 64);
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
                    ready = Some(out.add(quarter * 1024 + head * lanes * 4));
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

    /// [`super::values`].
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn values(chunks: &[Shared], sums: &mut [f32], width: usize, mut during: impl FnMut()) {
        let stride = width * 4;
        macro_rules! take {
            ($to:literal, $values:expr) => {
                tile_load!(6, $values, 64);
                tile_dot_bf16!($to, 2, 6);
                during();
            };
        }
        // SAFETY: as the caller vouches; the width is a multiple of two tiles'.
        unsafe {
            for pair in 0..width / (2 * LANES) {
                let to = sums.as_mut_ptr().add(pair * 2 * LANES);
                tile_load!(0, to, stride);
                tile_load!(1, to.add(LANES), stride);
                for (shares, values) in chunks {
                    let values = values.add(pair * 4096);
                    for step in [0, 1024] {
                        tile_load!(2, shares.add(step), 64);
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
