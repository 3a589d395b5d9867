//! Replays `atom.block_manager`: block manager operations, one at a time, on the `paged` cache.
//!
//! Each operation (allocate, publish, append, deallocate, …) is mapped to cache calls. Its return
//! value and the resulting state are compared, and `Cache::check` must hold after each one.

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::engine::sequence;
use crate::names::BlockNames;
use crate::outcome::Outcome;
use kvasir_engine::{Params, Request, Sequence};
use kvasir_kv::{Cache, CacheError, ClaimRow, KvEvent, Lookup, Paged, Prefix, Rewind, SeqId, StepId, Token};
use kvasir_kv::{Inspect, blocks::BlockConfig};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A sequence of a case. It exists in the cache between `allocate` and `deallocate`.
struct Seq {
    id: Option<SeqId>,
    tokens: Vec<Token>,
    prompt: usize,
    cached: u32,
    stateful: bool,
    params: Params,
}

struct Manager {
    cache: Paged,
    /// Free recurrent-state slots; `None` is unbounded.
    free_states: Option<u32>,
    block_size: u32,
    seqs: BTreeMap<String, Seq>,
    hashes: BTreeMap<String, Option<u64>>,
    names: BlockNames,
    step: u64,
}

const MOST_BLOCKS: u32 = 1 << 20;

/// The operation was refused, for example for lack of free blocks.
struct Refused(String);

impl From<CacheError> for Refused {
    fn from(error: CacheError) -> Self {
        Self(error.to_string())
    }
}

/// Runs one case.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let mut manager = Manager::new(case)?;
    let ops = list(case, case.given("ops")?)?;
    let expected = list(case, case.field("expected")?)?;
    for (at, (op, expected)) in ops.iter().zip(expected).enumerate() {
        let name = op.get("op").and_then(Value::as_str);
        let name = name.ok_or_else(|| case.error(format!("ops[{at}]: field `op` must be text")))?;
        let place = format!("ops[{at}] {name}");
        if let Err(mismatch) = manager.check(case, &place, name, op, expected)? {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    Ok(Outcome::Passed)
}

pub(crate) fn list<'a>(case: &Case, value: &'a Value) -> Result<&'a [Value], CaseError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| case.error("a list was expected"))
}

pub(crate) fn numbers(case: &Case, value: &Value) -> Result<Vec<u32>, CaseError> {
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let numbers = list(case, value)?.iter().map(number).collect::<Option<_>>();
    numbers.ok_or_else(|| case.error("a list of whole numbers was expected"))
}

/// A config value of the case, or of the file's defaults.
pub(crate) fn config<'a>(case: &'a Case, name: &str) -> Result<&'a Value, CaseError> {
    let given = case.given("config").ok().and_then(|config| config.get(name));
    let default = case.meta.get("defaults").and_then(|defaults| defaults.get(name));
    given.or(default).ok_or_else(|| case.error(format!("config `{name}` is not given")))
}

fn config_number(case: &Case, name: &str) -> Result<u32, CaseError> {
    let number = config(case, name)?.as_u64().and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| case.error(format!("config `{name}` must be a whole number")))
}

impl Manager {
    fn new(case: &Case) -> Result<Self, CaseError> {
        let block_size = config_number(case, "block_size")?;
        let config = BlockConfig {
            block_size,
            blocks: match config_number(case, "num_blocks")? {
                blocks if blocks > MOST_BLOCKS => {
                    return Err(case.error(format!("`num_blocks` must be at most {MOST_BLOCKS}")));
                }
                blocks => blocks,
            },
            sharing: config(case, "prefix_caching")?.as_bool().unwrap_or(false),
            ..BlockConfig::default()
        };
        let mut cache = Paged::new(config).map_err(|error| case.error(error.to_string()))?;
        if self::config(case, "kv_events").is_ok_and(|on| on == &Value::Bool(true)) {
            cache.record_events().map_err(|error| case.error(error.to_string()))?;
        }
        let given = case.given("seqs")?.as_object().ok_or_else(|| case.error("`seqs` must be an object"))?;
        let mut seqs = BTreeMap::new();
        for (name, seq) in given {
            let tokens = numbers(case, seq.get("prompt").unwrap_or(&Value::Null))?;
            let prompt = tokens.len();
            let stateful = seq.get("stateful") == Some(&Value::Bool(true));
            let params = case.given("config").map_or(&Value::Null, |config| config);
            let params = sequence::params(case, params, seq).map_err(|why| case.error(why))?;
            seqs.insert(name.clone(), Seq { id: None, tokens, prompt, cached: 0, stateful, params });
        }
        let (hashes, names) = (BTreeMap::new(), BlockNames::default());
        let states = self::config(case, "state_slots").is_ok().then(|| config_number(case, "state_slots"));
        Ok(Self { cache, free_states: states.transpose()?, block_size, seqs, hashes, names, step: 0 })
    }

    /// Runs one operation and compares its result and state with the recorded ones.
    fn check(
        &mut self,
        case: &Case,
        place: &str,
        name: &str,
        op: &Value,
        expected: &Value,
    ) -> Result<Result<(), Box<Mismatch>>, CaseError> {
        let result = self.run(case, name, op)?;
        if expected.get("not_compared") == Some(&Value::Bool(true)) {
            return Ok(Ok(()));
        }
        let raises = expected.get("raises").or(expected.get("error"));
        let mut got = match (result, raises) {
            (Err(_), Some(_)) => return Ok(Ok(())),
            (Ok(returned), Some(raises)) => {
                let mismatch = Mismatch { at: place.into(), expected: raises.clone(), got: returned };
                return Ok(Err(Box::new(mismatch)));
            }
            (Err(Refused(why)), None) => {
                let got = json!({ "refused": why });
                return Ok(Err(Box::new(Mismatch { at: place.into(), expected: expected.clone(), got })));
            }
            (Ok(returned), None) => json!({ "returns": returned }),
        };
        if let Some(Value::Object(state)) = expected.get("state") {
            got["state"] = self.state(case, state)?;
        }
        if name == "ref_counts" {
            got["returns"] = self.named_counts(&got["returns"]);
        } else if name == "lookup" {
            got["returns"] = self.named_block(&got["returns"]);
        }
        self.cache.check().map_err(|why| case.error(format!("{place}: {why}")))?;
        Ok(compare(place, expected, &got))
    }

    fn free_blocks(&self) -> u32 {
        self.cache.usage().available() / self.block_size
    }

    /// The parts of the state that the case checks, in the case's block ids.
    fn state(&mut self, case: &Case, expected: &Map<String, Value>) -> Result<Value, CaseError> {
        let mut state = Map::new();
        for (key, wanted) in expected {
            let value = match key.strip_prefix("seq:") {
                None => json!(self.free_blocks()),
                Some(name) => self.seq_state(case, name, wanted)?,
            };
            state.insert(key.clone(), value);
        }
        Ok(Value::Object(state))
    }

    fn seq_state(&mut self, case: &Case, name: &str, wanted: &Value) -> Result<Value, CaseError> {
        let seq = self.seqs.get_mut(name).ok_or_else(|| case.error(format!("no sequence `{name}`")))?;
        let table = match seq.id {
            Some(id) => self.cache.table(id).map_err(|error| case.error(error.to_string()))?,
            None => Default::default(),
        };
        let mut state = json!({
            "cached": seq.cached,
            "num_tokens": seq.tokens.len(),
            "completion": seq.tokens.get(seq.prompt..).unwrap_or_default(),
        });
        if let Some(wanted) = wanted.get("block_table") {
            let wanted = numbers(case, wanted)?;
            let hit = seq.cached / self.block_size;
            state["block_table"] = self.names.bind(name, &wanted, &table, hit as usize);
        }
        Ok(state)
    }

    fn named_counts(&self, counts: &Value) -> Value {
        let counts = counts.as_object().into_iter().flatten();
        let named =
            counts.map(|(block, count)| (self.names.name(block.parse().ok()).to_string(), count.clone()));
        named.collect::<Map<_, _>>().into()
    }

    fn named_block(&self, block: &Value) -> Value {
        match block.as_u64().and_then(|block| u32::try_from(block).ok()) {
            Some(block) => self.names.name(Some(block)),
            None => json!(-1),
        }
    }

    fn claim(&mut self, seq: SeqId, tokens: u32) -> Result<(), CacheError> {
        self.step += 1;
        let step = StepId(self.step);
        self.cache.claim(step, &[ClaimRow::new(seq, tokens)])?;
        self.cache.retire(step)
    }

    /// Runs one operation. The outer error means a malformed case.
    fn run(&mut self, case: &Case, name: &str, op: &Value) -> Result<Result<Value, Refused>, CaseError> {
        let number =
            |field: &str| op.get(field).and_then(Value::as_u64).map(|n| n.min(u64::from(u32::MAX)) as u32);
        let needed = |field: &str| {
            number(field).ok_or_else(|| case.error(format!("{name}: field `{field}` must be a whole number")))
        };
        match name {
            "take_events" => {
                let mut taken = Vec::new();
                self.cache.take_events(&mut taken);
                return Ok(Ok(events(taken)));
            }
            "index_size" => return Ok(Ok(json!(self.cache.index().published()))),
            "clear_cache" => {
                self.cache.forget();
                return Ok(Ok(Value::Null));
            }
            "lookup" => {
                let hash = op.get("hash").and_then(Value::as_str).and_then(|name| self.hashes.get(name));
                let hash = hash.ok_or_else(|| case.error("lookup: no such hash was remembered"))?;
                let block = hash.and_then(|hash| self.cache.find_hash(hash));
                return Ok(Ok(block.map_or(json!(-1), |block| json!(block))));
            }
            _ => {}
        }
        let seq_name = op.get("seq").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(seq) = self.seqs.get(&seq_name) else {
            return Err(case.error(format!("{name}: no sequence `{seq_name}`")));
        };
        let (id, cached, prompt) = (seq.id, seq.cached, seq.prompt as u32);
        let held = id.ok_or_else(|| Refused("it has no blocks".into()));
        let result = match name {
            "allocate" => self.allocate(&seq_name, op.get("use_hits") != Some(&Value::Bool(false))),
            "can_allocate" => Ok(self.can_allocate(&seq_name)),
            "deallocate" => self.deallocate(&seq_name),
            "publish" => {
                let end = number("n").map_or(prompt, |n| cached.saturating_add(n));
                self.publish(&seq_name, cached, end).map(|_| Value::Null)
            }
            "publish_loaded" => {
                let (start, end) = (needed("start")?, needed("end")?);
                self.publish(&seq_name, start, end)
            }
            "register_received" => {
                let published = self.publish(&seq_name, 0, prompt);
                published.map(|_| json!(self.published(id) / self.block_size))
            }
            "hash_decode" => {
                let published = self.publish(&seq_name, self.published(id), needed("committed")?);
                published.map(|_| json!({ "hashed_tokens": self.published(id) }))
            }
            "append" => {
                let tokens = numbers(case, op.get("tokens").unwrap_or(&Value::Null))?;
                self.with(&seq_name, |seq| seq.tokens.extend(tokens))
            }
            "can_append" => Ok(json!(self.can_append(&seq_name))),
            "may_append" => held.and_then(|id| self.may_append(&seq_name, id)),
            "pop_block" => held.and_then(|id| {
                let blocks = self.cache.table(id)?.len() as u32;
                self.cache.rewind_to(id, blocks.saturating_sub(1) * self.block_size)?;
                Ok(Value::Null)
            }),
            "hash_of" => {
                let index = needed("index")?;
                let label = op.get("as").and_then(Value::as_str).unwrap_or_default().to_owned();
                Ok(self.hash_of(id, index, label))
            }
            "ref_counts" => held.and_then(|id| self.ref_counts(id)),
            "get" => return self.field(case, &seq_name, op.get("field").and_then(Value::as_str)).map(Ok),
            "set" if op.get("field").and_then(Value::as_str) == Some("num_tokens") => {
                let n = needed("value")? as usize;
                self.with(&seq_name, |seq| seq.tokens.truncate(n))
            }
            // Chunked prefill: the recorded engine sets this before it publishes the next chunk.
            "set" if op.get("field").and_then(Value::as_str) == Some("num_cached_tokens") => {
                let n = needed("value")?;
                self.with(&seq_name, |seq| seq.cached = n)
            }
            "set" => {
                let field = op.get("field").and_then(Value::as_str).unwrap_or_default();
                let value = op.get("value").unwrap_or(&Value::Null);
                let seq = self.seqs.get_mut(&seq_name).ok_or_else(|| case.error("no such sequence"))?;
                let set = sequence::set(&mut seq.params, field, value);
                set.map_err(|why| case.error(format!("set: {why}")))?;
                Ok(Value::Null)
            }
            "block" => {
                let (start, size) = (needed("i").or(needed("index"))?, self.block_size as usize);
                let tokens = self.seqs.get(&seq_name).map(|seq| seq.tokens.chunks(size).nth(start as usize));
                tokens.flatten().map(|tokens| json!(tokens)).ok_or(Refused("it has no such block".into()))
            }
            _ => return Err(case.error(format!("operation `{name}` is not known"))),
        };
        Ok(result)
    }

    fn with(&mut self, name: &str, change: impl FnOnce(&mut Seq)) -> Result<Value, Refused> {
        let seq = self.seqs.get_mut(name).ok_or(Refused("no such sequence".into()))?;
        change(seq);
        Ok(Value::Null)
    }

    fn tokens(&self, name: &str) -> &[Token] {
        self.seqs.get(name).map_or(&[], |seq| &seq.tokens)
    }

    fn is_stateful(&self, name: &str) -> bool {
        self.seqs.get(name).is_some_and(|seq| seq.stateful)
    }

    fn allocate(&mut self, name: &str, use_hits: bool) -> Result<Value, Refused> {
        let tokens = self.tokens(name).to_vec();
        if self.seqs.get(name).is_none_or(|seq| seq.id.is_some()) {
            return Err(Refused("it has blocks already".into()));
        }
        let stateful = self.is_stateful(name);
        if stateful && self.free_states == Some(0) {
            return Err(Refused("no place for its state is free".into()));
        }
        let id = self.cache.open()?;
        let hit =
            self.cache.attach(id, &tokens, 0, if use_hits { u32::MAX } else { 0 }, Lookup::default())?;
        let rest = tokens.len() as u32 - hit.tokens;
        if rest > 0
            && let Err(error) = self.claim(id, rest)
        {
            self.cache.close(id)?;
            return Err(error.into());
        }
        if stateful {
            self.free_states = self.free_states.map(|free| free - 1);
        }
        self.with(name, |seq| (seq.id, seq.cached) = (Some(id), hit.tokens))
    }

    fn can_allocate(&mut self, name: &str) -> Value {
        let tokens = self.tokens(name).to_vec();
        let hit = self.cache.lookup(&tokens, 0);
        let blocks = (tokens.len() as u32).div_ceil(self.block_size);
        let (hits, evictable) = (hit.tokens / self.block_size, hit.evictable[0] / self.block_size);
        let has_state = !self.is_stateful(name) || self.free_states != Some(0);
        json!({ "ok": has_state && blocks - hits + evictable <= self.free_blocks(), "hit_blocks": hits })
    }

    fn deallocate(&mut self, name: &str) -> Result<Value, Refused> {
        if let Some(id) = self.seqs.get_mut(name).and_then(|seq| seq.id.take()) {
            self.cache.close(id)?;
            if self.is_stateful(name) {
                self.free_states = self.free_states.map(|free| free + 1);
            }
        }
        self.names.release(name);
        self.with(name, |seq| seq.cached = 0)
    }

    /// Number of leading tokens in published blocks.
    fn published(&self, id: Option<SeqId>) -> u32 {
        id.and_then(|id| self.cache.published_tokens(id).ok()).unwrap_or(0)
    }

    /// Publishes `start .. end` to the prefix cache. A sequence without blocks publishes nothing.
    fn publish(&mut self, name: &str, start: u32, end: u32) -> Result<Value, Refused> {
        let Some(id) = self.seqs.get(name).and_then(|seq| seq.id) else { return Ok(json!(0)) };
        let tokens = self.tokens(name).to_vec();
        Ok(json!(self.cache.publish_range(id, &tokens, start, end)?))
    }

    /// Number of tokens of the sequence that are not yet claimed in the cache.
    fn unfed(&self, name: &str, id: SeqId) -> Result<u32, CacheError> {
        Ok((self.tokens(name).len() as u32).saturating_sub(self.cache.claimed_len(id)?))
    }

    fn can_append(&self, name: &str) -> bool {
        let id = self.seqs.get(name).and_then(|seq| seq.id);
        let held = id.and_then(|id| self.cache.table(id).ok()).map_or(0, |table| table.len() as u32);
        let needed = (self.tokens(name).len() as u32).div_ceil(self.block_size);
        needed.saturating_sub(held) <= self.free_blocks()
    }

    fn may_append(&mut self, name: &str, id: SeqId) -> Result<Value, Refused> {
        let unfed = self.unfed(name, id)?;
        if unfed > 0 {
            self.claim(id, unfed)?;
        }
        Ok(Value::Null)
    }

    fn hash_of(&mut self, id: Option<SeqId>, index: u32, label: String) -> Value {
        let hash = id.and_then(|id| self.cache.hash_of(id, index).ok()).flatten();
        let equals: Map<_, _> =
            self.hashes.iter().map(|(name, other)| (name.clone(), json!(*other == hash))).collect();
        self.hashes.insert(label, hash);
        let value = hash.map_or("-1".to_owned(), |hash| hash.to_string());
        json!({ "hashed": hash.is_some(), "equals": equals, "value": value })
    }

    fn ref_counts(&self, id: SeqId) -> Result<Value, Refused> {
        let table = self.cache.table(id)?;
        let counts = table.iter().map(|&block| (block.to_string(), json!(self.cache.owners(block))));
        Ok(counts.collect::<Map<_, _>>().into())
    }

    fn field(&self, case: &Case, name: &str, field: Option<&str>) -> Result<Value, CaseError> {
        let Some(seq) = self.seqs.get(name) else { return Err(case.error(format!("no sequence `{name}`"))) };
        let (prompt, completion) = seq.tokens.split_at(seq.prompt.min(seq.tokens.len()));
        match field.unwrap_or_default() {
            "num_hashed_tokens" => Ok(json!(self.published(seq.id))),
            "num_cached_tokens" => Ok(json!(seq.cached)),
            "block_table" => {
                let table = seq.id.map(|id| self.cache.table(id)).transpose();
                let table = table.map_err(|error| case.error(error.to_string()))?.unwrap_or_default();
                Ok(table.iter().map(|&block| self.names.name(Some(block))).collect())
            }
            field => {
                let params = seq.params.clone();
                let mut sequence = Sequence::new(Request { tag: 0, prompt: prompt.to_vec(), params });
                sequence.append(completion);
                let of = sequence::field(&sequence, &seq.params, 0, field, self.block_size);
                of.map_err(|why| case.error(format!("get: {why}")))
            }
        }
    }
}

/// Events in the format of the recorded cases: one `BlockRemoved` per block.
fn events(events: Vec<KvEvent>) -> Value {
    let event = |event| match event {
        KvEvent::BlockStored { hashes, parent, tokens, block_size, .. } => vec![json!({
            "event": "BlockStored", "n": hashes.len(), "tokens": tokens, "has_parent": parent.is_some(),
            "medium": "GPU", "block_size": block_size,
        })],
        KvEvent::BlockRemoved { hashes } => {
            vec![json!({ "event": "BlockRemoved", "n": 1, "medium": "GPU" }); hashes.len()]
        }
        // The recorded engines have no recurrent states.
        KvEvent::CheckpointStored { .. } | KvEvent::CheckpointRemoved { .. } => Vec::new(),
        KvEvent::AllBlocksCleared => vec![json!({ "event": "AllBlocksCleared" })],
    };
    events.into_iter().flat_map(event).collect()
}
