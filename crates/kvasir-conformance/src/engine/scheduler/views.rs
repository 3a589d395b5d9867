//! Converts steps, queues and sequences of the core to the recorded JSON format.

use crate::engine::blocks::blocks_of;
use crate::engine::free_slots;
use crate::engine::scheduler::{Harness, finish_name};
use crate::engine::tables::draft_rows;
use kvasir_engine::{Finish, RequestId};
use kvasir_exec::{Step, StepKind};
use serde_json::{Map, Value, json};

impl Harness {
    pub(super) fn next_batch_info(&self) -> Value {
        let budget = self.core.limits().max_num_batched_tokens;
        let partial = self.core.running().filter(|sequence| sequence.is_prefilling());
        let prompts: u32 = partial.chain(self.core.waiting()).map(|sequence| sequence.to_feed()).sum();
        match prompts {
            0 => json!({ "is_prefill": false, "tokens": self.core.counts().1 }),
            tokens => json!({ "is_prefill": true, "tokens": tokens.min(budget) }),
        }
    }

    pub(super) fn waiting_new_tokens(&self) -> u32 {
        let all: u32 = self.core.waiting().map(|sequence| sequence.to_feed()).sum();
        all.min(self.core.limits().max_num_batched_tokens)
    }

    pub(super) fn describe(&mut self, step: &Step) -> Value {
        let batch = &step.batch;
        let prefill = batch.kind == StepKind::Prefill;
        let kind = if prefill { "PREFILL" } else { "DECODE" };
        let (mut names, mut tokens, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        let mut last_block_tokens = Vec::new();
        for (row, planned) in batch.rows.iter().zip(&step.plan.rows) {
            let name = self.name_of(RequestId(row.request));
            tokens.push(&batch.tokens[row.tokens.range()]);
            let sequence = self.core.sequence(RequestId(row.request));
            let sequence_len = sequence.map_or(0, |sequence| sequence.tokens().len() as u32);
            let len = if row.kind.is_prefill() { sequence_len } else { row.context_len };
            last_block_tokens.push((len.max(1) - 1) % self.block + 1);
            let table = blocks_of(&step.plan, planned, self.block);
            if let Some(known) = self.known.get_mut(&name) {
                known.kind = Some(kind);
                known.table.clone_from(&table);
            }
            tables.push(table);
            names.push(name);
        }
        let rows = &batch.rows;
        let mut value = json!({
            "kind": kind.to_lowercase(),
            "seqs": names,
            "num_scheduled": rows.iter().map(|row| row.tokens.len).collect::<Vec<_>>(),
            "tokens": tokens,
            "context_lens": rows.iter().map(|row| row.context_len).collect::<Vec<_>>(),
            "block_tables": tables,
            "last_block_tokens": last_block_tokens,
            "total_tokens": batch.tokens.len(),
            "cached": rows.iter().map(|row| row.cached).collect::<Vec<_>>(),
            "final_chunk": rows.iter().map(|row| row.samples()).collect::<Vec<_>>(),
        });
        if self.drafts > 0 && !prefill {
            value["num_spec_step"] = json!(batch.spec_steps);
            value["draft_rows"] = json!(draft_rows(batch, self.drafts));
        }
        value
    }

    /// Names of waiting sequences, including ended ones whose rejection or abort has not been
    /// reported yet.
    pub(super) fn waiting(&self) -> Vec<String> {
        let mut waiting: Vec<String> =
            self.core.waiting().map(|sequence| self.name_of(sequence.id())).collect();
        for (at, name) in self.added.iter().enumerate() {
            let known = &self.known[name];
            if self.ended.contains(name) && known.completion.is_empty() && known.kind.is_none() {
                let after = |other: &String| self.added.iter().position(|name| name == other) > Some(at);
                let index = waiting.iter().position(after).unwrap_or(waiting.len());
                waiting.insert(index, name.clone());
            }
        }
        waiting
    }

    pub(super) fn state(&mut self) -> Value {
        let mut state = Map::new();
        state.insert("free_blocks".into(), json!(free_slots(&self.core) / self.block));
        state.insert("waiting".into(), json!(self.waiting()));
        let running: Vec<String> = self.core.running().map(|sequence| self.name_of(sequence.id())).collect();
        for name in &self.names {
            let Some(known) = self.known.get_mut(name) else { continue };
            let live = known.id.and_then(|id| self.core.sequence(id));
            let is_cached = live.is_some_and(|sequence| sequence.cache_id().is_some());
            if !is_cached {
                known.table.clear();
                self.blocks.release(name);
            }
            let is_unreported = self.ended.contains(name);
            let status = match known.finish {
                Some(Finish::Aborted) if is_unreported => "ABORTED",
                Some(_) if is_unreported => "WAITING",
                Some(_) => "FINISHED",
                None if is_cached => "RUNNING",
                None => "WAITING",
            };
            let sequence = json!({
                "status": status,
                "type": known.kind.unwrap_or("DUMMY"),
                "block_table": known.table,
                "num_tokens": known.request.prompt.len() + known.completion.len(),
                "completion": known.completion,
                "finish_reason": known.finish.map(finish_name),
                "cached": live.map_or(0, |sequence| sequence.hit()),
            });
            state.insert(format!("seq:{name}"), sequence);
        }
        state.insert("running".into(), json!(running));
        Value::Object(state)
    }
}
