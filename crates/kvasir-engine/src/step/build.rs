//! Builds a step from the rows that the policy scheduled: claims KV slots, plans the reads and
//! writes, and fills the batch.
//!
//! 1. `claim` takes slots for all rows of the step or for none. If the cache is full, the last row
//!    is deferred and the claim is retried. If a window group is full, retained sessions are
//!    evicted first. Draft trees are proposed to the cache before the claim and withdrawn if it
//!    fails.
//! 2. `Cache::plan` writes the plan. For encoders, all rows then get `Mask::None`.
//! 3. `fill` writes batch rows. A row that decodes one token takes the fast path `decode_row`,
//!    which reuses the row that stood in the same memory one step earlier. All others (prefill
//!    chunks, drafts, recomputation) take `any_row`.
//!
//! Must not know the policy or the executor.

use crate::request::finish::{Fault, Finish};
use crate::request::sequence::Sequence;
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::schedule::ScheduledRow;
use crate::scheduler::state::SchedulerState;
use crate::speculation::control::SpeculationControl;
use kvasir_exec::{Batch, BatchRow, Drafts, IN_FLIGHT, RowKind, Step, StepKind};
use kvasir_kv::blocks::BlockSize;
use kvasir_kv::{CacheError, ClaimRow, GroupId, Mask, SeqId, Span, StepId, Token};

/// Builds steps. It owns the memory of the steps that are not in use, and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct StepBuilder {
    /// The newest step.
    newest: StepId,
    /// Free list of steps. They stay boxed, so that handing one over moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Step>>,
    /// Most draft tokens of a decode row (speculative decoding).
    spec_steps: u32,
    /// Upper bound on block-table entries of all running requests, for memory reservation.
    table_blocks: usize,
    claims: Vec<ClaimRow>,
    frontier: Vec<i32>,
}

impl StepBuilder {
    /// Sets the most draft tokens of a decode row.
    pub(crate) fn set_spec_steps(&mut self, tokens: u32) {
        self.spec_steps = tokens;
    }

    /// An unused step.
    pub(crate) fn take(&mut self) -> Box<Step> {
        self.spare.pop().unwrap_or_default()
    }

    /// Allocates the next step id for a step that this builder does not build.
    pub(crate) fn allocate_id(&mut self) -> StepId {
        self.newest = StepId(self.newest.0 + 1);
        self.newest
    }

    /// Takes a step back for reuse of its memory.
    pub(crate) fn recycle(&mut self, step: Box<Step>) {
        self.spare.push(step);
    }

    /// Claims KV slots for the scheduled rows and plans the step. If the cache is full, the last
    /// row is deferred and the claim is retried. False if no row is left.
    pub(crate) fn claim(&mut self, state: &mut SchedulerState, step: &mut Step, now: Nanos) -> bool {
        self.expect_tables(state);
        let id = StepId(self.newest.0 + 1);
        while !state.schedule.rows().is_empty() {
            self.list_claims(state);
            let proposed = self.propose_trees(state);
            match proposed.and_then(|()| state.kv.cache_mut().claim(id, &self.claims)) {
                Ok(()) => match state.kv.cache_mut().plan(id, &mut step.plan) {
                    Ok(()) => {
                        if state.limits.bidirectional {
                            step.plan.rows.iter_mut().for_each(|row| row.mask = Mask::None);
                        }
                        return true;
                    }
                    Err(_) => {
                        let canceled = state.kv.cache_mut().cancel(id);
                        debug_assert!(canceled.is_ok(), "{canceled:?}");
                        withdraw_trees(state);
                        fail_rows(state, now);
                    }
                },
                Err(CacheError::Full { group, needed, available }) => {
                    withdraw_trees(state);
                    // Admission counts neither windows of retained sessions nor growth after it.
                    let missing = needed.saturating_sub(available).max(1);
                    if group != GroupId::FULL && state.kv.evict_in(group, missing) {
                        continue;
                    }
                    let is_state_group = state.kv.cache().shape().groups.states() == Some(group);
                    let reason = if is_state_group {
                        DeferReason::NoStateSlot
                    } else {
                        DeferReason::NoSlots { needed, available }
                    };
                    drop_last_row(state, reason);
                }
                Err(_) => {
                    withdraw_trees(state);
                    fail_rows(state, now);
                }
            }
        }
        false
    }

    /// Reserves host memory for plans with the longest block tables of the running requests, so
    /// that steady decode steps do not allocate.
    fn expect_tables(&mut self, state: &mut SchedulerState) {
        let running = state.requests.running();
        if !state.record.admitted.is_empty() {
            let block = state.kv.block();
            let blocks = |entry: &u32| state.requests[*entry].longest().div_ceil(block) as usize;
            let most = 2 * (state.kv.cache().shape().capacity / block) as usize;
            self.table_blocks = running.iter().map(blocks).sum::<usize>().min(most);
        }
        let rows = running.len();
        state.kv.cache_mut().reserve_plan_memory(self.table_blocks, rows);
    }

    /// Lists the claims of the scheduled rows; drafts count as tokens to write.
    fn list_claims(&mut self, state: &SchedulerState) {
        self.claims.clear();
        self.claims.extend(state.schedule.rows().iter().map(|row| ClaimRow {
            seq: row.seq,
            redirected: row.rectangle.redirected,
            tokens: row.tokens + row.drafts,
            drafts: if tree_of(row, &state.requests[row.entry]).is_none() { row.drafts } else { 0 },
        }));
    }

    /// Announces the draft trees of this step to the cache, before the claim.
    fn propose_trees(&mut self, state: &mut SchedulerState) -> Result<(), CacheError> {
        let SchedulerState { requests, kv, schedule, .. } = state;
        for row in schedule.rows() {
            let sequence = &requests[row.entry];
            if let Some(seq) = tree_of(row, sequence) {
                self.frontier.clear();
                self.frontier.push(-1);
                self.frontier.extend_from_slice(&sequence.cold.drafts.parents);
                kv.cache_mut().tree()?.propose(seq, &self.frontier)?;
            }
        }
        Ok(())
    }

    /// Fills the batch of a claimed step, advances the sequences' counters and counts the step as
    /// in flight. `speculation` plans the executor's draft model, if any.
    pub(crate) fn fill(
        &mut self,
        state: &mut SchedulerState,
        step: &mut Step,
        speculation: &SpeculationControl,
    ) {
        self.newest = step.plan.step;
        let SchedulerState { requests, kv, schedule, .. } = state;
        let (scheduled, block) = (schedule.rows(), kv.budget().block());
        let batch = &mut step.batch;
        // Old rows are reused: in steady decode only their lengths change.
        let mut rows = std::mem::take(&mut batch.rows);
        batch.reset(step.plan.step);
        batch.spec_steps = self.spec_steps;
        step.output.reset();
        let mut decodes = 0;
        for (i, row) in scheduled.iter().enumerate() {
            let sequence = &mut requests[row.entry];
            if rows.len() == i {
                rows.push(BatchRow::default());
            }
            let filled = &mut rows[i];
            match row.kind {
                RowKind::Decode => decode_row(sequence, row, block, &mut batch.tokens, filled),
                // No policy schedules a dummy row.
                RowKind::Prefill | RowKind::MultiDecode | RowKind::Dummy => {
                    *filled = any_row(sequence, row, block, batch);
                }
            }
            let samples = filled.samples();
            speculation.plan_draft_row(sequence, filled);
            let (prefilled, spills) = (row.kind.is_prefill() && samples, sequence.tokens.is_due());
            decodes += usize::from(!row.kind.is_prefill());
            sequence.claimed += row.tokens;
            sequence.in_flight += u32::from(samples);
            sequence.steps_in_flight += 1;
            sequence.verifying = row.drafts > 0;
            if prefilled {
                requests.set_prefilling(row.entry, false);
            }
            if spills {
                requests.note_spill(row.entry);
            }
            if row.rectangle.left_pad_blocks > 0
                && let Some(planned) = step.plan.rows.get_mut(i)
            {
                planned.left_pad_blocks = row.rectangle.left_pad_blocks;
            }
        }
        rows.truncate(scheduled.len());
        batch.rows = rows;
        batch.kind = match decodes {
            0 => StepKind::Prefill,
            _ if decodes == scheduled.len() => StepKind::Decode,
            _ => StepKind::Mixed,
        };
        requests.send_copies(batch.step);
        state.steps_in_flight += 1;
    }
}

/// The cache sequence of a row with a draft tree.
fn tree_of(row: &ScheduledRow, sequence: &Sequence) -> Option<SeqId> {
    sequence.cache.filter(|_| row.drafts > 0 && !sequence.cold.drafts.parents.is_empty())
}

/// Withdraws the draft trees proposed for a claim that failed.
fn withdraw_trees(state: &mut SchedulerState) {
    let SchedulerState { requests, kv, schedule, .. } = state;
    let trees = schedule.rows().iter().filter_map(|row| tree_of(row, &requests[row.entry]));
    trees.for_each(|seq| kv.withdraw_tree(seq));
}

/// Drops the last row from the step, rolls its slots back and defers it.
fn drop_last_row(state: &mut SchedulerState, reason: DeferReason) {
    if let Some(row) = state.schedule.pop() {
        state.kv.budget_mut().roll_back(&mut state.requests[row.entry], row.commitment);
        state.defer(row.entry, reason);
    }
}

/// Fails all scheduled rows after an unexpected cache error. This is a bug in this crate; the other
/// requests go on.
fn fail_rows(state: &mut SchedulerState, now: Nanos) {
    while let Some(row) = state.schedule.pop() {
        state.kv.budget_mut().roll_back(&mut state.requests[row.entry], row.commitment);
        state.finish_now(row.entry, Finish::Failed(Fault::Internal), now);
    }
    state.requests.sweep();
}

/// Decode fast path: a row that feeds the newest token of a decoding sequence.
///
/// `row` holds what stood in its place when this step memory was last filled. If it was the same
/// sequence, its cold fields (sampling parameters, executor row) are still valid, because they
/// change only when the request is amended.
#[inline]
fn decode_row(
    sequence: &Sequence,
    scheduled: &ScheduledRow,
    size: BlockSize,
    tokens: &mut Vec<Token>,
    row: &mut BatchRow,
) {
    let is_same = row.seq == scheduled.seq && row.request == sequence.id.0 && row.kind == RowKind::Decode;
    if !is_same || sequence.amended {
        *row = BatchRow {
            request: sequence.id.0,
            seq: scheduled.seq,
            kind: RowKind::Decode,
            pool_row: sequence.pool_row.unwrap_or_default(),
            sampling: sequence.sampling,
            ..BatchRow::default()
        };
    }
    debug_assert_eq!((Some(row.pool_row), row.sampling), (sequence.pool_row, sequence.sampling));
    row.tokens = Span::new(tokens.len(), 1);
    row.cached = sequence.claimed;
    row.context_len = sequence.claimed + 1;
    row.last_block_tokens = size.within(sequence.next_position()) + 1;
    tokens.push(if sequence.in_flight == 0 { sequence.tokens.newest() } else { IN_FLIGHT });
}

/// General path of a batch row: prefill chunks, drafts, recomputed tokens.
#[inline(never)]
fn any_row(sequence: &Sequence, scheduled: &ScheduledRow, size: BlockSize, batch: &mut Batch) -> BatchRow {
    let start = batch.tokens.len();
    push_known(sequence, scheduled, &mut batch.tokens);
    let mut drafts = Drafts { count: scheduled.drafts, tree: None };
    if scheduled.drafts > 0 {
        let proposed = &sequence.cold.drafts;
        batch.tokens.extend_from_slice(&proposed.tokens[..scheduled.drafts as usize]);
        if !proposed.parents.is_empty() {
            drafts.tree = Some(Span::new(batch.parents.len(), proposed.parents.len()));
            batch.parents.extend_from_slice(&proposed.parents);
        }
    }
    let tokens = Span::new(start, batch.tokens.len() - start);
    let samples = sequence.claimed + scheduled.tokens == sequence.len();
    let context_len = sequence.claimed + scheduled.tokens + scheduled.drafts;
    BatchRow {
        request: sequence.id.0,
        seq: scheduled.seq,
        kind: scheduled.kind,
        tokens,
        cached: sequence.claimed,
        context_len,
        last_block_tokens: size.within(context_len + sequence.skipped - 1) + 1,
        sample_from: if samples { scheduled.rectangle.redirected + scheduled.tokens - 1 } else { tokens.len },
        scored: to_score(sequence, scheduled),
        pool_row: sequence.pool_row.unwrap_or_default(),
        drafts,
        feeds_draft: false,
        draft_depth: 0,
        sampling: sequence.sampling,
    }
}

/// The row's tokens whose successor is a prompt token without a log-probability yet. Chunks run in
/// order, so claimed tokens are scored or about to be.
fn to_score(sequence: &Sequence, scheduled: &ScheduledRow) -> Span {
    if !sequence.wants_scores() {
        return Span::default();
    }
    let from = sequence.claimed.max(sequence.cold.scores.len() as u32);
    let to = (sequence.claimed + scheduled.tokens).min(sequence.prompt_len - 1);
    let first = scheduled.rectangle.redirected + from - sequence.claimed;
    Span { start: first, len: to.saturating_sub(from) }
}

/// Appends the row's input tokens; a token that is still on the device is `IN_FLIGHT`.
fn push_known(sequence: &Sequence, scheduled: &ScheduledRow, tokens: &mut Vec<Token>) {
    let known = sequence.tokens.len();
    let to = sequence.claimed + scheduled.tokens;
    let from = sequence.claimed - scheduled.rectangle.redirected;
    sequence.tokens.copy(from..to, tokens);
    tokens.extend(std::iter::repeat_n(IN_FLIGHT, (to - to.min(known).max(from)) as usize));
}
