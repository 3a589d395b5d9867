//! Model of a cache with window groups: which positions its sequences own, and which prefixes it
//! caches. It has no slots or blocks of its own.

use kvasir_kv::{Position, SeqId, StepId, Token};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// Mixes two hashes.
fn mix(a: u64, b: u64) -> u64 {
    (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

/// One K/V row: its token, and a hash of everything that was visible when it was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) token: Token,
    pub(crate) content: u64,
}

/// One query of a step.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) position: Position,
    /// Whether its K and V are cached already. Its output is not used.
    pub(crate) is_redirected: bool,
    pub(crate) content: u64,
    /// The rows up to this query.
    pub(crate) visible: Vec<(Position, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) step: StepId,
    pub(crate) start: Position,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) rows: BTreeMap<Position, Row>,
    pub(crate) prompt: Vec<Token>,
    pub(crate) salt: u64,
    pub(crate) family: u32,
    /// Claims in flight, oldest first.
    pub(crate) claims: Vec<Claim>,
    /// Number of released blocks per window group.
    pub(crate) released: Vec<u32>,
    /// Hash of all rows.
    rows_hash: u64,
}

impl Sequence {
    pub(crate) fn new(windows: usize) -> Self {
        Self { released: vec![0; windows], ..Self::default() }
    }

    pub(crate) fn next(&self) -> Position {
        self.rows.last_key_value().map_or(0, |(position, _)| position + 1)
    }

    /// Position after the last retired row.
    pub(crate) fn retired_next(&self) -> Position {
        self.claims.first().map_or(Position::MAX, |claim| claim.start).min(self.next())
    }

    /// Number of positions directly below the next one that it owns.
    pub(crate) fn tail(&self) -> u32 {
        let owned = (0..self.next()).rev().take_while(|position| self.rows.contains_key(position));
        owned.count() as u32
    }

    /// The tokens before the first hole.
    pub(crate) fn leading_tokens(&self) -> Vec<Token> {
        let rows = (0..).zip(&self.rows).take_while(|(at, (position, _))| at == *position);
        rows.map(|(_, (_, row))| row.token).collect()
    }

    pub(crate) fn push(&mut self, token: Token) {
        if self.rows.is_empty() {
            self.rows_hash = mix(self.salt, 1);
        }
        let content = mix(self.rows_hash, u64::from(token));
        self.rows_hash = mix(self.rows_hash, content);
        self.rows.insert(self.next(), Row { token, content });
    }

    pub(crate) fn remove(&mut self, range: Range<Position>) {
        self.rows.retain(|position, _| !range.contains(position));
        self.on_rows_changed();
    }

    pub(crate) fn truncate(&mut self, to: Position) {
        self.remove(to..Position::MAX);
    }

    /// Adds copies of retired rows of `source`.
    pub(crate) fn copy(&mut self, source: &Self, range: Range<Position>) {
        let end = source.retired_next().min(range.end);
        if range.start >= end {
            return;
        }
        if self.rows.is_empty() {
            (self.salt, self.family) = (source.salt, source.family);
        }
        self.rows.extend(source.rows.range(range.start..end));
        self.on_rows_changed();
    }

    fn on_rows_changed(&mut self) {
        let next = self.next();
        self.rows_hash = self.rows.values().fold(mix(self.salt, 1), |hash, row| mix(hash, row.content));
        self.claims.iter_mut().for_each(|claim| claim.start = claim.start.min(next));
    }

    /// The queries of a claim of the last `tokens` rows, after `redirected` earlier ones.
    pub(crate) fn queries(&self, redirected: u32, tokens: u32) -> Vec<Query> {
        let next = self.next();
        let rows = self.rows.range(next - tokens - redirected..);
        let query = |(&position, row): (&Position, &Row)| Query {
            position,
            is_redirected: position < next - tokens,
            content: row.content,
            visible: self.rows.range(..=position).map(|(at, row)| (*at, row.content)).collect(),
        };
        rows.map(query).collect()
    }
}

/// Which prefixes are cached, if nothing is evicted.
#[derive(Debug, Default)]
pub(crate) struct CachedPrefixes {
    /// Contents of the last rows of published blocks.
    published: HashSet<u64>,
    /// Per window group, those of the published blocks whose companion it has linked.
    linked: Vec<HashSet<u64>>,
    /// Blocks that a window group released since its last allocation: group, sequence, block.
    pub(crate) just_released: HashSet<(usize, SeqId, u32)>,
}

/// A window group of the test: its window, and the number of last retired rows that it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) window: u32,
    pub(crate) kept_rows: u32,
}

impl CachedPrefixes {
    pub(crate) fn new(windows: usize) -> Self {
        Self { linked: vec![HashSet::new(); windows], ..Self::default() }
    }

    /// Releases the blocks before the windows of a sequence.
    pub(crate) fn release(&mut self, id: SeqId, seq: &mut Sequence, windows: &[Window], block: u32) {
        let retired = seq.retired_next();
        for (group, (window, released)) in windows.iter().zip(&mut seq.released).enumerate() {
            let to = retired.saturating_sub(window.kept_rows) / block;
            self.just_released.extend((*released..to).map(|at| (group, id, at)));
            *released = to.max(*released);
        }
    }

    /// Publishes the blocks of a sequence up to `computed`.
    pub(crate) fn publish(&mut self, id: SeqId, seq: &Sequence, computed: Position, block: u32) {
        for at in 0..computed / block {
            let content = seq.rows[&((at + 1) * block - 1)].content;
            self.published.insert(content);
            for (group, (linked, released)) in self.linked.iter_mut().zip(&seq.released).enumerate() {
                if at >= *released || self.just_released.contains(&(group, id, at)) {
                    linked.insert(content);
                }
            }
        }
    }

    /// Length of the hit of a prompt.
    pub(crate) fn hit(&self, prompt: &[Token], salt: u64, windows: &[Window], block: u32) -> u32 {
        let mut seq = Sequence { salt, ..Sequence::default() };
        prompt.iter().for_each(|token| seq.push(*token));
        let most = (prompt.len() as u32 - 1) / block;
        let content = |at: u32| seq.rows[&((at + 1) * block - 1)].content;
        let matched = (0..most).take_while(|at| self.published.contains(&content(*at))).count() as u32;
        let are_windows_cached = |blocks: &u32| {
            windows.iter().zip(&self.linked).all(|(window, linked)| {
                let first = (blocks * block + 1).saturating_sub(window.window) / block;
                (first..*blocks).all(|at| linked.contains(&content(at)))
            })
        };
        (0..=matched).rev().find(are_windows_cached).unwrap() * block
    }
}
