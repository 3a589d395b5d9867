//! Replays `kv.cells`: many sequences over one pool of KV cells, as in llama.cpp's unified KV
//! cache.

use crate::case::{Case, CaseError};
use crate::kv::harness::{Harness, Tags};
use crate::kv::subject;
use crate::kv::subject::{Answer, Op, Subject, small};
use crate::outcome::Outcome;
use kvasir_kv::{Cache, CacheError, Cells, ClaimRow, Inspect, Position, SeqId};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, ops::Range};

/// Maximum number of live sequences per case.
const MAX_SEQUENCES: u32 = 1 << 16;

/// The cache and the case's sequence names. All sequences belong to one fork family.
struct Pool {
    bench: Harness<Cells>,
    names: BTreeMap<i64, SeqId>,
    tags: Tags,
}

/// Runs one `kv.cells` case.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let window = match case.given("config")?.get("window") {
        None | Some(Value::Null) => None,
        Some(window) => {
            let window = window.as_u64().and_then(|window| u32::try_from(window).ok());
            Some(window.ok_or_else(|| case.error("`config.window` must be a whole number"))?)
        }
    };
    let cells = Cells::new(subject::capacity(case)?, MAX_SEQUENCES, window);
    let cells = cells.map_err(|error| case.error(error.to_string()))?;
    subject::run(
        case,
        &mut Pool { bench: Harness::new(cells), names: BTreeMap::new(), tags: Tags::default() },
    )
}

impl Pool {
    /// The sequence with this name. A new one is forked from an existing one and then emptied.
    fn seq(&mut self, name: i64) -> Result<SeqId, CacheError> {
        if let Some(&seq) = self.names.get(&name) {
            return Ok(seq);
        }
        let cache = &mut self.bench.cache;
        let seq = match self.names.values().next() {
            None => cache.open()?,
            Some(&relative) => {
                let verbs = cache.sequences()?;
                let fork = verbs.fork(relative, 1)?;
                let &seq = fork.first().ok_or(CacheError::TooManySequences)?;
                verbs.remove(seq, 0..Position::MAX)?;
                seq
            }
        };
        self.names.insert(name, seq);
        Ok(seq)
    }

    fn known(&self, name: i64) -> Result<SeqId, String> {
        self.names.get(&name).copied().ok_or_else(|| format!("no sequence {name}"))
    }

    fn step(&mut self, rows: &[(i64, i64)]) -> Answer {
        let mut claims = Vec::new();
        for &(name, n) in rows {
            let tokens = small("n", n)?;
            let seq = self.seq(name).map_err(|error| error.to_string())?;
            claims.push(ClaimRow::new(seq, tokens));
        }
        let ran = self.bench.run(&claims, &mut self.tags);
        ran.map(|_| self.bench.answer()).map_err(|error| error.to_string())
    }

    fn verb(&mut self, op: &Op) -> Result<Answer, CaseError> {
        let range = range(op)?;
        let done = match op.name()? {
            "copy" => {
                let (src, dst) = (op.int("src")?, op.int("dst")?);
                self.known(src).and_then(|src| {
                    let dst = self.seq(dst).map_err(|error| error.to_string())?;
                    let verbs = self.bench.cache.sequences();
                    verbs.and_then(|verbs| verbs.copy(src, dst, range)).map_err(|error| error.to_string())
                })
            }
            "remove" => self.known(op.int("seq")?).and_then(|seq| {
                let verbs = self.bench.cache.sequences();
                verbs.and_then(|verbs| verbs.remove(seq, range)).map_err(|error| error.to_string())
            }),
            "keep" => self.known(op.int("seq")?).and_then(|seq| {
                let verbs = self.bench.cache.sequences();
                verbs.and_then(|verbs| verbs.keep(seq)).map_err(|error| error.to_string())
            }),
            "clear" => {
                let mut all = std::mem::take(&mut self.names).into_values();
                all.try_for_each(|seq| self.bench.cache.close(seq)).map_err(|error| error.to_string())
            }
            _ => return Err(op.unknown()),
        };
        Ok(done.map(|()| Map::new()))
    }

    /// Closes sequences that own no cells.
    fn sweep(&mut self) {
        let cache = &mut self.bench.cache;
        self.names.retain(|_, &mut seq| match cache.len(seq) {
            Ok(0) => {
                let _ = cache.close(seq);
                false
            }
            owned => owned.is_ok(),
        });
    }
}

/// The position range `p0 .. p1`; an absent bound is open.
fn range(op: &Op) -> Result<Range<Position>, CaseError> {
    let bound = |value: i64| value.clamp(0, i64::from(Position::MAX)) as Position;
    let p0 = op.optional_int("p0")?.map_or(0, bound);
    Ok(p0..op.optional_int("p1")?.map_or(Position::MAX, bound))
}

impl Subject for Pool {
    fn apply(&mut self, op: &Op) -> Result<Answer, CaseError> {
        let answer = match op.name()? {
            "step" => self.step(&op.pairs("rows")?),
            "can_extend" => Ok(self.bench.can_extend(op.int("n")?)),
            _ => self.verb(op)?,
        };
        self.sweep();
        Ok(answer)
    }

    fn state(&self) -> Value {
        let cache = &self.bench.cache;
        let seq = |(name, &seq): (&i64, &SeqId)| {
            let (len, next) = (cache.len(seq).ok(), cache.next_position(seq).ok());
            (name.to_string(), json!({ "len": len, "next": next }))
        };
        let seqs: Map<_, _> = self.names.iter().map(seq).collect();
        json!({ "free": cache.usage().available(), "seqs": seqs })
    }

    fn check(&self) -> Result<(), String> {
        self.bench.cache.check()
    }
}
