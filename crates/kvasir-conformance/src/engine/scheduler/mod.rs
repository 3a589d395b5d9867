//! Replays `atom.scheduler` (ATOM, a vLLM-style scheduler): prefill-first on the paged cache, one
//! operation at a time.
//!
//! 1. An operation (add, schedule, postprocess, preempt, abort, get, set, …) runs on our `Core`.
//! 2. Steps stay in flight between `schedule` and `postprocess`, which supplies scripted outputs
//!    and drafts.
//! 3. `compare_op` compares the return value and the whole state with the recorded ones.
//!
//! The recorded engines store placeholder tokens for tokens in flight and ours do not, so fields
//! derived from placeholders are ignored. An operation recorded as raising must be refused and must
//! change nothing.

pub(crate) mod comparison;
pub(crate) mod fields;
pub(crate) mod views;

use crate::case::{Case, CaseError};
use crate::compare::Mismatch;
use crate::engine::{about, list, number, sequence, switch, tokens};
use crate::names::BlockNames;
use crate::outcome::Outcome;
use kvasir_engine::{
    Chunking, Core, Costs, DeferReason, EventOutput, Finish, Limits, Nanos, Order, PrefillFirst, Proposal,
    Request, RequestId,
};
use kvasir_exec::{OutputRow, Step, StepKind};
use kvasir_kv::{Paged, Span, Token, blocks::BlockConfig};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// `atom.scheduler`: the `prefill-first` policy on a `paged` cache, operation by operation.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    replay(case).map_err(about(case))
}

fn replay(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").and_then(Value::as_array).ok_or("`expected` must be a list")?;
    let ops = list(given, "ops")?;
    // Basis `neither` marks cases where all sources were wrong; only hand-written expectations
    // count.
    let neither = case.body.get("basis").and_then(Value::as_str) == Some("neither");
    let last = if neither { expected.iter().rposition(|one| one != &json!({})) } else { None };
    let mut bench = Harness::new(case, given)?;
    for (i, (op, expected)) in ops.iter().zip(expected).enumerate() {
        if last.is_some_and(|last| i > last) {
            break;
        }
        let at = format!("op {i} {}", op["op"].as_str().unwrap_or("?"));
        if let Some(raises) = expected.get("raises").or(expected.get("error")) {
            if let Err(wrong) = bench.refuses(&at, op, raises) {
                return Ok(Outcome::Failed(wrong));
            }
            continue;
        }
        let got = bench.step(op)?;
        if expected.get("not_reached").is_some() {
            break;
        }
        match bench.compare_op(&at, op, expected, &got) {
            Err(_) if bench.waited => return Ok(Outcome::Skipped { reason: WAITED.to_owned() }),
            Err(wrong) => return Ok(Outcome::Failed(wrong)),
            Ok(()) => {}
        }
    }
    Ok(Outcome::Passed)
}

/// Upper bound on draft tokens per row (`mtp_k`).
const MOST_DRAFTS: u32 = 1 << 10;

/// Skip reason where the case schedules a sequence whose drafts depend on a token still in flight.
const WAITED: &str = "outside the design: a token fed before it was seen, together with drafts; docs/decisions/0010-tokens-in-flight.md";

/// Recorded view of a sequence; outlives its entry in the core.
#[derive(Default)]
struct Known {
    request: Request,
    arrived: Nanos,
    id: Option<RequestId>,
    kind: Option<&'static str>,
    completion: Vec<Token>,
    finish: Option<Finish>,
    table: Vec<u32>,
    /// The case's id, or a running number among the sequences without one.
    number: u64,
}

impl Known {
    /// Truncates prompt and completion to `len` tokens.
    fn truncate(&mut self, len: u32) {
        self.request.prompt.truncate(len as usize);
        self.completion.truncate((len as usize).saturating_sub(self.request.prompt.len()));
    }
}

struct Harness {
    core: Core,
    block: u32,
    drafts: u32,
    /// Whether the recorded token lists contain placeholder tokens.
    placeholders: bool,
    /// Whether the last operation was refused through its return value rather than an error.
    refused: bool,
    /// Whether a sequence had to wait for a token in flight before it could get drafts.
    waited: bool,
    now: Nanos,
    /// When the last step was scheduled, if it ran prompts only: it is taken to have run until now.
    prefill_at: Option<Nanos>,
    known: BTreeMap<String, Known>,
    names: Vec<String>,
    /// Sequence names in order of addition.
    added: Vec<String>,
    /// Ended sequences not yet reported, in order of their end.
    ended: Vec<String>,
    steps: VecDeque<Box<Step>>,
    blocks: BlockNames,
    last: Option<Value>,
    produces: bool,
}

impl Harness {
    fn new(case: &Case, given: &Value) -> Result<Self, String> {
        let (config, defaults) = (&given["config"], &case.meta["defaults"]);
        let of = |key: &str, default: u32| number(config, key, number(defaults, key, default)?);
        let block = of("block_size", 4)?.max(1);
        let sharing = switch(config, "prefix_caching", switch(defaults, "prefix_caching", false));
        let blocks = BlockConfig {
            block_size: block,
            blocks: of("num_blocks", 10)?,
            sharing,
            ..BlockConfig::default()
        };
        let cache = Paged::new(blocks).map_err(|error| error.to_string())?;
        let cap = Some(of("long_prefill_token_threshold", 0)?).filter(|cap| *cap > 0);
        let chunking = if switch(config, "chunked_prefill", switch(defaults, "chunked_prefill", true)) {
            Chunking::On { cap }
        } else {
            Chunking::Off
        };
        let delay = config.get("delay_factor").and_then(Value::as_f64).unwrap_or(0.0);
        let max_model_len = of("max_model_len", 64)?;
        let limits = Limits {
            max_num_seqs: of("max_num_seqs", 4)?,
            max_num_batched_tokens: of("max_num_batched_tokens", 64)?,
            max_model_len,
            max_prompt: Some(max_model_len),
            prefix_cache: sharing,
            state_slots: config.get("state_slots").map(|_| of("state_slots", 0)).transpose()?,
            ..Limits::default()
        };
        let policy = PrefillFirst::new(chunking, delay);
        let mut core = Core::new(limits, Order::Fcfs, Box::new(policy), Box::new(cache));
        let drafts = of("mtp_k", 0)?;
        if drafts > MOST_DRAFTS {
            return Err(format!("`mtp_k` {drafts} is more than {MOST_DRAFTS}"));
        }
        core.set_spec_steps(drafts);
        let mut known = BTreeMap::new();
        let (mut names, mut unnumbered) = (Vec::new(), 0);
        let has = |wanted: &str| list(given, "ops").is_ok_and(|ops| ops.iter().any(|op| op["op"] == wanted));
        // Pipeline parallelism: a sequence is scheduled again only after its output has returned.
        let serial = has("mark_inflight") || of("pipeline_parallel_size", 1)? > 1;
        for (name, of) in given["seqs"].as_object().ok_or("`seqs` must be an object")? {
            let mut params = sequence::params(case, config, of)?;
            params.serial = serial;
            let request = Request { tag: names.len() as u64, prompt: tokens(&of["prompt"])?, params };
            let arrived = (of.get("arrive_time").and_then(Value::as_f64).unwrap_or(0.0) * 1e9) as Nanos;
            let number = of.get("id").and_then(Value::as_u64).unwrap_or(unnumbered);
            unnumbered += u64::from(of.get("id").is_none());
            known.insert(name.clone(), Known { request, arrived, number, ..Known::default() });
            names.push(name.clone());
        }
        let placeholders = drafts > 0 || list(given, "ops")?.iter().any(|op| switch(op, "deferred", false));
        let (steps, blocks) = (VecDeque::new(), BlockNames::default());
        let (now, prefill_at, last, produces, refused) = (0, None, None, false, false);
        Ok(Self {
            core,
            block,
            drafts,
            placeholders,
            refused,
            waited: false,
            now,
            prefill_at,
            known,
            names,
            added: Vec::new(),
            ended: Vec::new(),
            steps,
            blocks,
            last,
            produces,
        })
    }

    /// Runs an operation that must be refused without any state change.
    fn refuses(&mut self, at: &str, op: &Value, raises: &Value) -> Result<(), Box<Mismatch>> {
        let before = self.state();
        let wrong = |got: Value| Box::new(Mismatch { at: at.to_owned(), expected: raises.clone(), got });
        match self.step(op) {
            Ok(got) if !self.refused => Err(wrong(got)),
            _ if self.state() != before => Err(wrong(json!("refused, but something changed"))),
            _ => Ok(()),
        }
    }

    fn step(&mut self, op: &Value) -> Result<Value, String> {
        self.refused = false;
        let returns = match op["op"].as_str().unwrap_or_default() {
            "add" => {
                self.add(&list(op, "seq").map(<[_]>::to_vec).unwrap_or_else(|_| vec![op["seq"].clone()]))?
            }
            "schedule" => self.schedule(),
            "postprocess" => self.postprocess(op)?,
            "clock" => {
                self.now = (op["t"].as_f64().ok_or("`t` must be a time")? * 1e9) as Nanos;
                Value::Null
            }
            "abort" => self.abort(op)?,
            "preempt" => {
                let id = self.named(op)?.id;
                self.refused = !id.is_some_and(|id| self.preempt(id));
                Value::Null
            }
            // The step stays in flight until `postprocess` supplies its outputs.
            "mark_inflight" => {
                self.refused = self.steps.is_empty();
                Value::Null
            }
            "set" => self.set(op)?,
            "append" => self.append(op)?,
            "get" => self.get(op)?,
            "block" => self.get_block(op)?,
            "counts" => {
                let (waiting, running) = (self.waiting().len(), self.core.counts().1);
                json!({ "running": running, "waiting": waiting, "unfinished": running + waiting })
            }
            "is_finished" => json!(self.waiting().is_empty() && self.core.counts().1 == 0),
            "next_batch_info" => self.next_batch_info(),
            "waiting_new_tokens" => json!(self.waiting_new_tokens()),
            "produces_output" => json!(self.produces),
            "spec_stats" => {
                let (accepted, drafts) = self.core.draft_stats().totals();
                json!({ "draft": drafts, "accepted": accepted })
            }
            other => return Err(format!("unknown operation `{other}`")),
        };
        Ok(json!({ "returns": returns, "state": self.state() }))
    }

    fn named(&mut self, op: &Value) -> Result<&mut Known, String> {
        let name = op["seq"].as_str().ok_or("`seq` must be a name")?;
        self.known.get_mut(name).ok_or_else(|| format!("no sequence {name}"))
    }

    fn schedule(&mut self) -> Value {
        let busy = self.core.counts() != (0, 0);
        if let Some(at) = self.prefill_at.take() {
            self.core.set_costs(Costs { prefill_ns: self.now.saturating_sub(at), ..Costs::default() });
        }
        let step = self.core.schedule(self.now);
        self.prefill_at = step.as_ref().filter(|step| step.batch.kind == StepKind::Prefill).map(|_| self.now);
        self.core.take_binds().for_each(drop);
        let waits = |id: RequestId| self.core.reason(id) == Some(DeferReason::Verifying);
        self.waited |= self.core.running().any(|one| waits(one.id()));
        self.drain_events();
        // The recorded engine reports ended sequences in queue order.
        let added = &self.added;
        self.ended.sort_by_key(|name| added.iter().position(|other| other == name));
        let rejected = self.drain_ended();
        let batch = match &step {
            Some(step) => self.describe(step),
            None if busy => json!({
                "kind": "decode", "seqs": [], "num_scheduled": [], "tokens": [], "context_lens": [],
                "block_tables": [], "last_block_tokens": [], "total_tokens": 0,
            }),
            None => Value::Null,
        };
        self.produces = step.as_ref().is_some_and(|step| {
            step.batch.kind == StepKind::Decode || step.batch.rows.iter().any(|row| row.samples())
        });
        self.steps.extend(step);
        self.last = Some(batch.clone());
        if rejected.is_empty() { batch } else { json!({ "batch": batch, "rejected": rejected }) }
    }

    /// Drains the ended sequences not reported yet, with their finish reasons.
    fn drain_ended(&mut self) -> Vec<Value> {
        let known = &self.known;
        let ended = self.ended.drain(..).filter_map(|name| {
            let finish = known.get(&name)?.finish.map(finish_name);
            Some(json!([name, finish]))
        });
        ended.collect()
    }

    fn name_of(&self, id: RequestId) -> String {
        let found = self.known.iter().find(|(_, known)| known.id == Some(id));
        found.map(|(name, _)| name.clone()).unwrap_or_default()
    }

    fn postprocess(&mut self, op: &Value) -> Result<Value, String> {
        let deferred = switch(op, "deferred", false);
        // Retire steps from which every row has been removed.
        while let Some(step) = self.steps.pop_front_if(|step| step.batch.rows.is_empty()) {
            self.core.postprocess(&step, &Ok(()), self.now);
            self.core.recycle(step);
        }
        let due = if deferred { self.steps.len() > 1 } else { !self.steps.is_empty() };
        let mut stream = Vec::new();
        if let Some(mut step) = due.then(|| self.steps.pop_front()).flatten() {
            if !deferred {
                self.withhold(&mut step, &op["outputs"]);
            }
            self.fill_output(&mut step, &op["outputs"])?;
            self.core.postprocess(&step, &Ok(()), self.now);
            stream = self.drain_events();
            self.core.recycle(step);
        }
        // Deferred output arrives one step late, after the newest step has completed too.
        if deferred && let Some(newest) = self.steps.front() {
            self.core.retire(newest);
        }
        for (name, drafts) in op["drafts"].as_object().into_iter().flatten() {
            let id = self.known.get(name).and_then(|known| known.id);
            if let Some(id) = id {
                let drafts = Proposal { tokens: tokens(drafts)?, ..Proposal::default() };
                self.core.set_drafts(id, &drafts);
            }
        }
        let finished = self.drain_ended();
        Ok(json!({ "finished": finished, "stream": stream }))
    }

    /// Fills a step's output from the case. With drafts: the accepted ones, then the next token.
    fn fill_output(&self, step: &mut Step, outputs: &Value) -> Result<(), String> {
        for row in &step.batch.rows {
            let given = match outputs.get(self.name_of(RequestId(row.request))) {
                Some(given) if row.samples() => tokens(given)?,
                _ => Vec::new(),
            };
            let count = row.drafts.count as usize;
            let width = (row.tokens.len - row.sample_from) as usize;
            let start = step.output.tokens.len();
            // Stop rule tables list several tokens without drafts; treat the extra ones as accepted
            // drafts.
            for (i, token) in given.iter().take(count).enumerate().take(given.len().saturating_sub(1)) {
                step.batch.tokens[row.tokens.range().end - count + i] = *token;
            }
            step.output.tokens.extend(&given);
            if given.len() < width && !given.is_empty() {
                step.output.tokens.extend(std::iter::repeat_n(Token::MAX - 1, width - given.len()));
            }
            step.output.rows.push(OutputRow { tokens: Span::new(start, step.output.tokens.len() - start) });
        }
        Ok(())
    }

    /// Applies the core's events and returns them in the recorded format.
    fn drain_events(&mut self) -> Vec<Value> {
        let mut stream = Vec::new();
        let names = &self.names;
        for EventOutput { event, tokens: new, .. } in self.core.outbox().iter() {
            let Some(name) = names.get(event.tag as usize) else { continue };
            let Some(known) = self.known.get_mut(name) else { continue };
            known.completion.extend(new);
            if let Some(finish) = event.finish {
                known.finish = Some(finish);
                end(&mut self.ended, name);
            }
            let reason = event.finish.map(finish_name);
            stream.push(
                json!({ "seq": name, "tokens": new, "finished": event.finish.is_some(), "reason": reason }),
            );
        }
        self.core.outbox().clear();
        stream
    }
}

/// Appends `name` to the ended sequences.
fn end(ended: &mut Vec<String>, name: &str) {
    ended.retain(|other| other != name);
    ended.push(name.to_owned());
}

fn finish_name(finish: Finish) -> String {
    match finish {
        Finish::Refused(_) | Finish::Capacity => "unschedulable".into(),
        Finish::ModelLength => "max_tokens".into(),
        other => other.to_string(),
    }
}
