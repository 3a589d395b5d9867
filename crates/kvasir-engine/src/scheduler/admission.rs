//! Admission of a waiting request: the test whether it may run, and the transition from waiting to
//! running.
//!
//! `SchedulerState::try_admit` tests first everything that has nothing to do with KV slots, then
//! the slots (`KvManager::grant`). A refused request stays in the queue, and nothing has changed.

use crate::request::prefix_match::FirstAdmission;
use crate::request::sequence::Sequence;
use crate::request::stop::FastStop;
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::admission::{AdmissionTerms, Grant};
use crate::scheduler::record::Admission;
use crate::scheduler::state::SchedulerState;
use crate::scheduler::window_admission::{StepSize, window_shortage};
use kvasir_exec::SequenceSpec;
use kvasir_kv::Hit;

/// Most output tokens for which host memory is reserved at admission.
const MOST_RESERVED_OUTPUTS: usize = 1 << 16;

impl SchedulerState {
    /// Admission test: the grant that `admit` carries out, or why the request is deferred. Admits
    /// and evicts nothing.
    pub(crate) fn admissible(&mut self, entry: u32, terms: AdmissionTerms) -> Result<Grant, DeferReason> {
        match self.admission_blocker(entry) {
            Some(reason) => Err(reason),
            None => {
                let (fork, activity) = (self.fork_of(entry), self.activity());
                self.kv.grant(&mut self.requests[entry], fork, terms, activity)
            }
        }
    }

    /// The reason why `entry` cannot be admitted regardless of KV slots, if there is one.
    fn admission_blocker(&self, entry: u32) -> Option<DeferReason> {
        let requests = &self.requests;
        let sequence = &requests[entry];
        if sequence.in_flight > 0 || sequence.steps_in_flight > 0 {
            return Some(DeferReason::TokenInFlight);
        }
        if self.coalescing && !requests.running().is_empty() {
            return Some(DeferReason::Coalesce);
        }
        if requests.running().len() >= self.limits.max_num_seqs as usize {
            return Some(DeferReason::SequenceLimit);
        }
        if requests.waits_for_leader(entry) {
            return Some(DeferReason::Sibling);
        }
        let states = requests.live_states();
        if states.is_needed_by(sequence) && !states.has_free() {
            return Some(DeferReason::NoStateSlot);
        }
        let windows = &self.kv.cache().shape().windows;
        if !windows.is_empty() && !requests.running().is_empty() {
            let step = StepSize { rows: self.limits.max_num_batched_tokens, block: self.kv.budget().block() };
            let running = requests.running().iter().map(|entry| &requests[*entry]);
            let shortage = window_shortage(windows, step, running.chain([sequence]));
            if shortage.is_some() {
                return shortage;
            }
        }
        (requests.free_rows() == 0).then_some(DeferReason::NoPoolRow)
    }

    /// Admits a waiting request: attaches its cache hit, reserves slots up to `terms.reserve_to`,
    /// and binds an executor row. Returns the hit that was attached. On error the request stays in
    /// the queue, and nothing has changed.
    pub(crate) fn try_admit(
        &mut self,
        entry: u32,
        terms: AdmissionTerms,
        now: Nanos,
    ) -> Result<Hit, DeferReason> {
        let grant = self.admissible(entry, terms)?;
        let fork = self.fork_of(entry);
        let hit = self.kv.admit(&mut self.requests[entry], fork, grant)?;
        let row = self.requests.start(entry);
        let max_positions = self.kv.retained().max_positions();
        let sequence = &mut self.requests[entry];
        sequence.cold.leader = None;
        if sequence.skipped > 0 {
            // Its positions reach the model's limit before its tokens do.
            let left = max_positions.saturating_sub(sequence.prompt_len + sequence.skipped);
            sequence.cold.context_left = sequence.cold.context_left.min(left);
            sequence.stops = FastStop::of(&sequence.cold.params, sequence.cold.context_left);
        }
        let prefix = self.kv.prefix_match(sequence, hit);
        if sequence.cold.timings.admitted.is_none() {
            sequence.cold.timings.admitted = Some(now);
            sequence.cold.first_hit = hit.tokens;
            sequence.cold.prefix = prefix;
            self.outbox.admitted.push(FirstAdmission { tag: sequence.tag, cached: hit.tokens, prefix });
        }
        let more = sequence.longest().saturating_sub(sequence.len()) as usize;
        sequence.tokens.reserve(more.min(MOST_RESERVED_OUTPUTS));
        self.binds.push((row, spec(sequence, self.limits.max_model_len)));
        self.record.admitted.push(Admission { request: sequence.id, hit: hit.tokens, prefix });
        Ok(hit)
    }
}

/// What the executor must know of a sequence to sample its tokens. `context` is the longest context.
fn spec(sequence: &Sequence, context: u32) -> SequenceSpec {
    let params = &sequence.cold.params;
    SequenceSpec {
        sampling: sequence.sampling,
        chain: params.chain.clone(),
        mirostat: sequence.cold.mirostat.clone(),
        bias: params.bias.clone(),
        prompt: sequence.prompt().to_vec(),
        output: sequence.outputs().to_vec(),
        suppressed_until_min: match params.min_tokens {
            0 => Vec::new(),
            _ => params.eos.iter().chain(&params.stop_ids).copied().collect(),
        },
        min_tokens: params.min_tokens,
        constraint: params.constraint.clone(),
        // The length before its first shift: a request that shifts would have filled the context.
        final_len: if sequence.dropped == 0 { sequence.longest() } else { context },
        second_text_start: params.second_text_start,
        skipped: sequence.skipped,
        kept: sequence.intact(),
        dropped: sequence.dropped,
    }
}
