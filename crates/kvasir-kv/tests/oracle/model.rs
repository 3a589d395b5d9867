//! `Model`: the naive cache: per sequence a map from positions to tags, draft nodes, and the steps
//! in flight.
//!
//! It predicts for each operation whether it is refused (not with which error), and for each query
//! which tags it must see.

use kvasir_kv::{CacheKind, ClaimRow, SeqId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) tag: u32,
    /// The step in flight that will publish it.
    pub(crate) step: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: i32,
    pub(crate) tag: u32,
    pub(crate) step: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seq {
    pub(crate) rows: BTreeMap<u32, Row>,
    pub(crate) family: u32,
    pub(crate) nodes: Vec<Node>,
    pub(crate) proposed: Vec<i32>,
}

impl Seq {
    pub(crate) fn next(&self) -> u32 {
        self.rows.last_key_value().map_or(0, |(position, _)| position + 1)
    }

    pub(crate) fn len(&self) -> u32 {
        self.rows.values().filter(|row| row.step.is_none()).count() as u32
    }

    pub(crate) fn depth(&self, node: usize) -> u32 {
        match self.nodes[node].parent {
            -1 => 0,
            parent => 1 + self.depth(parent as usize),
        }
    }

    fn is_idle(&self) -> bool {
        self.nodes.is_empty() && self.proposed.is_empty()
    }
}

/// What one query token of a step must see.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    pub(crate) position: u32,
    pub(crate) tag: u32,
    pub(crate) visible: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct InFlightStep {
    pub(crate) step: u64,
    pub(crate) seqs: Vec<(SeqId, u32)>,
    /// Tags released while it was in flight.
    leased: Vec<u32>,
}

/// `Err(())` is a refusal; the model does not predict which error.
pub(crate) type Verdict = Result<(), ()>;

pub(crate) struct Model {
    pub(crate) kind: CacheKind,
    pub(crate) capacity: u32,
    pub(crate) max_sequences: usize,
    pub(crate) window: Option<u32>,
    pub(crate) seqs: BTreeMap<SeqId, Seq>,
    pub(crate) flights: VecDeque<InFlightStep>,
    families: u32,
    tags: u32,
    /// The last step of the previous sequence of a single-sequence cache.
    line_leased_by: Option<u64>,
}

impl Model {
    pub(crate) fn new(kind: CacheKind, capacity: u32, max_sequences: usize, window: Option<u32>) -> Self {
        let (seqs, flights) = (BTreeMap::new(), VecDeque::new());
        Self {
            kind,
            capacity,
            max_sequences,
            window,
            seqs,
            flights,
            families: 0,
            tags: 0,
            line_leased_by: None,
        }
    }

    fn is_line(&self) -> bool {
        self.kind.holds_one_sequence()
    }

    fn in_flight(&self, seq: SeqId) -> bool {
        self.flights.iter().any(|flight| flight.seqs.iter().any(|(s, _)| *s == seq))
    }

    pub(crate) fn free(&self) -> u32 {
        if self.line_leased_by.is_some_and(|step| self.flights.iter().any(|f| f.step <= step)) {
            return 0;
        }
        let mut used: BTreeSet<u32> = BTreeSet::new();
        for seq in self.seqs.values() {
            used.extend(seq.rows.values().map(|row| row.tag).chain(seq.nodes.iter().map(|node| node.tag)));
        }
        used.extend(self.flights.iter().flat_map(|flight| &flight.leased));
        self.capacity - used.len() as u32
    }

    pub(crate) fn opened(&mut self, seq: SeqId) {
        self.families += 1;
        assert!(
            self.seqs.insert(seq, Seq { family: self.families, ..Seq::default() }).is_none(),
            "{seq:?} again"
        );
    }

    /// Releases tags of a sequence: a step in flight that names it leases them.
    fn release(&mut self, seq: SeqId, tags: Vec<u32>) {
        let named = |flight: &&mut InFlightStep| flight.seqs.iter().any(|(s, _)| *s == seq);
        if !self.is_line()
            && let Some(flight) = self.flights.iter_mut().rev().find(named)
        {
            flight.leased.extend(tags);
        }
    }

    pub(crate) fn close(&mut self, seq: SeqId) -> Verdict {
        let gone = self.seqs.remove(&seq).ok_or(())?;
        if self.is_line() {
            self.line_leased_by = self.flights.back().map(|flight| flight.step);
        }
        let tags = gone.rows.values().map(|row| row.tag).chain(gone.nodes.iter().map(|node| node.tag));
        self.release(seq, tags.collect());
        Ok(())
    }

    pub(crate) fn claim(&mut self, step: u64, rows: &[ClaimRow]) -> Verdict {
        let distinct: BTreeSet<_> = rows.iter().map(|row| row.seq).collect();
        let total: u32 = rows.iter().map(|row| row.tokens).sum();
        let fits = total <= self.free() && !rows.is_empty() && distinct.len() == rows.len();
        if !fits || (self.is_line() && rows.len() > 1) {
            return Err(());
        }
        for row in rows {
            let seq = self.seqs.get(&row.seq).ok_or(())?;
            let proposed = seq.proposed.len() as u32;
            if row.tokens == 0
                || (proposed > 0 && proposed != row.tokens)
                || (proposed == 0 && !seq.nodes.is_empty())
            {
                return Err(());
            }
        }
        for row in rows {
            let seq = self.seqs.get_mut(&row.seq).unwrap();
            let proposed = std::mem::take(&mut seq.proposed);
            let next = seq.next();
            for i in 0..row.tokens {
                let tag = self.tags;
                self.tags += 1;
                match proposed.get(i as usize) {
                    Some(&parent) => seq.nodes.push(Node { parent, tag, step }),
                    None => {
                        seq.rows.insert(next + i, Row { tag, step: Some(step) });
                    }
                }
            }
        }
        let seqs = rows.iter().map(|row| (row.seq, row.tokens)).collect();
        self.flights.push_back(InFlightStep { step, seqs, leased: Vec::new() });
        Ok(())
    }

    /// What the queries of a step must see, or `None` when part of the claim was truncated.
    pub(crate) fn queries(&self, step: u64) -> Option<Vec<Query>> {
        let flight = self.flights.iter().find(|flight| flight.step == step)?;
        let mut queries = Vec::new();
        for (id, tokens) in &flight.seqs {
            let seq = self.seqs.get(id)?;
            let before = queries.len();
            let in_window = |position: u32, query: u32| self.window.is_none_or(|w| position + w > query);
            for (&position, row) in seq.rows.iter().filter(|(_, row)| row.step == Some(step)) {
                let seen = seq.rows.range(..=position).filter(|(p, _)| in_window(**p, position));
                queries.push(Query {
                    position,
                    tag: row.tag,
                    visible: seen.map(|(_, row)| row.tag).collect(),
                });
            }
            for (n, node) in seq.nodes.iter().enumerate().filter(|(_, node)| node.step == step) {
                let position = seq.next() + seq.depth(n);
                let prefix = seq.rows.iter().filter(|(p, _)| in_window(**p, position));
                let mut visible: Vec<_> = prefix.map(|(_, row)| row.tag).collect();
                let mut chain: Vec<_> =
                    std::iter::successors(Some(n), |&n| usize::try_from(seq.nodes[n].parent).ok())
                        .filter(|&n| in_window(seq.next() + seq.depth(n), position))
                        .map(|n| seq.nodes[n].tag)
                        .collect();
                chain.reverse();
                visible.extend(chain);
                queries.push(Query { position, tag: node.tag, visible });
            }
            if queries.len() - before != *tokens as usize {
                return None;
            }
        }
        Some(queries)
    }

    pub(crate) fn retire(&mut self) {
        let flight = self.flights.pop_front().unwrap();
        for row in self.seqs.values_mut().flat_map(|seq| seq.rows.values_mut()) {
            row.step = row.step.filter(|&step| step != flight.step);
        }
    }

    pub(crate) fn cancel(&mut self) {
        let flight = self.flights.pop_back().unwrap();
        for seq in self.seqs.values_mut() {
            seq.rows.retain(|_, row| row.step != Some(flight.step));
            if seq.nodes.iter().any(|node| node.step == flight.step) {
                let back = seq.nodes.iter().filter(|node| node.step == flight.step);
                seq.proposed = back.map(|node| node.parent).collect();
                seq.nodes.retain(|node| node.step != flight.step);
            }
        }
        if let Some(before) = self.flights.back_mut() {
            before.leased.extend(flight.leased);
        }
    }

    pub(crate) fn remove(&mut self, id: SeqId, range: Range<u32>) -> Verdict {
        let seq = self.seqs.get_mut(&id).ok_or(())?;
        if !seq.is_idle() {
            return Err(());
        }
        let gone: Vec<_> =
            seq.rows.range(range.start..range.end.max(range.start)).map(|(p, r)| (*p, r.tag)).collect();
        gone.iter().for_each(|(position, _)| {
            seq.rows.remove(position);
        });
        self.release(id, gone.into_iter().map(|(_, tag)| tag).collect());
        Ok(())
    }

    pub(crate) fn rewind(&mut self, id: SeqId, to: u32) -> Verdict {
        if self.seqs.get(&id).ok_or(())?.next() < to { Err(()) } else { self.remove(id, to..u32::MAX) }
    }

    pub(crate) fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<u32>) -> Verdict {
        let (s, d) = (self.seqs.get(&src).ok_or(())?, self.seqs.get(&dst).ok_or(())?);
        let rows =
            s.rows.range(range.start..range.end.max(range.start)).filter(|(_, row)| row.step.is_none());
        let rows: Vec<_> = rows.map(|(p, row)| (*p, *row)).collect();
        if s.len() == 0 {
            return Err(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        let foreign = !d.rows.is_empty() && d.family != s.family;
        let claimed = d.rows.values().any(|row| row.step.is_some());
        if rows.is_empty()
            || rows.iter().any(|(p, _)| d.rows.contains_key(p))
            || foreign
            || claimed
            || !d.is_idle()
        {
            return Err(());
        }
        let family = s.family;
        let d = self.seqs.get_mut(&dst).unwrap();
        d.rows.extend(rows);
        d.family = family;
        Ok(())
    }

    pub(crate) fn fork(&mut self, src: SeqId, forks: &[SeqId]) {
        for &fork in forks {
            self.opened(fork);
            let family = self.seqs[&src].family;
            let _ = self.copy(src, fork, 0..u32::MAX);
            self.seqs.get_mut(&fork).unwrap().family = family;
        }
    }

    pub(crate) fn keep(&mut self, id: SeqId) -> Verdict {
        let family = self.seqs.get(&id).ok_or(())?.family;
        let others = self.seqs.iter().filter(|(other, seq)| **other != id && seq.family == family);
        let others: Vec<_> = others.map(|(id, _)| *id).collect();
        others.into_iter().try_for_each(|other| self.close(other))
    }

    pub(crate) fn propose(&mut self, id: SeqId, parents: &[i32]) -> Verdict {
        let seq = self.seqs.get_mut(&id).ok_or(())?;
        let first = seq.nodes.len() as i32;
        if parents.iter().zip(first..).any(|(&parent, node)| parent < -1 || parent >= node) {
            return Err(());
        }
        seq.proposed = parents.to_vec();
        Ok(())
    }

    pub(crate) fn commit(&mut self, id: SeqId, accepted: &[u32]) -> Verdict {
        let in_flight = self.in_flight(id);
        let seq = self.seqs.get_mut(&id).ok_or(())?;
        let mut last = -1;
        for &node in accepted {
            if seq.nodes.get(node as usize).ok_or(())?.parent != last {
                return Err(());
            }
            last = node as i32;
        }
        if in_flight && !seq.nodes.is_empty() {
            return Err(());
        }
        for &node in accepted {
            let tag = seq.nodes[node as usize].tag;
            seq.rows.insert(seq.next(), Row { tag, step: None });
        }
        seq.nodes.clear();
        seq.proposed.clear();
        Ok(())
    }
}
