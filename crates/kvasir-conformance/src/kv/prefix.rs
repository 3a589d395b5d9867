//! Replays `kv.shared_prefix`: frozen prefix pools and the caches forked from them.
//!
//! A frozen pool is read-only and freed when its handle and all forks are gone.

use crate::case::{Case, CaseError};
use crate::kv::harness::{Harness, Tags};
use crate::kv::subject;
use crate::kv::subject::{Answer, MOST_ROWS, Op, Subject, small};
use crate::outcome::Outcome;
use kvasir_kv::{Cache, Contiguous, Inspect, PoolId, PrefixWatch, Prefixed, SeqId, SharedPrefix};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A frozen prefix: its handle until dropped, a liveness watch, and the tags in its slots.
struct Pool {
    handle: Option<SharedPrefix>,
    watch: PrefixWatch,
    tags: Vec<u64>,
}

struct Fork {
    bench: Harness<Prefixed<Contiguous>>,
    seq: SeqId,
}

#[derive(Default)]
struct PrefixHarness {
    pools: BTreeMap<String, Pool>,
    forks: BTreeMap<String, Fork>,
    tags: Tags,
    frozen: u32,
}

/// Runs one `kv.shared_prefix` case.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    subject::run(case, &mut PrefixHarness::default())
}

/// Checks a row count against `MOST_ROWS`.
fn rows(field: &str, n: i64) -> Result<u32, String> {
    small(field, n).ok().filter(|&n| n <= MOST_ROWS).ok_or_else(|| format!("{field} {n} is out of range"))
}

impl PrefixHarness {
    fn freeze(&mut self, name: &str, n: i64) -> Answer {
        let rows = rows("n", n)?;
        if self.pools.get(name).is_some_and(|pool| !pool.watch.is_gone()) {
            return Err(format!("prefix {name} is there already"));
        }
        let mut cache = Contiguous::new(rows);
        let seq = cache.open().map_err(|error| error.to_string())?;
        let mut bench = Harness::new(cache);
        let tags = match rows {
            0 => Vec::new(),
            rows => bench.run_one(seq, rows, &mut self.tags).map_err(|error| error.to_string())?,
        };
        self.frozen += 1;
        let handle = bench.cache.freeze(PoolId(self.frozen)).map_err(|refused| refused.1.to_string())?;
        let watch = handle.watch();
        self.pools.insert(name.to_owned(), Pool { handle: Some(handle), watch, tags });
        Ok(Map::new())
    }

    fn fork(&mut self, prefix: &str, name: &str, capacity: i64) -> Answer {
        let capacity = rows("capacity", capacity)?;
        if self.forks.contains_key(name) {
            return Err(format!("fork {name} is there already"));
        }
        let pool = self.pools.get(prefix).ok_or_else(|| format!("no prefix {prefix}"))?;
        let handle = pool.handle.as_ref().ok_or_else(|| format!("prefix {prefix} was dropped"))?;
        let mut cache = handle.fork(capacity).map_err(|error| error.to_string())?;
        let seq = cache.open().map_err(|error| error.to_string())?;
        let mut bench = Harness::new(cache);
        bench.add_pool(pool.watch.pool(), &pool.tags);
        self.forks.insert(name.to_owned(), Fork { bench, seq });
        Ok(Map::new())
    }

    /// Drops a fork or a prefix handle.
    fn drop_name(&mut self, name: &str) -> Answer {
        let handle = self.pools.get_mut(name).and_then(|pool| pool.handle.take());
        if self.forks.remove(name).is_some() || handle.is_some() {
            Ok(Map::new())
        } else {
            Err(format!("nothing is called {name}"))
        }
    }

    fn named(&mut self, name: &str) -> Result<&mut Fork, String> {
        self.forks.get_mut(name).ok_or_else(|| format!("no fork {name}"))
    }

    fn step(&mut self, name: &str, n: i64) -> Answer {
        let n = small("n", n)?;
        let fork = self.forks.get_mut(name).ok_or_else(|| format!("no fork {name}"))?;
        let ran = fork.bench.run_one(fork.seq, n, &mut self.tags);
        ran.map(|_| fork.bench.answer()).map_err(|error| error.to_string())
    }

    fn rewind(&mut self, name: &str, to: i64) -> Answer {
        let to = small("to", to)?;
        let fork = self.named(name)?;
        let done = fork.bench.cache.rewind().and_then(|face| face.rewind_to(fork.seq, to));
        done.map(|()| Map::new()).map_err(|error| error.to_string())
    }
}

impl Subject for PrefixHarness {
    fn apply(&mut self, op: &Op) -> Result<Answer, CaseError> {
        Ok(match op.name()? {
            "freeze" => self.freeze(op.text("prefix")?, op.int("n")?),
            "fork" => self.fork(op.text("prefix")?, op.text("name")?, op.int("capacity")?),
            "drop" => self.drop_name(op.text("name")?),
            "step" => self.step(op.text("name")?, op.int("n")?),
            "rewind" => self.rewind(op.text("name")?, op.int("to")?),
            "can_extend" => {
                let n = op.int("n")?;
                self.named(op.text("name")?).map(|fork| fork.bench.can_extend(n))
            }
            _ => return Err(op.unknown()),
        })
    }

    fn state(&self) -> Value {
        let kept = self.pools.values().filter(|pool| !pool.watch.is_gone());
        let tails = self.forks.values().map(|fork| fork.bench.cache.own_rows());
        let length = |fork: &Fork| json!(fork.bench.cache.len(fork.seq).ok());
        let forks: Map<_, _> = self.forks.iter().map(|(name, fork)| (name.clone(), length(fork))).collect();
        json!({
            "prefix_rows": kept.map(|pool| pool.tags.len()).sum::<usize>(),
            "tail_rows": tails.sum::<u32>(),
            "forks": forks,
        })
    }

    fn check(&self) -> Result<(), String> {
        self.forks.values().try_for_each(|fork| fork.bench.cache.check())
    }
}
