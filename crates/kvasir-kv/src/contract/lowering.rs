//! `Lowering`: rewrites any plan into one window of slots under one explicit attention mask, for
//! backends without block tables.
//!
//! 1. Collect every (position, pool, slot) that some batch row reads; sort and deduplicate: the
//!    window.
//! 2. Write the window as one segment per stretch in one pool: a run if the slots are consecutive,
//!    else a slot table.
//! 3. Per batch row, map its entries to window columns and set the bits that its mask shows each
//!    query.
//!
//! Each query sees the same entries in the same order as before; a row that reads nothing stays so.
//! `tests/oracle/device.rs` lowers
//! every plan it runs and compares.

use crate::contract::ids::{PoolId, Position, Slot};
use crate::contract::mask::{Mask, set_range, words_for};
use crate::contract::plan::Plan;
use crate::contract::section::{Layout, PlanKind, PlanRow, Section, Segment};
use crate::contract::span::Span;

/// Rewrites any plan into the explicit-mask form; keeps its memory from plan to plan. All batch
/// rows then read one *window*: every slot that some row reads, once, in rising order of position.
#[derive(Clone, Debug, Default)]
pub struct Lowering {
    window: Vec<(Position, PoolId, Slot)>,
    columns: Vec<u32>,
}

impl Lowering {
    /// Writes the explicit-mask form of `plan` into `out`, reusing its memory. Takes time and mask
    /// bits in proportion to queries times slots read; sorts the window. Lowers every section of
    /// attention layers; copies `states` unchanged.
    pub fn lower(&mut self, plan: &Plan, out: &mut Plan) {
        out.reset(plan.step, plan.generation);
        out.positions.extend_from_slice(&plan.positions);
        out.states.clone_from(&plan.states);
        self.lower_section(&plan.full, &mut out.full);
        out.windows.resize_with(plan.windows.len(), Section::default);
        for (section, out) in plan.windows.iter().zip(&mut out.windows) {
            self.lower_section(section, out);
        }
    }

    /// Writes the explicit-mask form of `section` into `out`, which must be empty.
    fn lower_section(&mut self, section: &Section, out: &mut Section) {
        out.kind = PlanKind::Explicit;
        out.moves.extend_from_slice(&section.moves);
        out.write_slots.extend_from_slice(&section.write_slots);
        out.read_bound = section.read_bound;
        self.window.clear();
        for row in &section.rows {
            self.window.extend(section.entries(row).map(|(pool, slot, position)| (position, pool, slot)));
        }
        self.window.sort_unstable();
        self.window.dedup();
        self.push_window(out);
        let (segments, read_len) = (Span::new(0, out.segments.len()), self.window.len() as u32);
        for row in &section.rows {
            if row.read_len == 0 {
                out.rows.push(PlanRow { segments: Span::default(), ..*row });
                continue;
            }
            let mask = self.push_mask(section, row, out);
            out.rows.push(PlanRow { segments, read_len, mask, left_pad_blocks: 0, ..*row });
        }
    }

    /// Writes the window: one segment per stretch in one pool.
    fn push_window(&self, out: &mut Section) {
        for stretch in self.window.chunk_by(|a, b| a.1 == b.1) {
            let Some(&(first, pool, start)) = stretch.first() else { continue };
            let layout = if stretch.iter().zip(start..).all(|(entry, slot)| entry.2 == slot) {
                Layout::Run { start }
            } else {
                let at = out.table.len() as u32;
                out.table.make_mut().extend(stretch.iter().map(|entry| entry.2));
                Layout::Table { at, block: 1, offset: 0 }
            };
            let sparse = if stretch.iter().zip(first..).all(|(entry, position)| entry.0 == position) {
                None
            } else {
                out.read_positions.extend(stretch.iter().map(|entry| entry.0));
                Some((out.read_positions.len() - stretch.len()) as u32)
            };
            out.segments.push(Segment { pool, layout, len: stretch.len() as u32, first, sparse });
        }
    }

    /// Writes the mask of one batch row over the window.
    fn push_mask(&mut self, section: &Section, row: &PlanRow, out: &mut Section) -> Mask {
        let window = &self.window;
        let column =
            |(pool, slot, position)| window.partition_point(|entry| *entry < (position, pool, slot)) as u32;
        self.columns.clear();
        self.columns.extend(section.entries(row).map(column));
        let per_query = words_for(window.len() as u32);
        let at = out.mask_words.len();
        out.mask_words.resize(at + (per_query * row.queries.len) as usize, 0);
        let first = self.columns.first().copied().unwrap_or(0);
        let together = self.columns.iter().zip(first..).all(|(&column, expected)| column == expected);
        for (query, words) in out.mask_words[at..].chunks_mut(per_query.max(1) as usize).enumerate() {
            let query = query as u32;
            match row.mask {
                Mask::None if together => set_range(words, first, first + row.read_len),
                Mask::Causal if together => {
                    set_range(
                        words,
                        first,
                        first + (row.read_len + query + 1).saturating_sub(row.queries.len),
                    );
                }
                _ => {
                    let seen =
                        self.columns.iter().zip(0..).filter(|&(_, entry)| section.sees(row, query, entry));
                    seen.for_each(|(&column, _)| set_range(words, column, column + 1));
                }
            }
        }
        Mask::Explicit { at: at as u32, words_per_query: per_query }
    }
}
