//! Replays `nano.scheduler` (nano-vLLM): prefill-first scheduling on the paged cache, with a
//! scripted model.
//!
//! Per step: add requests, schedule, compare block tables up to renaming, complete the step with
//! scripted tokens, then compare batch, queues and free blocks.

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::engine::blocks::blocks_of;
use crate::engine::{about, free_slots, list, number, switch, tokens};
use crate::names::BlockNames;
use crate::outcome::Outcome;
use kvasir_engine::{Chunking, Core, EventOutput, Limits, Order, Params, PrefillFirst, Request, RequestId};
use kvasir_exec::{OutputRow, Step, StepKind};
use kvasir_kv::{Paged, Span, Token, blocks::BlockConfig};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// `nano.scheduler`: `prefill-first` on a `paged` cache; only the first prompt of a step may be
/// chunked.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    replay(case).map_err(about(case))
}

fn replay(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").ok_or("field `expected` is missing")?;
    let of = |key: &str, default: u32| number(given, key, default);
    let block = of("block_size", 4)?.max(1);
    let blocks = BlockConfig { block_size: block, blocks: of("num_blocks", 8)?, ..BlockConfig::default() };
    let limits = Limits {
        max_num_seqs: of("max_num_seqs", 8)?,
        max_num_batched_tokens: of("max_num_batched_tokens", 16)?,
        max_model_len: 1 << 20,
        ..Limits::default()
    };
    let cache = Paged::new(blocks).map_err(|error| error.to_string())?;
    let policy = PrefillFirst::new(Chunking::First, 0.0);
    let mut bench = Harness {
        core: Core::new(limits, Order::Fcfs, Box::new(policy), Box::new(cache)),
        block,
        eos: of("eos", 999)?,
        outputs: BTreeMap::new(),
        completions: BTreeMap::new(),
        blocks: BlockNames::default(),
    };
    let nothing = json!({});
    for (i, step) in list(given, "steps")?.iter().enumerate() {
        for one in step.get("add").map(|_| list(step, "add")).transpose()?.unwrap_or(&[]) {
            bench.add(one)?;
        }
        let recorded = expected["after_each_step"].get(i).unwrap_or(&nothing);
        if let Err(wrong) = bench.step(&format!("step {i}"), recorded) {
            return Ok(Outcome::Failed(wrong));
        }
    }
    let completions: Map<String, Value> =
        bench.completions.iter().map(|(seq, tokens)| (seq.to_string(), json!(tokens))).collect();
    let got = json!({ "completions": completions });
    let wanted = expected.get("completions").map_or(nothing, |wanted| json!({ "completions": wanted }));
    Ok(compare("end", &wanted, &got).err().map_or(Outcome::Passed, Outcome::Failed))
}

struct Harness {
    core: Core,
    block: u32,
    eos: Token,
    outputs: BTreeMap<u64, Vec<Token>>,
    completions: BTreeMap<u64, Vec<Token>>,
    blocks: BlockNames,
}

impl Harness {
    fn add(&mut self, one: &Value) -> Result<(), String> {
        let seq = one["seq"].as_u64().ok_or("`seq` must be a number")?;
        let params = Params {
            max_tokens: number(one, "max_tokens", 64)?,
            ignore_eos: switch(one, "ignore_eos", false),
            eos: vec![self.eos],
            ..Params::default()
        };
        self.outputs.insert(seq, one.get("outputs").map(tokens).transpose()?.unwrap_or_default());
        let request = Request { tag: seq, prompt: tokens(&one["ids"])?, params };
        self.core.add(request, 0).map_err(|refusal| refusal.to_string())?;
        Ok(())
    }

    fn step(&mut self, at: &str, expected: &Value) -> Result<(), Box<Mismatch>> {
        let Some(mut step) = self.core.schedule(0) else {
            return compare(at, expected, &json!({ "phase": null, "batch": [] }));
        };
        self.core.take_binds().for_each(drop);
        let batch = self.describe(&step);
        let named = expected["batch"].as_array().into_iter().flatten().zip(step.plan.rows.iter());
        for ((theirs, planned), row) in named.zip(&step.batch.rows) {
            let table = blocks_of(&step.plan, planned, self.block);
            let wanted = &theirs["block_table"];
            let live = self.core.sequence(RequestId(row.request));
            let reserved = live.map_or(0, |one| one.reserved() / self.block) as usize;
            let hit = live.map_or(0, |one| one.hit() / self.block) as usize;
            let name = theirs["seq"].to_string();
            let at = format!("{at}: block table of {name}, {reserved} reserved beside it");
            if wanted.as_array().is_some_and(|wanted| wanted.len() != table.len() + reserved) {
                return Err(Box::new(Mismatch { at, expected: wanted.clone(), got: json!(table) }));
            }
            if !wanted.is_null() {
                self.blocks.meet(&at, &name, wanted, &table, hit)?;
            }
        }
        self.answer(&mut step);
        let kind = step.batch.kind;
        self.core.postprocess(&step, &Ok(()), 0);
        self.core.recycle(step);
        let finished = self.drain_events();
        let running: Vec<u64> =
            self.core.running().filter(|one| !one.is_prefilling()).map(|one| one.tag()).collect();
        let partial = self.core.running().filter(|one| one.is_prefilling());
        let waiting: Vec<u64> = partial.chain(self.core.waiting()).map(|one| one.tag()).collect();
        for gone in self.completions.keys().filter(|seq| !running.contains(seq)) {
            self.blocks.release(&gone.to_string());
        }
        let mut expected = expected.clone();
        if let Some(free) = expected["free_blocks"].as_array().map(Vec::len) {
            expected["free_blocks"] = json!(free);
        }
        let rows = expected.get_mut("batch").and_then(Value::as_array_mut);
        for row in rows.into_iter().flatten().filter_map(Value::as_object_mut) {
            row.remove("block_table");
        }
        let got = json!({
            "phase": if kind == StepKind::Decode { "decode" } else { "prefill" },
            "batch": batch, "finished": finished, "waiting": waiting, "running": running,
            "free_blocks": free_slots(&self.core) / self.block,
        });
        compare(at, &expected, &got)
    }

    fn describe(&self, step: &Step) -> Vec<Value> {
        let rows = step.batch.rows.iter();
        rows.map(|row| {
            let seq = self.core.sequence(RequestId(row.request)).map(|one| one.tag());
            json!({ "seq": seq, "cached": row.cached, "scheduled": row.tokens.len })
        })
        .collect()
    }

    fn answer(&self, step: &mut Step) {
        for row in &step.batch.rows {
            let start = step.output.tokens.len();
            if row.samples()
                && let Some(one) = self.core.sequence(RequestId(row.request))
            {
                let (seq, i) = (one.tag(), one.outputs().len());
                let scripted = self.outputs.get(&seq).and_then(|outputs| outputs.get(i)).copied();
                step.output
                    .tokens
                    .push(scripted.unwrap_or(700 + ((31 * (seq % 97) + i as u64) % 97) as Token));
            }
            let tokens = Span::new(start, step.output.tokens.len() - start);
            step.output.rows.push(OutputRow { tokens });
        }
    }

    fn drain_events(&mut self) -> Vec<u64> {
        let mut finished = Vec::new();
        for EventOutput { event, tokens: new, .. } in self.core.outbox().iter() {
            self.completions.entry(event.tag).or_default().extend(new);
            finished.extend(event.finish.map(|_| event.tag));
        }
        self.core.outbox().clear();
        finished
    }
}
