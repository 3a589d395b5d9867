//! Values of heads that have many lanes: as tiles, multiplied with the lanes' shares.

use super::coming::Coming;
use super::scratch::Scratch;
use super::soon::Soon;
use super::stretch::{Seen, TAKEN, Work};
use super::unit::Unit;
use super::{Attend, Piece, Shape, products, softmax, widens};
use crate::Level;
use crate::lines::Lines;
use crate::tile::LANES;

impl Attend<'_> {
    /// Adds the chunks' values, head by head, to the sums of all blocks. One head's values become tiles while those of the one before are multiplied.
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
                // SAFETY: shares and values are there, and the unit is as it should be; the rows are the pool's or staged.
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
    /// Adds the values of a block's `i`th head, as its lanes share them.
    ///
    /// # Safety
    /// The chunks' shares must have been made and their values be in tiles, or opened at levels without a unit that takes them; rows that come be there, and
    /// tiles configured for so many lanes where the level has them.
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
            // What follows is added in one go as long as no maximum moves.
            let steady = |c: &usize| block.meets(&chunks[*c]) && fade(*c).iter().all(|fade| *fade == 1.0);
            let end = at + 1 + (at + 1..chunks.len()).take_while(steady).count();
            softmax::fade(level, sums, shape.value_width, fade(at));
            let all: [products::Shared; TAKEN] = std::array::from_fn(|n| shared((at + n).min(end - 1)));
            // SAFETY: two tiles of shares and one behind them, two tiles of values for each 16 of the width; as the caller vouches.
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
