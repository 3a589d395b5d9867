//! Replays the table kinds of `atom`: small pure functions, run here or skipped with the covering
//! unit test.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, list, tokens};
use crate::outcome::Outcome;
use kvasir_engine::{DraftStats, prefill_chunk};
use kvasir_exec::{Batch, BatchRow, Drafts, RowKind, StepKind};
use kvasir_kv::{Span, Token};
use serde_json::{Value, json};

fn skipped(reason: &str) -> Result<Outcome, CaseError> {
    Ok(Outcome::Skipped { reason: reason.to_owned() })
}

/// `atom.function`: small pure functions, selected by the case id.
pub(crate) fn function(case: &Case) -> Result<Outcome, CaseError> {
    let run: fn(&Value) -> Result<Value, String> = match case.id.get(..5) {
        Some("fn-01") => chunk_size,
        Some("fn-03") => produces_output,
        Some("fn-04") => spec_stats,
        Some("fn-08") => rows_of_drafts,
        Some("fn-02") => {
            return skipped("a table; test limits::tests::decode_bound_respects_sequences_and_token_budget");
        }
        Some("fn-05") => {
            return skipped(
                "a table; test core_life::live_sequences_tell_oldest_arrival_and_pending_prompt_tokens",
            );
        }
        Some("fn-06") => {
            return skipped(
                "a table; test core_life::live_sequences_tell_oldest_arrival_and_pending_prompt_tokens",
            );
        }
        Some("fn-07") => {
            return skipped(
                "a table; a trace keeps q and kv of every row, sums are the reader's; test core_life::rows_have_query_and_context_lengths",
            );
        }
        Some("fn-09") => {
            return skipped("a table; test core_life::decode_feeds_the_newest_token_and_drafts");
        }
        Some("fn-10") => {
            return skipped(
                "a table; inputs in flight go by pool row, not by batch position; test toy::every_completion_equals_its_request_run_alone",
            );
        }
        Some("fn-11") => {
            return skipped("outside the design: drafts that are accepted at a forced rate, a benchmark aid");
        }
        Some("fn-12") => return skipped("outside the design: layers split over a pipeline"),
        _ => return Err(case.error("unknown function")),
    };
    let got = run(case.field("given")?).map_err(about(case))?;
    Ok(compare("table", case.field("expected")?, &got).err().map_or(Outcome::Passed, Outcome::Failed))
}

fn chunk_size(given: &Value) -> Result<Value, String> {
    let at = |row: &Value, i: usize| {
        row[i].as_u64().and_then(|n| u32::try_from(n).ok()).ok_or("a number is missing")
    };
    let empty = given["batch_tokens_so_far"].as_u64().unwrap_or(0) == 0;
    let mut chunks = Vec::new();
    for row in list(given, "vectors")? {
        chunks.push(prefill_chunk(at(row, 0)?, at(row, 1)?, at(row, 2)?, true, empty).unwrap_or(0));
    }
    let mut extra = Vec::new();
    for one in given["extra"].as_array().into_iter().flatten() {
        let of = |key: &str| super::number(one, key, 0);
        let chunked = super::switch(one, "chunked_prefill", true);
        extra.push(
            prefill_chunk(of("num_new")?, of("budget")?, of("block_size")?, chunked, empty).unwrap_or(0),
        );
    }
    Ok(json!({ "chunk": chunks, "extra": extra }))
}

fn produces_output(given: &Value) -> Result<Value, String> {
    let row = |kind, samples: bool| BatchRow {
        kind,
        tokens: Span { start: 0, len: 1 },
        sample_from: u32::from(!samples),
        ..BatchRow::default()
    };
    let mut produces = Vec::new();
    for vector in list(given, "vectors")? {
        let decodes = vector[0].as_u64().unwrap_or(0).min(4096);
        let chunks = vector[1].as_array().map(Vec::as_slice).unwrap_or(&[]);
        let mut batch = Batch {
            kind: if chunks.is_empty() { StepKind::Decode } else { StepKind::Mixed },
            ..Batch::default()
        };
        batch.rows.extend((0..decodes).map(|_| row(RowKind::Decode, true)));
        batch.rows.extend(chunks.iter().map(|last| row(RowKind::Prefill, last == true)));
        produces.push(batch.kind == StepKind::Decode || batch.rows.iter().any(BatchRow::samples));
    }
    Ok(json!({ "produces": produces }))
}

fn spec_stats(given: &Value) -> Result<Value, String> {
    let (mut drafts, mut accepted, mut rate) = (Vec::new(), Vec::new(), Vec::new());
    for one in list(given, "cases")? {
        let k = one["k"].as_u64().unwrap_or(0).min(4096) as usize;
        let mut stats = DraftStats::default();
        for yielded in tokens(&one["updates"])? {
            stats.count(k, k, yielded.saturating_sub(1) as usize);
        }
        let (right, made) = stats.totals();
        drafts.push(made);
        accepted.push(right);
        rate.push(stats.rate());
    }
    Ok(json!({ "drafts": drafts, "accepted": accepted, "rate": rate }))
}

fn rows_of_drafts(given: &Value) -> Result<Value, String> {
    let width = super::number(given, "k", 0)?;
    let mut all = Vec::new();
    for step in list(given, "drafts")? {
        let mut batch = Batch::default();
        for name in list(given, "batch")? {
            let drafts = match step.get(name.as_str().unwrap_or_default()) {
                Some(drafts) => tokens(drafts)?,
                None => Vec::new(),
            };
            let start = batch.tokens.len();
            batch.tokens.push(1);
            batch.tokens.extend(&drafts);
            batch.rows.push(BatchRow {
                tokens: Span::new(start, 1 + drafts.len()),
                drafts: Drafts { count: drafts.len() as u32, tree: None },
                ..BatchRow::default()
            });
        }
        all.push(draft_rows(&batch, width));
    }
    Ok(json!({ "rows": all }))
}

/// `atom.sampling_params`.
pub(crate) fn sampling_params(case: &Case) -> Result<Outcome, CaseError> {
    match case.id.get(..5) {
        Some("sp-01") => skipped("a table; defaults are those of the endpoint; test plain_chats_are_parsed"),
        _ => skipped(
            "a table; tests request::tests::ranges_are_checked and core_life::siblings_have_their_own_seeds",
        ),
    }
}

/// `atom.fanout`.
pub(crate) fn fanout(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table; test core_life::siblings_have_their_own_seeds")
}

/// `atom.request_output`.
pub(crate) fn request_output(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table; tests stop::tests and core_life::events_carry_tokens_and_a_final_finish_reason")
}

/// Draft tokens of a batch, one row per sequence, padded with zeros to `width`.
pub(crate) fn draft_rows(batch: &Batch, width: u32) -> Vec<Vec<Token>> {
    let of = |row: &kvasir_exec::BatchRow| {
        let fed = &batch.tokens[row.tokens.range()];
        let mut drafts = fed[fed.len() - row.drafts.count as usize..].to_vec();
        drafts.resize(width as usize, 0);
        drafts
    };
    batch.rows.iter().map(of).collect()
}
