//! Replays `spyre.steps*` and `spyre.derived_*`: tables of scheduler states, one row per engine
//! step.

use crate::case::{Case, CaseError};
use crate::compare::Mismatch;
use crate::outcome::Outcome;
use crate::spyre::blocks::BlockNames;
use crate::spyre::harness::Harness;
use crate::spyre::rows::Rows;
use crate::spyre::scenario::Scenario;
use kvasir_engine::rectangular::Rules;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Runs one case: row `s` describes the state after `s` steps, once that step's requests were
/// added.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let rules = match case.body.get("policy").and_then(Value::as_str) {
        Some(policy) if policy.starts_with("code") => Rules::Later,
        None if case.kind == "spyre.steps_pausing" => Rules::Later,
        _ => Rules::Document,
    };
    let scenario = Scenario::read(case, rules, rules == Rules::Later)?;
    let fails =
        |at: &str, why: String| Mismatch { at: at.into(), expected: json!("to run"), got: json!(why) };
    let mut bench = match Harness::new(scenario.policy, scenario.limits, scenario.blocks) {
        Ok(bench) => bench,
        Err(why) => return Err(case.error(why)),
    };
    let mut order: Vec<usize> = (0..scenario.requests.len()).collect();
    order.sort_by_key(|&which| scenario.requests[which].add_step);
    let mut names = BlockNames::default();
    let mut produced: BTreeMap<usize, u32> = BTreeMap::new();
    let mut max_volume = 0;
    let rows = Rows::read(case)?;
    let mut added = 0;
    for row in rows.filled() {
        while let Some(&which) = order.get(added)
            && scenario.requests[which].add_step <= row.step
        {
            let request = &scenario.requests[which];
            if let Err(why) = bench.add(scenario.prompt(which), request.max_tokens, request.stop_after_tokens)
            {
                return Ok(Outcome::Failed(Box::new(fails(&format!("request {}", request.id), why))));
            }
            added += 1;
        }
        let name = |number: usize| scenario.requests[order[number]].id.clone();
        let got = observe(&bench, &name);
        if let Err(mismatch) = row.compare(&got, &mut names) {
            return Ok(Outcome::Failed(mismatch));
        }
        if let Err(why) = bench.step() {
            return Ok(Outcome::Failed(Box::new(fails(&format!("step {}", row.step + 1), why))));
        }
        bench.ran.outputs.iter().for_each(|number| *produced.entry(*number).or_default() += 1);
        max_volume = max_volume.max(bench.ran.volume);
    }
    let (paused, resumed) = bench.events();
    let end = json!({"max_volume": max_volume, "pause_events": paused, "resume_events": resumed});
    Ok(ending(case, &end, &scenario, &order, &produced))
}

/// Compares the totals of the run, and checks that every request produced all its output tokens.
fn ending(
    case: &Case,
    end: &Value,
    scenario: &Scenario,
    order: &[usize],
    produced: &BTreeMap<usize, u32>,
) -> Outcome {
    let asserted = ["max_volume", "pause_events", "resume_events"].into_iter().filter_map(|key| {
        let metrics = case.body.get("end_metrics").and_then(|metrics| metrics.get(key));
        Some((key.to_owned(), case.body.get(key).or(metrics)?.clone()))
    });
    let asserted = Value::Object(asserted.collect::<Map<_, _>>());
    if let Err(mismatch) = crate::compare::compare("end", &asserted, end) {
        return Outcome::Failed(mismatch);
    }
    for (number, &which) in order.iter().enumerate() {
        let request = &scenario.requests[which];
        let wanted = request.stop_after_tokens.unwrap_or(request.max_tokens).min(request.max_tokens);
        let room = scenario.config.max_model_len.saturating_sub(scenario.prompt(which).len() as u32);
        let got = produced.get(&number).copied().unwrap_or(0);
        if got != wanted.min(room) {
            let at = format!("outputs of {}", request.id);
            return Outcome::Failed(Box::new(Mismatch { at, expected: json!(wanted), got: json!(got) }));
        }
    }
    Outcome::Passed
}

/// All fields that a row may assert, from the current state.
fn observe(bench: &Harness, name: &dyn Fn(usize) -> String) -> Value {
    let names = |numbers: &[usize]| Value::from(numbers.iter().map(|n| name(*n)).collect::<Vec<_>>());
    let ran = &bench.ran;
    let tables = bench.tables();
    let mut references: BTreeMap<u32, u32> = BTreeMap::new();
    for block in tables.iter().flat_map(|(_, blocks)| blocks) {
        *references.entry(*block).or_default() += 1;
    }
    let did = match (&ran.chunk, ran.rows.first()) {
        (Some(chunk), Some(row)) => {
            format!("prefill {} tokens {}..{}", name(row.request), chunk.from, chunk.to)
        }
        (None, Some(_)) => "decode".into(),
        (_, None) => "empty".into(),
    };
    let mut targets = Map::new();
    if let (Some(chunk), Some(row)) = (&ran.chunk, ran.rows.first()) {
        targets
            .insert(name(row.request), json!(crate::spyre::runner::targets(row, chunk, bench.block_size())));
    }
    let skipped: u32 = bench.skipped().iter().map(|(_, tokens)| tokens).sum();
    let by_name = |(number, blocks): &(usize, Vec<u32>)| (name(*number), json!(blocks));
    let hit = |(number, _): &(usize, Vec<u32>)| (name(*number), json!(bench.hit_blocks(*number)));
    let count = |(block, n): (&u32, &u32)| (block.to_string(), json!(n));
    json!({
        "tkv": ran.tkv,
        "waiting": names(&bench.waiting()),
        "running": names(&bench.running()),
        "paused": names(&bench.paused()),
        "request_outputs": names(&ran.outputs),
        "finished_requests": names(&ran.finished),
        "n_used_blocks": references.len(),
        "n_reserved_blocks": bench.reserved(),
        "n_cached_blocks": skipped / bench.block_size(),
        "n_prefix_hits": bench.hits_to_come(),
        "ran": did,
        "block_tables": tables.iter().map(by_name).collect::<Map<_, _>>(),
        "hit_blocks": tables.iter().map(hit).collect::<Map<_, _>>(),
        "block_ref_count": references.iter().map(count).collect::<Map<_, _>>(),
        "prefill_slot_mappings": targets,
    })
}
