//! Matrices of integers times rows, several at once where they take the same rows: sharing work out costs a moment each time.

use super::activations::QuantActivations;
use super::format::SUPER;
use super::layouts::{self, Layout};
use super::panels::{QuantPanels, QuantReader};
use super::{Panel, few_rows};
use crate::first::First;
use crate::matmul::{AT_ONCE, Output};
use crate::panels::{Kind, Room};
use crate::tile::LANES;
use crate::{Level, Team};
use std::cell::RefCell;
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use {super::many_rows, super::pairs, crate::matmul::token_blocks};

/// Bytes that one piece of work reads where few rows are multiplied.
const PIECE: usize = 32 * 1024;
/// Rows up to which a pair of panels takes so little time that several are one piece of work.
#[cfg(target_arch = "x86_64")]
pub(super) const SHORT: usize = 64;

thread_local! {
    /// Where panels are made that are not packed.
    pub(super) static MADE: RefCell<[Room; 2]> = const { RefCell::new([Room::new(), Room::new()]) };
}

/// `out[row] = w · x[row]`, of at most [`AT_ONCE`] matrices that take the same rows, which are there when what comes `first` is done.
pub(crate) fn matmul<'a, 'o: 'a>(
    team: &Team,
    level: Level,
    all: impl Iterator<Item = (&'a QuantPanels, &'a mut Output<'o>)>,
    x: &'a QuantActivations,
    first: &First<'_>,
) {
    let mut products: [Option<Product<'_, '_>>; AT_ONCE] = [const { None }; AT_ONCE];
    let mut there = 0;
    for (w, out) in all {
        let out = &*out;
        assert!(fits(w, x, out.rows()), "rows and matrix fit");
        match w.packed_reader() {
            Some(reader) => {
                products[there] = Some(Product::new(level, reader, x, out));
                there += 1;
            }
            None => w.read(team, |w| multiply(team, &[Some(Product::new(level, w, x, out))], first)),
        }
    }
    multiply(team, &products, first);
}

/// Whether so many rows are there, and have the superblocks that the matrix multiplies.
pub(super) fn fits(w: &QuantPanels, x: &QuantActivations, rows: usize) -> bool {
    x.takes(rows) && x.supers * w.kind.format.planes == w.kind.supers
}

fn multiply(team: &Team, products: &[Option<Product<'_, '_>>], first: &First<'_>) {
    let there = || products.iter().flatten();
    let pieces = there().map(|product| product.pieces).sum();
    // Whose piece one is, and which of its own.
    let find = |mut piece: usize| {
        there().find_map(|product| {
            let found = (piece < product.pieces).then_some((product, piece));
            piece = piece.wrapping_sub(product.pieces);
            found
        })
    };
    let some = |pieces: Range<usize>| {
        let begins = |n: usize| match find(pieces.start + n) {
            Some((product, piece)) => product.w.packed_from(piece * product.panels),
            None => &[],
        };
        team.each_in_order_after(first, &begins, pieces.len(), &|_, n| {
            if let Some((product, piece)) = find(pieces.start + n) {
                // SAFETY: no two products have outputs in common, and no two pieces of one.
                unsafe { product.piece(piece) };
            }
        });
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(Some(first)) = products.first()
        && there().all(|product| product.block.is_none() && product.w.is_packed())
    {
        let bytes = there().map(|product| product.w.panels.bytes()).sum();
        let format = first.w.panels.kind.format;
        return super::few::asking(format, first.x.supers, first.out.rows()).work(bytes, pieces, some);
    }
    some(0..pieces);
}

/// A matrix, the rows that it is multiplied with, and where the results go.
struct Product<'a, 'r> {
    level: Level,
    w: QuantReader<'a, 'r>,
    x: &'a QuantActivations,
    out: &'a Output<'a>,
    /// Pieces of work.
    pieces: usize,
    /// Panels of one.
    panels: usize,
    /// Rows of one, where they are many; else it has all.
    block: Option<usize>,
    /// Does one, in the layout that the matrix has.
    work: unsafe fn(&Self, usize, &mut [Room; 2]),
}

impl<'a, 'r> Product<'a, 'r> {
    fn new(level: Level, w: QuantReader<'a, 'r>, x: &'a QuantActivations, out: &'a Output<'a>) -> Self {
        let (all, rows) = (w.panels.panels(), out.rows());
        let work = layouts::with_layout!(w.panels.kind.format, L => Self::piece_of::<L> as unsafe fn(&Self, usize, &mut [Room; 2]));
        let once = (PIECE / w.panels.kind.panel_bytes().max(1)).clamp(1, 64);
        #[cfg(target_arch = "x86_64")]
        if pairs::takes(level, w.panels.kind.format, rows) {
            let block = token_blocks(rows, x.supers * SUPER).min(pairs::BLOCK);
            let panels = if rows <= SHORT { once.next_multiple_of(2) } else { 2 };
            let pieces = all.div_ceil(panels) * rows.div_ceil(block);
            return Self { level, w, x, out, pieces, panels, block: Some(block), work };
        }
        let _ = rows;
        Self { level, w, x, out, pieces: all.div_ceil(once), panels: once, block: None, work }
    }

    /// Does one piece of the work.
    ///
    /// # Safety
    /// Nobody else may write the outputs of its panels meanwhile.
    unsafe fn piece(&self, piece: usize) {
        // SAFETY: the function is that of the matrix's layout; as the caller vouches.
        MADE.with_borrow_mut(|made| unsafe { (self.work)(self, piece, made) });
    }

    /// # Safety
    /// As for [`piece`](Self::piece); the matrix must have the layout.
    unsafe fn piece_of<L: Layout>(&self, piece: usize, made: &mut [Room; 2]) {
        let Self { level, w, x, out, .. } = *self;
        let all = w.panels.panels();
        let some = |group: usize| -> Range<usize> { group * self.panels..all.min((group + 1) * self.panels) };
        #[cfg(target_arch = "x86_64")]
        if let Some(block) = self.block {
            let groups = all.div_ceil(self.panels);
            let (first, panels) = (piece / groups * block, some(piece % groups));
            let rows = first..out.rows().min(first + block);
            // SAFETY: the level takes so many rows, and they exist; the caller vouches for the outputs.
            return unsafe { many_rows::<L>(level, (w, panels), x, rows, made, out) };
        }
        for n in some(piece) {
            let panel = Panel { bytes: w.panel(n, &mut made[0]), first: n * LANES };
            // SAFETY: the rows exist; the caller vouches for the outputs.
            unsafe { few_rows::<L>(level, &panel, x, out) };
        }
    }
}
