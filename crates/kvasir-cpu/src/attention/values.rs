//! O += P V as a GEMM, for KV heads with many query rows: V packed into tiles, multiplied with the
//! attention weights P. Packing of the next head's V overlaps with the products.

use crate::attention::coming::Coming;
use crate::attention::scratch::Scratch;
use crate::attention::stretch::{Seen, TAKEN, Work};
use crate::attention::unit::Unit;
use crate::attention::{Attend, Piece, Shape, products, softmax, widens};
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::memory::aligned::Lines;
use crate::prefetch::ranges::Soon;

impl Attend<'_> {
    /// O += P V, head by head, for all blocks. The next head's V is packed while one is multiplied;
    /// beside the last head the next chunk's keys are prefetched.
    pub(super) fn take_values(
        &self,
        level: Level,
        piece: &Piece<'_>,
        work: &Work<'_>,
        unit: &mut Unit,
        s: &mut Scratch,
    ) {
        let shape = Shape::of(self.facts);
        let last = &work.chunks[work.chunks.len() - 1];
        for (i, head) in work.heads.clone().enumerate() {
            let mut coming = if head + 1 < work.heads.end {
                let tiles = std::mem::replace(&mut s.values[1], Lines::new());
                self.coming(level, piece.heads.start + head + 1, last.chunk, (tiles, Soon::NOTHING), s)
            } else {
                let first = piece.heads.start + work.heads.start;
                let next = last.next.filter(|_| work.blocks.len() == 1);
                let keys = next.map_or(Soon::NOTHING, |next| self.soon(next, first).first_half());
                Coming::nothing(keys.in_parts(s.values[0].len()))
            };
            if widens(level) && s.blocks[work.blocks.start].per_head > products::FEW {
                products::open_values(level, &s.values[0], &mut s.open_values);
            }
            for block in work.blocks.clone() {
                unit.of_shape(s.blocks[block].per_head, LANES);
                // SAFETY: weights and V tiles were made, and tiles are configured; the rows are the
                // pool's or staged.
                unsafe { s.add_values(level, shape, (block, i), work.chunks, &mut coming) };
            }
            // SAFETY: the rows are the pool's or staged.
            unsafe { coming.all(level) };
            if head + 1 < work.heads.end {
                s.values[1] = std::mem::replace(&mut s.values[0], coming.tiles);
            }
        }
    }
}

impl Scratch {
    /// O = O * exp(m_old - m_new) + P V for the `i`th head of block `b`.
    ///
    /// # Safety
    /// The chunks' weights and V tiles must have been made, with V widened at levels that widen.
    /// The rows of `coming` must be readable. With AMX, tiles must be configured for the block's
    /// rows.
    unsafe fn add_values(
        &mut self,
        level: Level,
        shape: Shape,
        (b, i): (usize, usize),
        chunks: &[Seen<'_>],
        coming: &mut Coming,
    ) {
        let block = &self.blocks[b];
        let (from, lanes) = (i * block.per_head, block.per_head);
        let first = block.lanes[from] as usize * shape.value_width;
        let sums = &mut self.sums[first..][..lanes * shape.value_width];
        let fade = |chunk: usize| &self.fades[chunk * self.blocks.len() + b][from..from + lanes];
        let shared = |chunk: usize| {
            let shares = self.shares[chunk * self.blocks.len() + b..].as_ptr().cast::<u8>();
            (shares.wrapping_add(from * 64), self.values[chunk].as_ptr().cast())
        };
        let comes = coming.is_coming() || coming.soon.is_left();
        let mut at = 0;
        while at < chunks.len() {
            if !block.meets(&chunks[at]) {
                at += 1;
                continue;
            }
            // Later chunks are added in the same pass as long as no running maximum moves.
            let steady = |c: &usize| block.meets(&chunks[*c]) && fade(*c).iter().all(|fade| *fade == 1.0);
            let end = at + 1 + (at + 1..chunks.len()).take_while(steady).count();
            softmax::fade(level, sums, shape.value_width, fade(at));
            let all: [products::Shared; TAKEN] = std::array::from_fn(|n| shared((at + n).min(end - 1)));
            // SAFETY: two tiles of weights and one spare behind them, two tiles of V for each 16
            // columns; as the caller vouches.
            unsafe {
                let chunks = (&all[..end - at], &self.open_values[..]);
                if comes {
                    products::values(level, chunks, sums, shape.value_width, || coming.some(level));
                } else {
                    products::values(level, chunks, sums, shape.value_width, || ());
                }
            }
            at = end;
        }
    }
}
