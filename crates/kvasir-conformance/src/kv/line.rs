//! Replays `kv.contiguous` and `kv.tree`: the caches that hold a single sequence.
//!
//! `kv.tree` covers tree-structured speculative decoding: propose a frontier of draft nodes, then
//! commit the accepted path.

use crate::case::{Case, CaseError};
use crate::kv::harness::{Harness, Tags, mask_name};
use crate::kv::subject;
use crate::kv::subject::{Answer, Op, Subject, small};
use crate::outcome::Outcome;
use kvasir_kv::{Cache, CacheError, Contiguous, Inspect, SeqId, TreeCache};
use serde_json::{Map, Value, json};

struct Line<C> {
    bench: Harness<C>,
    seq: SeqId,
    tags: Tags,
    /// Tags of the draft nodes that are not committed yet.
    nodes: Vec<u64>,
}

impl<C: Cache> Line<C> {
    fn new(case: &Case, mut cache: C) -> Result<Self, CaseError> {
        let seq = cache.open().map_err(|error| case.error(error.to_string()))?;
        Ok(Self { bench: Harness::new(cache), seq, tags: Tags::default(), nodes: Vec::new() })
    }

    /// Operations common to both kinds.
    fn common(&mut self, op: &Op) -> Result<Answer, CaseError> {
        let cache = &mut self.bench.cache;
        Ok(match op.name()? {
            "can_extend" => Ok(self.bench.can_extend(op.int("n")?)),
            "rewind" => {
                let to = op.int("to")?;
                small("to", to)
                    .and_then(|to| done(cache.rewind().and_then(|face| face.rewind_to(self.seq, to))))
            }
            "clear" => {
                self.nodes.clear();
                done(cache.close(self.seq).and_then(|()| cache.open()).map(|seq| self.seq = seq))
            }
            _ => return Err(op.unknown()),
        })
    }

    fn len(&self) -> u32 {
        self.bench.cache.len(self.seq).unwrap_or_default()
    }
}

fn done(result: Result<(), CacheError>) -> Answer {
    result.map(|()| Map::new()).map_err(|error| error.to_string())
}

/// Runs one `kv.contiguous` case.
pub(crate) fn run_contiguous(case: &Case) -> Result<Outcome, CaseError> {
    subject::run(case, &mut Line::new(case, Contiguous::new(subject::capacity(case)?))?)
}

/// Runs one `kv.tree` case.
pub(crate) fn run_tree(case: &Case) -> Result<Outcome, CaseError> {
    subject::run(case, &mut Line::new(case, TreeCache::new(subject::capacity(case)?))?)
}

impl Line<Contiguous> {
    fn step(&mut self, start: i64, n: i64) -> Answer {
        let (start, n) = (small("start", start)?, small("n", n)?);
        let (seq, tags) = (self.seq, &mut self.tags);
        let next = self.bench.cache.next_position(seq).map_err(|error| error.to_string())?;
        if start != next {
            return Err(format!("the positions of a write begin at {start}, the length is {next}"));
        }
        self.bench.run_one(seq, n, tags).map_err(|error| error.to_string())?;
        let plan = self.bench.plan();
        let [row] = &plan.rows[..] else { return Err(format!("{} rows in the plan", plan.rows.len())) };
        let mut answer = self.bench.answer();
        answer.insert("write".into(), json!([plan.write_slots.first(), plan.write_slots.len()]));
        answer.insert("read".into(), json!(row.read_len));
        answer.insert("mask".into(), json!(mask_name(row.mask)));
        Ok(answer)
    }
}

impl Subject for Line<Contiguous> {
    fn apply(&mut self, op: &Op) -> Result<Answer, CaseError> {
        match op.name()? {
            "step" => Ok(self.step(op.int("start")?, op.int("n")?)),
            _ => self.common(op),
        }
    }

    fn state(&self) -> Value {
        json!({ "length": self.len(), "free": self.bench.cache.usage().available() })
    }

    fn check(&self) -> Result<(), String> {
        self.bench.cache.check()
    }
}

impl Line<TreeCache> {
    fn frontier(&mut self, parents: &[i64]) -> Answer {
        let parents: Result<Vec<i32>, _> = parents.iter().map(|&parent| i32::try_from(parent)).collect();
        let parents = parents.map_err(|_| "a parent is out of range".to_owned())?;
        let (seq, n) = (self.seq, parents.len() as u32);
        let face = |cache: &mut TreeCache, parents: &[i32]| cache.tree()?.propose(seq, parents);
        face(&mut self.bench.cache, &parents).map_err(|error| error.to_string())?;
        match self.bench.run_one(seq, n, &mut self.tags) {
            Ok(tags) => {
                self.nodes.extend(tags);
                Ok(self.bench.answer())
            }
            Err(error) => {
                // The cache has no room: withdraw the proposed frontier.
                face(&mut self.bench.cache, &[]).map_err(|error| error.to_string())?;
                Err(error.to_string())
            }
        }
    }

    fn commit(&mut self, accepted: &[i64]) -> Answer {
        let accepted: Result<Vec<u32>, _> = accepted.iter().map(|&node| small("node", node)).collect();
        let (accepted, seq) = (accepted?, self.seq);
        let committed = self.bench.cache.tree().and_then(|face| face.commit(seq, &accepted).map(|_| ()));
        committed.map_err(|error| error.to_string())?;
        let rows: Vec<_> = accepted.iter().map(|&node| self.nodes.get(node as usize)).collect();
        let answer = Map::from_iter([("rows".to_owned(), json!(rows))]);
        self.nodes.clear();
        Ok(answer)
    }
}

impl Subject for Line<TreeCache> {
    fn apply(&mut self, op: &Op) -> Result<Answer, CaseError> {
        match op.name()? {
            "prefill" => {
                let n = op.int("n")?;
                Ok(small("n", n).and_then(|n| {
                    let ran = self.bench.run_one(self.seq, n, &mut self.tags);
                    ran.map(|_| self.bench.answer()).map_err(|error| error.to_string())
                }))
            }
            "frontier" => Ok(self.frontier(&op.ints("parents")?)),
            "commit" => Ok(self.commit(&op.ints("accepted")?)),
            _ => self.common(op),
        }
    }

    fn state(&self) -> Value {
        let free = self.bench.cache.usage().available();
        json!({ "length": self.len(), "unsettled": self.nodes.len(), "free": free })
    }

    fn check(&self) -> Result<(), String> {
        self.bench.cache.check()
    }
}
