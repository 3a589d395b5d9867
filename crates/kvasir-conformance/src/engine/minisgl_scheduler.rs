//! Replays `minisgl.scheduler` (Mini-SGLang): chunked prefill on the radix cache, with a scripted
//! model.
//!
//! 1. Feed the recorded messages of a step (new requests, aborts).
//! 2. Schedule, and describe the batch in the recorded format: padding, write positions, `out_loc`.
//! 3. Complete the oldest step with scripted tokens; with overlap scheduling one step stays in
//!    flight.
//! 4. Compare batch, replies and cache state, and at the end all tokens and the final state.
//!
//! Steps recorded with overlap or with a known fault of the peer are compared by their final tokens
//! only.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, list, number, switch, tokens};
use crate::outcome::Outcome;
use kvasir_engine::{Chunked, Core, EventOutput, Finish, Limits, Mixing, Order, Params, Request, RequestId};
use kvasir_exec::{OutputRow, PoolRow, Step, StepKind};
use kvasir_kv::blocks::{BlockConfig, FreeOrder};
use kvasir_kv::{Radix, Span, Token};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

/// `minisgl.scheduler`: the `chunked` policy on the `radix` cache, with and without overlap
/// scheduling.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    replay(case).map_err(about(case))
}

fn replay(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").ok_or("field `expected` is missing")?;
    let of = |key: &str| case.body.get(key).or_else(|| expected.get(key)).cloned().unwrap_or_default();
    let overlap = given["loop"] == "overlap";
    // Overlapped and hazard cases contain recorded faults; only their final results are compared.
    let exact = !overlap && !switch(&Value::Object(case.body.clone()), "hazard", false);
    let mut bench = Harness::new(given, overlap)?;
    for (i, step) in list(given, "steps")?.iter().enumerate() {
        let recorded = &expected["after_each_step"][i];
        let got = bench.step(list(step, "msgs")?, recorded)?;
        if exact
            && !recorded.is_null()
            && let Err(wrong) = compare(&format!("step {i}"), &comparable(recorded), &got)
        {
            return Ok(Outcome::Failed(wrong));
        }
    }
    bench.finish()?;
    let right = of("correct_tokens_per_uid");
    let aborted_or_refused = |uid: &String| right[uid].is_null();
    let tokens: Map<String, Value> =
        bench.replies.iter().map(|(uid, (tokens, _))| (uid.to_string(), json!(tokens))).collect();
    let wanted: Map<String, Value> = right
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(uid, _)| !aborted_or_refused(uid))
        .map(|(uid, tokens)| (uid.clone(), tokens.clone()))
        .collect();
    let checks = [
        ("finished replies per uid", finished_once(&wanted), bench.finished(&wanted)),
        ("tokens per uid", Value::Object(wanted), Value::Object(tokens)),
        ("final state", comparable_end(of("correct_final_state")), bench.end()),
    ];
    for (at, expected, got) in &checks {
        if let Err(wrong) = compare(at, expected, got) {
            return Ok(Outcome::Failed(wrong));
        }
    }
    Ok(Outcome::Passed)
}

/// Every request has exactly one finished reply, at its last token.
fn finished_once(wanted: &Map<String, Value>) -> Value {
    let last = |tokens: &Value| json!([tokens.as_array().map_or(0, Vec::len)]);
    wanted.iter().map(|(uid, tokens)| (uid.clone(), last(tokens))).collect::<Map<_, _>>().into()
}

/// Removes the fields of a recorded step that are not compared.
fn comparable(step: &Value) -> Value {
    let mut step = step.clone();
    if let Some(map) = step.as_object_mut() {
        ["corrupted_inputs", "stale_kv_reads", "error"].iter().for_each(|key| {
            map.remove(*key);
        });
    }
    step
}

fn comparable_end(mut end: Value) -> Value {
    match end.as_object_mut() {
        Some(map) => {
            map.remove("finished_replies_per_uid");
            map.remove("stale_kv_reads");
            end
        }
        None => json!({}),
    }
}

struct Harness {
    core: Core,
    overlap: bool,
    page: u32,
    pages: u32,
    slots: u32,
    graphs: Vec<u32>,
    eos: Token,
    ids: BTreeMap<u64, RequestId>,
    outputs: BTreeMap<u64, Vec<Token>>,
    /// Per request: output tokens, and their count at each finished reply.
    replies: BTreeMap<u64, (Vec<Token>, Vec<usize>)>,
    steps: VecDeque<Box<Step>>,
    /// The case's names for our token-pool rows.
    slots_of: BTreeMap<PoolRow, Value>,
}

impl Harness {
    fn new(given: &Value, overlap: bool) -> Result<Self, String> {
        let of = |key: &str, default: u32| number(given, key, default);
        let (page, pages, slots) =
            (of("page_size", 1)?.max(1), of("num_pages", 64)?, of("max_running_req", 4)?);
        let sharing = given["cache"] != "naive";
        let free_order = FreeOrder::Oldest;
        let blocks =
            BlockConfig { block_size: page, blocks: pages, sharing, free_order, ..BlockConfig::default() };
        let cache = Radix::new(blocks).map_err(|error| error.to_string())?;
        let limits = Limits {
            max_num_seqs: slots,
            max_num_batched_tokens: u32::MAX,
            max_model_len: of("max_seq_len", 4096)?.min(page.saturating_mul(pages)),
            prefix_cache: sharing,
            ..Limits::default()
        };
        let policy = Chunked::new(of("max_extend_tokens", 8192)?, Mixing::Off);
        let graphs = given.get("cuda_graph_bs").filter(|sizes| !sizes.is_null());
        Ok(Self {
            core: Core::new(limits, Order::Fcfs, Box::new(policy), Box::new(cache)),
            overlap,
            page,
            pages,
            slots,
            graphs: graphs.map(tokens).transpose()?.unwrap_or_default(),
            eos: of("eos", 999)?,
            ids: BTreeMap::new(),
            outputs: BTreeMap::new(),
            replies: BTreeMap::new(),
            steps: VecDeque::new(),
            slots_of: BTreeMap::new(),
        })
    }

    fn step(&mut self, messages: &[Value], recorded: &Value) -> Result<Value, String> {
        let idle = messages.is_empty() && self.core.is_idle();
        for message in messages {
            self.take(message)?;
        }
        self.core.outbox().clear();
        let step = self.core.schedule(0);
        self.core.take_binds().for_each(drop);
        let batch = step.as_ref().map_or(Value::Null, |step| self.describe(step, &recorded["batch"]));
        let made = step.is_some();
        self.steps.extend(step);
        let keep = usize::from(self.overlap && made);
        let mut replies = Vec::new();
        if self.steps.len() > keep {
            replies = self.take_in()?;
        }
        let mut got = json!({ "batch": batch, "replies": replies, "after": self.after() });
        if idle {
            got["idle"] = json!(true);
        }
        Ok(got)
    }

    /// Runs until the core is idle, for recordings that stop early.
    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            if self.core.is_idle() {
                return self.core.check_invariants();
            }
            self.step(&[], &Value::Null)?;
        }
        Err("requests did not finish".into())
    }

    fn take(&mut self, message: &Value) -> Result<(), String> {
        let uid = message["uid"].as_u64().ok_or("a message has no `uid`")?;
        if message["type"] == "abort" {
            if let Some(id) = self.ids.get(&uid) {
                self.core.abort(*id, 0);
            }
            return Ok(());
        }
        let params = Params {
            max_tokens: number(message, "max_tokens", 16)?,
            ignore_eos: switch(message, "ignore_eos", false),
            eos: vec![self.eos],
            ..Params::default()
        };
        let request = Request { tag: uid, prompt: tokens(&message["ids"])?, params };
        self.outputs.insert(uid, message.get("outputs").map(tokens).transpose()?.unwrap_or_default());
        if let Ok(id) = self.core.add(request, 0) {
            self.ids.insert(uid, id);
        }
        Ok(())
    }

    fn describe(&mut self, step: &Step, recorded: &Value) -> Value {
        let rows = &step.batch.rows;
        let decode = step.batch.kind == StepKind::Decode;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if decode {
            order.sort_by_key(|i| self.uid(RequestId(rows[*i].request)));
        }
        let (mut reqs, mut out_loc, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for i in order {
            let row = &rows[i];
            let id = RequestId(row.request);
            let Some(sequence) = self.core.sequence(id) else { continue };
            let end = sequence.prompt_len()
                + sequence.outputs().len() as u32
                + sequence.outputs_left()
                + sequence.in_flight();
            let continues = row.samples() && row.context_len < end;
            let slot = self.slot(row.pool_row, &recorded["reqs"][reqs.len()]["slot"]);
            let mut req = json!({
                "uid": self.uid(id), "slot": slot, "cached": row.cached, "extend": row.tokens.len,
                "write_pos": if continues { i64::from(row.context_len) } else { -1 },
            });
            if !row.samples() {
                req["chunked"] = json!(true);
            }
            reqs.push(req);
            out_loc.extend_from_slice(&step.plan.write_slots[row.tokens.range()]);
            positions.extend_from_slice(&step.plan.positions[row.tokens.range()]);
        }
        let padded = self.padded(rows.len() as u32, decode);
        let dummies = (padded as usize).saturating_sub(rows.len());
        out_loc.extend(std::iter::repeat_n(self.page * self.pages, dummies));
        positions.extend(std::iter::repeat_n(0, dummies));
        let phase = if decode { "decode" } else { "prefill" };
        json!({ "phase": phase, "reqs": reqs, "padded_size": padded, "out_loc": out_loc, "positions": positions })
    }

    /// The case's name for a token-pool row; stable and unique while the row is in use.
    fn slot(&mut self, row: PoolRow, recorded: &Value) -> Value {
        match self.slots_of.get(&row) {
            Some(slot) => slot.clone(),
            None if self.slots_of.values().any(|slot| slot == recorded) => json!("a slot of its own"),
            None => {
                self.slots_of.insert(row, recorded.clone());
                recorded.clone()
            }
        }
    }

    /// Batch size after CUDA graph padding: decode pads to the smallest captured size that fits.
    fn padded(&self, rows: u32, decode: bool) -> u32 {
        let fits = self.graphs.iter().filter(|size| **size >= rows).min();
        fits.copied().filter(|_| decode).unwrap_or(rows)
    }

    fn uid(&self, id: RequestId) -> u64 {
        self.core.sequence(id).map_or(u64::MAX, |sequence| sequence.tag())
    }

    /// Completes the oldest step in flight with the scripted tokens.
    fn take_in(&mut self) -> Result<Vec<Value>, String> {
        let Some(mut step) = self.steps.pop_front() else { return Ok(Vec::new()) };
        for row in &step.batch.rows {
            let start = step.output.tokens.len();
            let sequence = self.core.sequence(RequestId(row.request));
            if row.samples() {
                let uid = sequence.map_or(0, |sequence| sequence.tag());
                let i = sequence.map_or(0, |sequence| (row.context_len - sequence.prompt_len()) as usize);
                let scripted = self.outputs.get(&uid).and_then(|outputs| outputs.get(i)).copied();
                step.output
                    .tokens
                    .push(scripted.unwrap_or(700 + ((31 * (uid % 97) + i as u64) % 97) as Token));
            }
            let span = Span::new(start, step.output.tokens.len() - start);
            step.output.rows.push(OutputRow { tokens: span });
        }
        self.core.postprocess(&step, &Ok(()), 0);
        let mut replies = Vec::new();
        for EventOutput { event, tokens: new, .. } in self.core.outbox().iter() {
            let heard = self.replies.entry(event.tag).or_default();
            for token in new {
                heard.0.push(*token);
                replies.push(json!({ "uid": event.tag, "token": token, "finished": event.finish.is_some() }));
            }
            if event.finish.is_some_and(|finish| finish != Finish::Aborted) {
                heard.1.push(heard.0.len());
            }
        }
        self.core.outbox().clear();
        self.core.recycle(step);
        Ok(replies)
    }

    fn after(&mut self) -> Value {
        let live: Vec<PoolRow> = self.core.running().filter_map(|one| one.pool_row()).collect();
        self.slots_of.retain(|row, _| live.contains(row));
        let usage = self.core.cache().usage();
        let (mut pending, mut running, mut inflight, mut private) = (Vec::new(), Vec::new(), 0u32, 0u32);
        for one in self.core.running() {
            let longest = one.longest();
            private += one.claimed().div_ceil(self.page) - one.published() / self.page;
            if one.is_prefilling() {
                pending.push(one.tag());
            } else if longest > one.claimed() + 1 {
                running.push(one.tag());
                inflight += longest - one.claimed() - 1 + self.page - 1;
            }
        }
        pending.extend(self.core.waiting().map(|one| one.tag()));
        running.sort_unstable();
        json!({
            "free_pages": usage.free / self.page,
            "evictable": usage.evictable,
            "protected": usage.held - (private * self.page).min(usage.held),
            "free_table_slots": self.slots - self.core.counts().1 as u32,
            "pending": pending,
            "running": running,
            "inflight_tokens": inflight,
        })
    }

    /// Per request: the output token counts at its finished replies.
    fn finished(&self, wanted: &Map<String, Value>) -> Value {
        let of =
            |uid: &String| uid.parse().ok().and_then(|uid: u64| self.replies.get(&uid)).map(|heard| &heard.1);
        wanted.keys().map(|uid| (uid.clone(), json!(of(uid)))).collect::<Map<_, _>>().into()
    }

    fn end(&mut self) -> Value {
        let mut end = self.after();
        let usage = self.core.cache().usage();
        end["free_pages_plus_cached_pages"] = json!((usage.free + usage.evictable) / self.page);
        end
    }
}
