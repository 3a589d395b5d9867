//! Reads and writes sequence fields by name, and applies operations outside the schedule (add,
//! abort, preempt, append).

use crate::engine::scheduler::{Harness, end};
use crate::engine::{number, sequence, tokens};
use kvasir_engine::{Finish, RequestId, Sequence};
use kvasir_exec::Step;
use serde_json::{Value, json};

impl Harness {
    /// A live sequence, or the last known state of one that has ended or was never added.
    fn seen(&self, name: &str) -> Result<Sequence, String> {
        let known = self.known.get(name).ok_or_else(|| format!("no sequence {name}"))?;
        Ok(match known.id.and_then(|id| self.core.sequence(id)) {
            Some(live) if live.finish().is_none() => live.clone(),
            _ => {
                let mut sequence = Sequence::new(known.request.clone());
                sequence.append(&known.completion);
                sequence
            }
        })
    }

    pub(super) fn get(&mut self, op: &Value) -> Result<Value, String> {
        let (name, field) =
            (op["seq"].as_str().unwrap_or_default(), op["field"].as_str().unwrap_or_default());
        let sequence = self.seen(name)?;
        let state = self.state();
        let state = &state[format!("seq:{name}")];
        let known = self.named(op)?;
        match field {
            "type" | "status" => Ok(state[field].clone()),
            "is_finished" => Ok(json!(state["status"] == "FINISHED")),
            "arrive_time" => Ok(json!(known.arrived as f64 / 1e9)),
            "block_table" => Ok(json!(known.table)),
            _ => sequence::field(&sequence, sequence.params(), known.number, field, self.block),
        }
    }

    pub(super) fn get_block(&mut self, op: &Value) -> Result<Value, String> {
        let i = number(op, "i", 0)?;
        let found =
            json!(sequence::block_tokens(&self.seen(op["seq"].as_str().unwrap_or_default())?, i, self.block));
        self.refused = found.is_null();
        Ok(found)
    }

    pub(super) fn set(&mut self, op: &Value) -> Result<Value, String> {
        let (field, value) = (op["field"].as_str().unwrap_or_default(), &op["value"]);
        let known = self.named(op)?;
        let live = known.id.filter(|_| known.finish.is_none());
        let sequence = live.and_then(|id| self.core.sequence(id));
        match (live.zip(sequence), field) {
            // These fields follow from what was scheduled; only their current value can be set.
            (Some((id, sequence)), "num_cached_tokens" | "is_partial_prefill") => {
                let (claimed, partial) = (sequence.claimed(), sequence.is_prefilling());
                let is_so = value
                    == &json!(if field == "num_cached_tokens" { json!(claimed) } else { json!(partial) });
                if !is_so {
                    return Err(format!("`{field}` of a sequence that runs is what was scheduled"));
                }
                self.land(id);
            }
            (Some((_, sequence)), "num_tokens")
                if sequence.tokens().len() <= number(op, "value", 0)? as usize => {}
            (Some((id, _)), "num_tokens") => {
                let len = number(op, "value", 0)?;
                self.clear_flight(id, true);
                self.refused = !self.core.truncate(id, len);
                if !self.refused {
                    self.named(op)?.truncate(len);
                }
            }
            (None, "num_tokens") => self.named(op)?.truncate(number(op, "value", 0)?),
            (Some((id, _)), _) => {
                let mut set = Ok(());
                let changed = self.core.change_params(id, |params| set = sequence::set(params, field, value));
                set?;
                changed.map_err(|refusal| refusal.to_string())?;
            }
            (None, _) => sequence::set(&mut self.named(op)?.request.params, field, value)?,
        }
        Ok(Value::Null)
    }

    /// Appends tokens that no step sampled. They replace the token that a step in flight would
    /// sample next.
    pub(super) fn append(&mut self, op: &Value) -> Result<Value, String> {
        let new = tokens(&op["tokens"])?;
        let known = self.named(op)?;
        if let Some(id) = known.id.filter(|_| known.finish.is_none()) {
            self.clear_flight(id, false);
            self.refused = !self.core.append(id, &new);
        }
        if !self.refused {
            self.named(op)?.completion.extend(new);
        }
        Ok(Value::Null)
    }

    /// Removes a sequence from the steps in flight that sample it, after they have completed. With
    /// `discard`, the sampled tokens are dropped.
    fn clear_flight(&mut self, id: RequestId, discard: bool) {
        let samples = |step: &Step| step.batch.rows.iter().any(|row| row.request == id.0 && row.samples());
        for step in self.steps.iter_mut().filter(|step| samples(step)) {
            self.core.retire(step);
            self.core.remove_row(step, id, discard);
        }
    }

    pub(super) fn add(&mut self, names: &[Value]) -> Result<Value, String> {
        for name in names {
            let known = self.named(&json!({ "seq": name }))?;
            if known.id.is_some() && known.finish.is_none() {
                return Err(format!("{name} is there already"));
            }
            let (request, arrived) = (known.request.clone(), known.arrived);
            // A sequence that has ended starts over.
            if known.finish.is_some() {
                known.completion.clear();
            }
            let completion = known.completion.clone();
            let added = self.core.add(request, arrived);
            self.refused |= added.is_err();
            if let Ok(id) = added {
                self.core.append(id, &completion);
            }
            let known = self.named(&json!({ "seq": name }))?;
            known.id = added.ok();
            known.finish = added.err().map(Finish::Refused);
            let name = name.as_str().unwrap_or_default();
            self.added.retain(|other| other != name);
            self.added.push(name.to_owned());
            if added.is_err() {
                end(&mut self.ended, name);
            }
        }
        self.core.outbox().clear();
        Ok(Value::Null)
    }

    pub(super) fn abort(&mut self, op: &Value) -> Result<Value, String> {
        let now = self.now;
        let known = self.named(op)?;
        if let Some(id) = known.id.filter(|_| known.finish.is_none()) {
            known.finish = Some(Finish::Aborted);
            end(&mut self.ended, op["seq"].as_str().unwrap_or_default());
            self.core.abort(id, now);
            self.core.outbox().clear();
        } else {
            self.refused = true;
        }
        Ok(Value::Null)
    }

    /// Marks the KV writes of all steps in flight for `id` as completed.
    fn land(&mut self, id: RequestId) {
        for step in self.steps.iter().filter(|step| step.batch.rows.iter().any(|row| row.request == id.0)) {
            self.core.retire(step);
        }
    }

    /// Preempts a sequence and returns it to the queue.
    ///
    /// Without deferred output, the recorded engines have no step in flight between operations. A
    /// token in flight is therefore dropped and the blocks are free at once.
    pub(super) fn preempt(&mut self, id: RequestId) -> bool {
        if self.placeholders || self.core.sequence(id).is_none_or(|one| one.cache_id().is_none()) {
            return self.core.preempt(id);
        }
        for step in &mut self.steps {
            self.core.remove_row(step, id, true);
        }
        let done = self.core.preempt(id);
        self.steps.iter().for_each(|step| self.core.retire(step));
        done
    }

    /// Withholds the sampled token of every sequence that has no entry in the recorded `outputs`.
    pub(super) fn withhold(&mut self, step: &mut Step, outputs: &Value) {
        self.core.retire(step);
        let sampled = step.batch.rows.iter().filter(|row| row.samples());
        let lacking = sampled.map(|row| RequestId(row.request)).filter(|id| {
            let alone = self.core.sequence(*id).is_some_and(|one| one.steps_in_flight() == 1);
            let given = outputs.get(self.name_of(*id)).and_then(Value::as_array);
            alone && given.is_none_or(Vec::is_empty)
        });
        for id in lacking.collect::<Vec<_>>() {
            self.core.remove_row(step, id, true);
        }
    }
}
