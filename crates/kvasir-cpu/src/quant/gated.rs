//! A gate and its partner in one piece of work: what they yield is activated and made integers while it is in the cache, and neither is ever
//! stored as a value.

use super::activations::QuantActivations;
use super::format::SUPER;
use super::layouts;
use super::pairs::{self, BLOCK, Pair, Room};
use super::panels::{QuantPanels, QuantReader};
use super::product::{MADE, fits};
use crate::matmul::token_blocks;
use crate::tile::LANES;
use crate::{Level, Team, panels, rows as arithmetic};
use kvasir_program::Activation;
use std::cell::RefCell;
use std::ops::Range;

/// Two matrices of one layout that take the same rows, and what joins their results.
pub(crate) struct Gated<'w> {
    pub(crate) gate: &'w QuantPanels,
    pub(crate) up: &'w QuantPanels,
    pub(crate) activation: Activation,
}

/// One panel's activated results, and those of a superblock of outputs, row after row.
struct Results {
    panel: Vec<f32>,
    rows: Vec<[f32; SUPER]>,
}

thread_local! {
    static RESULTS: RefCell<Results> = const { RefCell::new(Results { panel: Vec::new(), rows: Vec::new() }) };
}

impl Gated<'_> {
    /// Whether this pays and works for so many rows.
    pub(crate) fn takes(&self, level: Level, rows: usize) -> bool {
        pairs::takes(level, self.gate.kind.format, rows)
            && self.gate.kind.format == self.up.kind.format
            && (self.gate.kind.supers, self.gate.outputs) == (self.up.kind.supers, self.up.outputs)
    }

    /// `to[row]` = the activation of both matrices times `x[row]`, as integers, for the first `rows` rows. The bits are those of the products, the
    /// activation and the quantisation one after the other.
    pub(crate) fn multiply(
        &self,
        team: &Team,
        level: Level,
        x: &QuantActivations,
        rows: usize,
        to: &QuantActivations,
    ) {
        assert!(self.takes(level, rows) && fits(self.gate, x, rows), "rows and matrices fit");
        assert!(to.takes(rows) && to.supers == self.gate.outputs.div_ceil(SUPER), "and what comes of them");
        let block = token_blocks(rows, x.supers * SUPER).min(BLOCK);
        self.gate.read(team, |gate| {
            self.up.read(team, |up| {
                team.each_in_order(to.supers * rows.div_ceil(block), &|_, item| {
                    let (first, s) = (item / to.supers * block, item % to.supers);
                    let rows = first..rows.min(first + block);
                    RESULTS
                        .with_borrow_mut(|made| self.superblock(level, (gate, up), (s, rows), x, made, to));
                });
            });
        });
    }

    fn superblock(
        &self,
        level: Level,
        (gate, up): (QuantReader<'_, '_>, QuantReader<'_, '_>),
        (s, rows): (usize, Range<usize>),
        x: &QuantActivations,
        made: &mut Results,
        to: &QuantActivations,
    ) {
        made.panel.resize(BLOCK * LANES, 0.0);
        made.rows.resize(BLOCK, [0.0; SUPER]);
        let panels = s * SUPER / LANES..self.gate.panels().min((s + 1) * SUPER / LANES);
        let mut multiply = |panel: usize, [a, b]: &mut [panels::Room; 2], room: &mut Room| {
            let both = [gate.panel_at(panel, a), up.panel_at(panel, b)];
            let next = gate.packed_at(panel + 1).zip(up.packed_at(panel + 1));
            let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
            // SAFETY: the level takes so many rows, which exist, both panels have layout `L`, and blocks of rows begin with a tile.
            layouts::with_layout!(self.gate.kind.format, L => unsafe {
                pairs::panels::<L, 2>(level, &pair, x, rows.clone(), room, None);
            });
            let [gate, up] = room.sums.each_ref().map(|sums| &sums.as_flattened()[..rows.len() * LANES]);
            arithmetic::gate(level, gate, up, self.activation, &mut made.panel[..rows.len() * LANES]);
            let at = (panel - panels.start) * LANES;
            for (row, y) in made.rows.iter_mut().zip(made.panel[..rows.len() * LANES].as_chunks::<LANES>().0)
            {
                if let Some(part) = row[at..].first_chunk_mut() {
                    *part = *y;
                }
            }
        };
        MADE.with_borrow_mut(|made| {
            pairs::with_room(level, |room| {
                panels.clone().for_each(|panel| multiply(panel, made, room));
            });
        });
        // Outputs past the last are none: a panel's weights past them are zeros, and so are the panels' that are not there.
        for row in &mut made.rows[..rows.len()] {
            row[panels.len() * LANES..].fill(0.0);
        }
        for (row, y) in rows.zip(&made.rows) {
            // SAFETY: the piece of work has these rows' superblock to itself, and there is room for the rows.
            unsafe { to.write_super(level, row, s, y) };
        }
    }
}
