//! Serialization of a [`Step`] as 32-bit words, for the step broadcast and for step hashes.
//!
//! A list is encoded as its length and its elements, each of a fixed number of words. So most of a
//! step is copied in blocks. Sampling parameters are omitted, since only rank 0 samples.
//!
//! Decoding validates lengths and enumerations only; the executor validates the step.

use kvasir_exec::{BatchRow, Drafts, PoolRow, RowKind, Step, StepKind};
use kvasir_kv::{
    Layout, Mask, PlanKind, PlanRow, PlanTable, PoolId, Section, Segment, SeqId, SlotCopy, Span, StateRow,
    StateSave, StateSection, StepId,
};
use kvasir_sample::Sampling;
use std::ops::Range;

/// Words of an encoded batch row.
const ROW_WORDS: usize = 20;
/// Words of an encoded plan row.
const PLAN_ROW_WORDS: usize = 12;
/// Words of an encoded segment.
const SEGMENT_WORDS: usize = 9;
/// Words of an encoded state row.
const STATE_ROW_WORDS: usize = 10;

fn split_u64(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn join_u64(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Appends the encoding of a step, without its output and sampling parameters.
pub(crate) fn encode(step: &Step, into: &mut Vec<u32>) {
    let (batch, plan) = (&step.batch, &step.plan);
    into.extend(split_u64(batch.step.0));
    into.extend([batch.kind as u32, batch.spec_steps, batch.logits.into()]);
    into.extend(split_u64(plan.step.0));
    into.extend(split_u64(plan.generation));
    push_list(&batch.tokens, into);
    into.push(batch.rows.len() as u32);
    for row in &batch.rows {
        let [request, request_high] = split_u64(row.request);
        let [seq, seq_high] = split_u64(row.seq.0);
        let tree = row.drafts.tree.unwrap_or_default();
        let words: [u32; ROW_WORDS] = [
            request,
            request_high,
            seq,
            seq_high,
            row.kind as u32,
            row.tokens.start,
            row.tokens.len,
            row.cached,
            row.context_len,
            row.last_block_tokens,
            row.sample_from,
            row.scored.start,
            row.scored.len,
            row.pool_row.0,
            row.drafts.count,
            row.drafts.tree.is_some().into(),
            tree.start,
            tree.len,
            row.feeds_draft.into(),
            row.draft_depth,
        ];
        into.extend(words);
    }
    into.push(batch.parents.len() as u32);
    into.extend(batch.parents.iter().map(|parent| *parent as u32));
    push_list(&plan.positions, into);
    encode_section(&plan.full, into);
    into.push(plan.windows.len() as u32);
    plan.windows.iter().for_each(|section| encode_section(section, into));
    encode_states(&plan.states, into);
}

fn push_list(words: &[u32], into: &mut Vec<u32>) {
    into.push(words.len() as u32);
    into.extend_from_slice(words);
}

/// Appends the encoding of one layer group's section.
fn encode_section(section: &Section, into: &mut Vec<u32>) {
    into.extend([section.kind as u32, section.read_bound]);
    into.push(section.moves.len() as u32);
    into.extend(section.moves.iter().flat_map(|copy| [copy.from, copy.to]));
    into.push(section.rows.len() as u32);
    for row in &section.rows {
        let [seq, seq_high] = split_u64(row.seq.0);
        let [mask, at, words_per_query] = match row.mask {
            Mask::None => [0; 3],
            Mask::Causal => [1, 0, 0],
            Mask::Explicit { at, words_per_query } => [2, at, words_per_query],
        };
        let (queries, segments) = (row.queries, row.segments);
        let words: [u32; PLAN_ROW_WORDS] = [
            seq,
            seq_high,
            queries.start,
            queries.len,
            segments.start,
            segments.len,
            row.read_len,
            mask,
            at,
            words_per_query,
            row.left_pad_blocks,
            row.redirected,
        ];
        into.extend(words);
    }
    push_list(&section.write_slots, into);
    let entries = referenced_entries(section);
    let mut next = 0;
    into.push(section.segments.len() as u32);
    for segment in &section.segments {
        let [layout, at, block, offset] = match segment.layout {
            Layout::Run { start } => [0, start, 0, 0],
            Layout::Table { at, block, offset } => {
                let start = if entries.is_some() { next } else { at };
                next += table_range(segment).len() as u32;
                [1, start, block, offset]
            }
        };
        let (is_sparse, sparse) = (segment.sparse.is_some().into(), segment.sparse.unwrap_or(0));
        let words: [u32; SEGMENT_WORDS] =
            [segment.pool.0, layout, at, block, offset, segment.len, segment.first, is_sparse, sparse];
        into.extend(words);
    }
    match entries {
        Some(count) => {
            into.push(count as u32);
            section
                .segments
                .iter()
                .for_each(|segment| into.extend_from_slice(&section.table[table_range(segment)]));
        }
        None => push_list(&section.table, into),
    }
    push_list(&section.read_positions, into);
    into.push(section.mask_words.len() as u32);
    into.extend(section.mask_words.iter().flat_map(|word| split_u64(*word)));
}

/// Appends the encoding of the section of recurrent layers.
fn encode_states(states: &StateSection, into: &mut Vec<u32>) {
    into.push(states.bound);
    into.push(states.rows.len() as u32);
    for row in &states.rows {
        let (is_some, (pool, from)) = (row.from.is_some(), row.from.unwrap_or_default());
        let (saves, words) = (row.saves, [is_some.into(), pool.0, from, row.to, row.tail]);
        let rest = [row.replay, row.skip, row.commit, saves.start, saves.len];
        into.extend(words.into_iter().chain(rest));
    }
    into.push(states.saves.len() as u32);
    into.extend(states.saves.iter().flat_map(|save| [save.after, save.slot]));
}

/// The block-table entries that a segment references; empty for a contiguous run of slots.
fn table_range(segment: &Segment) -> Range<usize> {
    match segment.layout {
        Layout::Table { at, block, offset } => {
            let count = u64::from(offset) + u64::from(segment.len);
            at as usize..at as usize + count.div_ceil(u64::from(block.max(1))) as usize
        }
        Layout::Run { .. } => 0..0,
    }
}

/// Number of block-table entries that the segments reference; `None` if encoding the whole table is
/// not longer. Caches reserve unused entries in their tables.
fn referenced_entries(section: &Section) -> Option<usize> {
    let mut count = 0;
    for segment in &section.segments {
        let range = table_range(segment);
        count += range.len();
        if range.end > section.table.len() || count >= section.table.len() {
            return None;
        }
    }
    Some(count)
}

/// A cursor over the words that are not decoded yet.
struct WordReader<'a>(&'a [u32]);

impl<'a> WordReader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u32; N], String> {
        let (first, rest) = self.0.split_first_chunk().ok_or("unexpected end")?;
        self.0 = rest;
        Ok(*first)
    }

    /// The words of the next list, `element_words` per element.
    fn list(&mut self, element_words: usize) -> Result<&'a [u32], String> {
        let [count] = self.array()?;
        let length = (count as usize).checked_mul(element_words).filter(|length| *length <= self.0.len());
        let (first, rest) = self.0.split_at(length.ok_or("unexpected end of a list")?);
        self.0 = rest;
        Ok(first)
    }

    /// Replaces `into` by the next list.
    fn copy(&mut self, into: &mut Vec<u32>) -> Result<(), String> {
        let words = self.list(1)?;
        into.clear();
        into.extend_from_slice(words);
        Ok(())
    }
}

fn decode_enum<T: Copy>(name: &str, values: &[T], word: u32) -> Result<T, String> {
    values.get(word as usize).copied().ok_or_else(|| format!("{name} `{word}` is unknown"))
}

const STEP_KINDS: [StepKind; 4] = [StepKind::Prefill, StepKind::Decode, StepKind::Mixed, StepKind::Dummy];
const ROW_KINDS: [RowKind; 4] = [RowKind::Prefill, RowKind::Decode, RowKind::MultiDecode, RowKind::Dummy];
const PLAN_KINDS: [PlanKind; 3] = [PlanKind::Contiguous, PlanKind::Ragged, PlanKind::Explicit];

/// Decodes `words` into `step`, with default sampling parameters. On an error `step` is
/// unspecified.
pub(crate) fn decode(words: &[u32], step: &mut Step) -> Result<(), String> {
    let mut words = WordReader(words);
    let [id, id_high, kind, spec_steps, logits] = words.array()?;
    let (batch, plan) = (&mut step.batch, &mut step.plan);
    batch.reset(StepId(join_u64(id, id_high)));
    batch.kind = decode_enum("step kind", &STEP_KINDS, kind)?;
    (batch.spec_steps, batch.logits) = (spec_steps, logits != 0);
    let [id, id_high, generation, generation_high] = words.array()?;
    plan.reset(StepId(join_u64(id, id_high)), join_u64(generation, generation_high));
    words.copy(&mut batch.tokens)?;
    for row in words.list(ROW_WORDS)?.as_chunks().0 {
        let row: &[u32; ROW_WORDS] = row;
        batch.rows.push(BatchRow {
            request: join_u64(row[0], row[1]),
            seq: SeqId(join_u64(row[2], row[3])),
            kind: decode_enum("row kind", &ROW_KINDS, row[4])?,
            tokens: Span { start: row[5], len: row[6] },
            cached: row[7],
            context_len: row[8],
            last_block_tokens: row[9],
            sample_from: row[10],
            scored: Span { start: row[11], len: row[12] },
            pool_row: PoolRow(row[13]),
            drafts: Drafts {
                count: row[14],
                tree: Some(Span { start: row[16], len: row[17] }).filter(|_| row[15] != 0),
            },
            feeds_draft: row[18] != 0,
            draft_depth: row[19],
            sampling: Sampling::default(),
        });
    }
    batch.parents.extend(words.list(1)?.iter().map(|parent| *parent as i32));
    words.copy(&mut plan.positions)?;
    decode_section(&mut words, &mut plan.full)?;
    let [windows] = words.array()?;
    for _ in 0..windows {
        let mut section = Section::default();
        decode_section(&mut words, &mut section)?;
        plan.windows.push(section);
    }
    decode_states(&mut words, &mut plan.states)?;
    if words.0.is_empty() { Ok(()) } else { Err(format!("{} trailing words", words.0.len())) }
}

/// Decodes the section of one layer group into `section`, which must be empty.
fn decode_section(words: &mut WordReader<'_>, section: &mut Section) -> Result<(), String> {
    let [kind, read_bound] = words.array()?;
    (section.kind, section.read_bound) = (decode_enum("plan kind", &PLAN_KINDS, kind)?, read_bound);
    let moves = words.list(2)?.as_chunks().0;
    section.moves.extend(moves.iter().map(|&[from, to]| SlotCopy { from, to }));
    for row in words.list(PLAN_ROW_WORDS)?.as_chunks().0 {
        let row: &[u32; PLAN_ROW_WORDS] = row;
        section.rows.push(PlanRow {
            seq: SeqId(join_u64(row[0], row[1])),
            queries: Span { start: row[2], len: row[3] },
            segments: Span { start: row[4], len: row[5] },
            read_len: row[6],
            mask: match row[7] {
                0 => Mask::None,
                1 => Mask::Causal,
                2 => Mask::Explicit { at: row[8], words_per_query: row[9] },
                other => return Err(format!("mask `{other}` is unknown")),
            },
            left_pad_blocks: row[10],
            redirected: row[11],
        });
    }
    words.copy(&mut section.write_slots)?;
    for segment in words.list(SEGMENT_WORDS)?.as_chunks().0 {
        let &[pool, layout, at, block, offset, len, first, is_sparse, sparse]: &[u32; SEGMENT_WORDS] =
            segment;
        section.segments.push(Segment {
            pool: PoolId(pool),
            layout: match layout {
                0 => Layout::Run { start: at },
                1 => Layout::Table { at, block, offset },
                other => return Err(format!("layout `{other}` is unknown")),
            },
            len,
            first,
            sparse: Some(sparse).filter(|_| is_sparse != 0),
        });
    }
    let mut table = Vec::from(std::mem::take(&mut section.table));
    words.copy(&mut table)?;
    section.table = PlanTable::from(table);
    words.copy(&mut section.read_positions)?;
    let masks = words.list(2)?.as_chunks().0;
    section.mask_words.extend(masks.iter().map(|&[low, high]| join_u64(low, high)));
    Ok(())
}

/// Decodes the section of recurrent layers into `states`, which must be empty.
fn decode_states(words: &mut WordReader<'_>, states: &mut StateSection) -> Result<(), String> {
    [states.bound] = words.array()?;
    for row in words.list(STATE_ROW_WORDS)?.as_chunks().0 {
        let &[is_some, pool, from, to, tail, replay, skip, commit, start, len]: &[u32; STATE_ROW_WORDS] = row;
        let from = Some((PoolId(pool), from)).filter(|_| is_some != 0);
        states.rows.push(StateRow { from, to, tail, replay, skip, commit, saves: Span { start, len } });
    }
    let saves = words.list(2)?.as_chunks().0;
    states.saves.extend(saves.iter().map(|&[after, slot]| StateSave { after, slot }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::Random;

    /// A step of random field values, which no executor would accept.
    fn random_step(random: &mut Random) -> Step {
        let mut step = Step::default();
        let (batch, plan) = (&mut step.batch, &mut step.plan);
        let mut number = || random.below(1 << 32) as u32;
        let u64_of = |low: u32, high: u32| join_u64(low, high);
        (batch.step, plan.step) = (StepId(u64_of(number(), number())), StepId(number().into()));
        plan.generation = u64_of(number(), number());
        batch.kind = STEP_KINDS[number() as usize % 4];
        plan.kind = PLAN_KINDS[number() as usize % 3];
        (batch.spec_steps, batch.logits, plan.read_bound) = (number(), number() % 2 == 0, number());
        let mut span = || Span { start: number(), len: number() };
        for _ in 0..5 {
            let (tokens, scored, tree, other, both) = (span(), span(), span(), span(), span());
            batch.rows.push(BatchRow {
                request: join_u64(other.start, other.len),
                seq: SeqId(join_u64(both.start, both.len)),
                kind: ROW_KINDS[other.start as usize % 4],
                tokens,
                cached: both.len,
                context_len: tree.len,
                last_block_tokens: scored.len,
                sample_from: tokens.len,
                scored,
                pool_row: PoolRow(other.len),
                drafts: Drafts { count: both.start, tree: Some(tree).filter(|_| tree.len % 2 == 0) },
                feeds_draft: scored.len % 2 == 0,
                draft_depth: other.start,
                sampling: Sampling::default(),
            });
            let masks =
                [Mask::None, Mask::Causal, Mask::Explicit { at: tree.len, words_per_query: both.len }];
            plan.rows.push(PlanRow {
                seq: SeqId(join_u64(both.start, both.len)),
                queries: tokens,
                segments: scored,
                read_len: tree.start,
                mask: masks[other.len as usize % 3],
                left_pad_blocks: both.len,
                redirected: other.start,
            });
            let table = Layout::Table { at: tree.start, block: tree.len, offset: scored.start };
            let layout = if tree.start % 2 == 0 { table } else { Layout::Run { start: tree.start } };
            let sparse = Some(other.len).filter(|sparse| sparse % 2 == 0);
            let pool = PoolId(both.start);
            plan.segments.push(Segment { pool, layout, len: scored.len, first: tokens.len, sparse });
            plan.moves.push(SlotCopy { from: tree.start, to: scored.len });
            batch.tokens.push(tokens.start);
            batch.parents.push(tree.len as i32);
            plan.positions.push(tokens.len);
            plan.write_slots.push(both.len);
            plan.read_positions.push(other.len);
            plan.mask_words.push(join_u64(other.start, both.len));
            plan.table.make_mut().push(scored.start);
            plan.states.rows.push(StateRow {
                from: Some((pool, tree.len)).filter(|_| tree.len % 3 == 0),
                to: scored.len,
                tail: other.len,
                replay: both.len,
                skip: tokens.len,
                commit: tree.start,
                saves: other,
            });
            plan.states.saves.push(StateSave { after: both.start, slot: scored.start });
        }
        plan.states.bound = plan.read_bound;
        let window = Section { kind: PLAN_KINDS[plan.rows.len() % 3], ..plan.full.clone() };
        plan.windows.resize(plan.read_bound as usize % 3, window);
        step
    }

    #[test]
    fn steps_survive_encoding() {
        let mut decoded = Step::default();
        for seed in 0..200 {
            let mut step = random_step(&mut Random::new(seed));
            let mut words = Vec::new();
            encode(&step, &mut words);
            if step.plan.segments.iter().all(|segment| matches!(segment.layout, Layout::Run { .. })) {
                // No segment references an entry, so none is encoded.
                step.plan.table.clear();
                step.plan.windows.iter_mut().for_each(|section| section.table.clear());
            }
            assert_eq!(decode(&words, &mut decoded), Ok(()));
            assert_eq!(decoded, step, "seed {seed}");
        }
    }

    #[test]
    fn unreferenced_table_entries_are_not_encoded() {
        let mut step = Step::default();
        for row in 0..3 {
            let layout = Layout::Table { at: row * 10, block: 16, offset: 5 };
            let (pool, len, first) = (PoolId(0), 30 + row, 0);
            step.plan.segments.push(Segment { pool, layout, len, first, sparse: None });
            step.plan.rows.push(PlanRow { segments: Span::new(row as usize, 1), ..PlanRow::default() });
        }
        *step.plan.table.make_mut() = (100..130).collect();
        let (mut words, mut decoded) = (Vec::new(), Step::default());
        encode(&step, &mut words);
        assert_eq!(decode(&words, &mut decoded), Ok(()));
        assert_eq!(decoded.plan.table.len(), 9);
        for row in &step.plan.rows {
            assert!(decoded.plan.entries(row).eq(step.plan.entries(row)));
        }
    }

    #[test]
    fn corrupt_steps_never_panic() {
        let mut errors = 0;
        for seed in 0..3000 {
            let mut random = Random::new(seed);
            let mut words = Vec::new();
            encode(&random_step(&mut random), &mut words);
            match random.below(3) {
                0 => words.truncate(random.below(words.len() as u64) as usize),
                1 => words.push(random.below(1 << 32) as u32),
                _ => {
                    let at = random.below(words.len() as u64) as usize;
                    words[at] = random.below(1 << 32) as u32;
                }
            }
            errors += u32::from(decode(&words, &mut Step::default()).is_err());
        }
        assert!(errors > 2000, "{errors}");
    }
}
