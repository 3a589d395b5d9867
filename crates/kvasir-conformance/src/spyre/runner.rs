//! Replays `spyre.prefix_caching_runner`: block tables, slot mappings and chunk plans with prefix
//! caching.

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::outcome::Outcome;
use crate::spyre::blocks::{BlockNames, TablePair, ids};
use crate::spyre::harness::{Harness, RanRow};
use crate::spyre::scenario::Scenario;
use kvasir_engine::rectangular::{ChunkRecord, HitPlan, PrefillShape, Rules};
use kvasir_kv::BlockId;
use serde_json::{Map, Value, json};

/// The block written by each block-sized part of a prefill chunk; 0 (the dummy) for left padding
/// and redirected writes.
pub(crate) fn targets(row: &RanRow, chunk: &ChunkRecord, block_size: u32) -> Vec<BlockId> {
    let left = match chunk.chunk {
        0 => chunk.left / block_size,
        _ => 0,
    };
    let mut blocks = vec![0; left as usize];
    blocks.extend(row.targets.iter().step_by(block_size as usize));
    blocks
}

/// Runs one case: a scheduler step, or a chunk plan without execution, per recorded step.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let scenario = Scenario::read(case, Rules::Later, true)?;
    let mut bench =
        Harness::new(scenario.policy, scenario.limits, scenario.blocks).map_err(|why| case.error(why))?;
    let Value::Array(steps) = case.field("steps")? else {
        return Err(case.error("field `steps` must be a list"));
    };
    let mut names = BlockNames::default();
    let mut order = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let at = format!("step {i}");
        let action = step.get("action").and_then(Value::as_str).unwrap_or("run one scheduler step");
        let named = step.get("request").and_then(Value::as_str);
        let which = named.map(|id| scenario.requests.iter().position(|request| request.id == id));
        let verdict = match (action.starts_with("plan"), which) {
            (_, Some(None)) => return Err(case.error(format!("{at}: request is not known"))),
            (true, which) => {
                let which = which.flatten().unwrap_or(0);
                let hit = match step.get("hit_tokens") {
                    Some(given) => given_hit(&scenario, which, given)
                        .ok_or_else(|| case.error(format!("{at}: bad `hit_tokens` `{given}`")))?,
                    None => bench.lookup(&scenario.prompt(which)),
                };
                plan(&scenario, which, hit, step, &at)
            }
            (false, which) => {
                if let Some(Some(which)) = which.filter(|_| action.starts_with("add")) {
                    let request = &scenario.requests[which];
                    let prompt = scenario.prompt(which);
                    bench
                        .add(prompt, request.max_tokens, request.stop_after_tokens)
                        .map_err(|why| case.error(why))?;
                    order.push(which);
                }
                let name = |number: usize| scenario.requests[order[number]].id.clone();
                step_and_compare(&mut bench, &mut names, &name, step, &at)
            }
        };
        if let Err(mismatch) = verdict {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    Ok(Outcome::Passed)
}

/// The prefix cache hit given by a step, rounded down to whole blocks; 0 with prefix caching off.
fn given_hit(scenario: &Scenario, which: usize, given: &Value) -> Option<u32> {
    let hit = u32::try_from(given.as_u64()?).ok()?;
    let block = scenario.config.block_size;
    let prompt = scenario.prompt(which).len() as u32;
    let whole = if scenario.blocks.sharing { hit / block * block } else { 0 };
    (hit <= prompt.next_multiple_of(block)).then_some(whole)
}

/// Compares the chunk plan of a prompt with `hit` cached tokens, without running it.
fn plan(scenario: &Scenario, which: usize, hit: u32, step: &Value, at: &str) -> Result<(), Box<Mismatch>> {
    let prompt = scenario.prompt(which);
    let block = scenario.config.block_size;
    let shape = PrefillShape::new(prompt.len() as u32, block, scenario.config.chunk_size);
    let plan = HitPlan::new(shape, hit);
    let got = json!({
        "chunk_count": shape.chunks(),
        "padding_blocks": shape.left_blocks(),
        "total_cache_blocks": hit / block,
        "usable_cache_blocks": plan.usable / block,
    });
    let asserted = step.as_object().into_iter().flatten().filter(|(key, _)| got.get(key.as_str()).is_some());
    let wanted: Map<_, _> = asserted.map(|(key, value)| (key.clone(), value.clone())).collect();
    compare(at, &Value::Object(wanted), &got)
}

fn step_and_compare(
    bench: &mut Harness,
    names: &mut BlockNames,
    name: &dyn Fn(usize) -> String,
    step: &Value,
    at: &str,
) -> Result<(), Box<Mismatch>> {
    let fails = |why| Box::new(Mismatch { at: at.into(), expected: json!("to run"), got: json!(why) });
    bench.step().map_err(|why: String| fails(why))?;
    let ran = &bench.ran;
    let block = bench.block_size();
    let is_last = ran.chunk.is_none_or(|chunk| chunk.chunk + 1 == chunk.chunks);
    let skipped = bench.skipped();
    let usable = ran.rows.iter().filter(|_| !is_last).map(|row| {
        let skips = skipped.iter().find(|(which, _)| *which == row.request);
        (name(row.request), json!(skips.map_or(0, |(_, tokens)| *tokens)))
    });
    let left = |row: &RanRow| (name(row.request), json!(row.left_pad_blocks * block));
    let got = json!({
        "req_ids": ran.rows.iter().map(|row| name(row.request)).collect::<Vec<_>>(),
        "n_sampled": ran.outputs.len(),
        "tkv": ran.tkv,
        "n_free_blocks": bench.free_blocks(),
        "left_padding": ran.rows.iter().map(left).collect::<Map<_, _>>(),
        "usable_cached_tokens": usable.collect::<Map<_, _>>(),
    });
    let asserted = step.as_object().into_iter().flatten().filter(|(key, _)| got.get(key.as_str()).is_some());
    let wanted: Map<_, _> = asserted.map(|(key, value)| (key.clone(), value.clone())).collect();
    compare(at, &Value::Object(wanted), &got)?;
    compare_blocks(bench, names, name, step, at)
}

fn compare_blocks(
    bench: &Harness,
    names: &mut BlockNames,
    name: &dyn Fn(usize) -> String,
    step: &Value,
    at: &str,
) -> Result<(), Box<Mismatch>> {
    let (ran, block) = (&bench.ran, bench.block_size());
    let lists = |key: &str| step.get(key).and_then(Value::as_array).map(Vec::as_slice);
    if let Some(tables) = lists("block_tables") {
        let pairs = ran.rows.iter().zip(tables).map(|(row, expected)| {
            let mut expected = ids(expected);
            let dummies: Vec<_> =
                expected.drain(..expected.len().min(row.left_pad_blocks as usize)).collect();
            names.list(&format!("{at}.block_tables"), &dummies, &vec![0; row.left_pad_blocks as usize])?;
            let shown = row.context_len.div_ceil(block) as usize;
            let own = row.blocks.iter().copied().take(shown).collect();
            Ok(TablePair { name: name(row.request), expected, own, hit: row.hit_blocks as usize })
        });
        let pairs = pairs.collect::<Result<Vec<_>, Box<Mismatch>>>()?;
        names.tables(at, &pairs)?;
    }
    let Some(expected) = lists("slot_mapping_blocks") else { return Ok(()) };
    ran.rows.iter().zip(expected).try_for_each(|(row, expected)| {
        let own = match &ran.chunk {
            Some(chunk) => targets(row, chunk, block),
            None => row.targets.clone(),
        };
        names.list(&format!("{at}.slot_mapping_blocks"), &ids(expected), &own)
    })
}
