//! Builds a step from the rows that the policy scheduled: claims KV slots, plans the reads and
//! writes, and fills the batch.
//!
//! 1. `claim` takes slots for all rows of the step or for none. If the cache is full, the last row
//!    is deferred and the claim is retried. Draft trees are proposed to the cache before the claim
//!    and withdrawn if it fails.
//! 2. `Cache::plan` writes the plan.
//! 3. `fill` writes batch rows. A row that decodes one token takes the fast path `decode_row`,
//!    which reuses the row that stood in the same memory one step earlier. All others (prefill
//!    chunks, drafts, recomputation) take `any_row`.
//!
//! Must not know the policy or the executor.

use crate::core::Core;
use crate::request::finish::{Fault, Finish};
use crate::request::sequence::{Moves, Sequence};
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::state::ScheduledRow;
use kvasir_exec::{Batch, BatchRow, Drafts, IN_FLIGHT, Phase, Step, StepKind};
use kvasir_kv::blocks::BlockSize;
use kvasir_kv::{CacheError, ClaimRow, Span, StepId, Token};

impl Core {
    /// Claims KV slots for the scheduled rows and plans the step. If the cache is full, the last
    /// row is deferred and the claim is retried. False if no row is left.
    pub(crate) fn claim(&mut self, id: StepId, step: &mut Step) -> bool {
        while !self.world.rows.is_empty() {
            self.list_claims();
            let claimed =
                self.propose_trees().and_then(|()| self.world.cache.claim(id, &self.world.claim_rows));
            match claimed {
                Ok(()) => match self.world.cache.plan(id, &mut step.plan) {
                    Ok(()) => return true,
                    Err(_) => {
                        let cancelled = self.world.cache.cancel(id);
                        debug_assert!(cancelled.is_ok(), "{cancelled:?}");
                        self.drop_trees();
                        self.fail_rows();
                    }
                },
                Err(CacheError::Full { needed, available }) => {
                    self.drop_trees();
                    self.drop_last_row(DeferReason::NoRoom { needed, available });
                }
                Err(_) => {
                    self.drop_trees();
                    self.fail_rows();
                }
            }
        }
        false
    }

    /// Fills `claim_rows` from the scheduled rows; drafts count as tokens to write.
    fn list_claims(&mut self) {
        let world = &mut self.world;
        world.claim_rows.clear();
        world.claim_rows.extend(world.rows.iter().map(|scheduled| ClaimRow {
            seq: scheduled.seq,
            redirected: scheduled.redirected,
            tokens: scheduled.tokens + scheduled.drafts,
        }));
    }

    fn is_tree(&self, scheduled: &ScheduledRow) -> bool {
        scheduled.drafts > 0 && !self.world.slab[scheduled.entry].cold.parents.is_empty()
    }

    /// Announces the draft trees of this step to the cache, before the claim.
    fn propose_trees(&mut self) -> Result<(), CacheError> {
        for i in 0..self.world.rows.len() {
            let scheduled = self.world.rows[i];
            if !self.is_tree(&scheduled) {
                continue;
            }
            let sequence = &self.world.slab[scheduled.entry];
            self.frontier.clear();
            self.frontier.push(-1);
            self.frontier.extend_from_slice(&sequence.cold.parents);
            if let Some(seq) = sequence.cache {
                self.world.cache.tree()?.propose(seq, &self.frontier)?;
            }
        }
        Ok(())
    }

    /// Withdraws the draft trees proposed for a claim that failed.
    fn drop_trees(&mut self) {
        for i in 0..self.world.rows.len() {
            let scheduled = self.world.rows[i];
            if self.is_tree(&scheduled)
                && let Some(seq) = self.world.slab[scheduled.entry].cache
                && let Ok(tree) = self.world.cache.tree()
            {
                let withdrawn = tree.propose(seq, &[]);
                debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
            }
        }
    }

    /// Unschedules the last row, restores its reservation and defers it.
    fn drop_last_row(&mut self, reason: DeferReason) {
        let world = &mut self.world;
        let Some(scheduled) = world.rows.pop() else { return };
        world.budget.roll_back(&mut world.slab[scheduled.entry], scheduled.commitment);
        world.scheduled_tokens -= scheduled.tokens + scheduled.drafts + scheduled.redirected;
        world.defer(scheduled.entry, reason);
    }

    /// Fails all scheduled rows after an unexpected cache error. This is a bug in this crate; the
    /// other requests go on.
    fn fail_rows(&mut self) {
        let world = &mut self.world;
        let now = world.record.at;
        while let Some(scheduled) = world.rows.pop() {
            world.budget.roll_back(&mut world.slab[scheduled.entry], scheduled.commitment);
            let first = world.slab[scheduled.entry].outputs_len();
            world.finish(scheduled.entry, Finish::Failed(Fault::Internal), None, first, now);
        }
        world.sweep();
    }

    /// Fills the batch of a claimed step, advances the sequences' counters and counts the step as
    /// in flight.
    pub(crate) fn fill(&mut self, step: &mut Step, spec_steps: u32) {
        let world = &mut self.world;
        let batch = &mut step.batch;
        // Old rows are reused: in steady decode only their lengths change.
        let mut rows = std::mem::take(&mut batch.rows);
        batch.reset(step.plan.step);
        batch.spec_steps = spec_steps;
        step.output.reset();
        let mut decodes = 0;
        for (i, scheduled) in world.rows.iter().enumerate() {
            let sequence = &mut world.slab[scheduled.entry];
            if rows.len() == i {
                rows.push(BatchRow::default());
            }
            let row = &mut rows[i];
            match scheduled.is_one_token() && sequence.to_feed() == 1 && !sequence.prefilling {
                true => decode_row(sequence, scheduled, world.budget.block(), &mut batch.tokens, row),
                false => *row = any_row(sequence, scheduled, world.budget.block(), batch),
            }
            let samples = row.samples();
            decodes += usize::from(!sequence.prefilling);
            sequence.claimed += scheduled.tokens;
            sequence.in_flight += u32::from(samples);
            sequence.steps_in_flight += 1;
            if sequence.prefilling && samples {
                sequence.prefilling = false;
                world.prefilling -= 1;
            }
            sequence.verifying = scheduled.drafts > 0;
            if sequence.tokens.is_due() {
                world.due.push(scheduled.entry);
            }
            if scheduled.left_pad_blocks > 0
                && let Some(row) = step.plan.rows.get_mut(i)
            {
                row.left_pad_blocks = scheduled.left_pad_blocks;
            }
        }
        rows.truncate(world.rows.len());
        batch.rows = rows;
        batch.kind = match decodes {
            0 => StepKind::Prefill,
            _ if decodes == world.rows.len() => StepKind::Decode,
            _ => StepKind::Mixed,
        };
        world.in_flight += 1;
        if std::mem::take(&mut world.moves_due) {
            for entry in &world.running {
                let moves = &mut world.slab[*entry].moves;
                *moves = if *moves == Moves::Due { Moves::In(batch.step) } else { *moves };
            }
        }
    }
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
    let is_same = row.seq == scheduled.seq && row.request == sequence.id.0 && row.is_one_decode();
    if !is_same || sequence.amended {
        *row = BatchRow {
            request: sequence.id.0,
            seq: scheduled.seq,
            phase: Phase::Decode,
            pool_row: sequence.pool_row.unwrap_or_default(),
            sampling: sequence.sampling,
            ..BatchRow::default()
        };
    }
    debug_assert_eq!((Some(row.pool_row), row.sampling), (sequence.pool_row, sequence.sampling));
    row.tokens = Span::new(tokens.len(), 1);
    row.cached = sequence.claimed;
    row.context_len = sequence.claimed + 1;
    row.last_block_tokens = size.within(sequence.claimed) + 1;
    tokens.push(if sequence.in_flight == 0 { sequence.tokens.newest() } else { IN_FLIGHT });
}

/// General path of a batch row: prefill chunks, drafts, recomputed tokens.
#[inline(never)]
fn any_row(sequence: &Sequence, scheduled: &ScheduledRow, size: BlockSize, batch: &mut Batch) -> BatchRow {
    let start = batch.tokens.len();
    push_known(sequence, scheduled, &mut batch.tokens);
    let mut drafts = Drafts { count: scheduled.drafts, tree: None };
    if scheduled.drafts > 0 {
        batch.tokens.extend_from_slice(&sequence.drafts[..scheduled.drafts as usize]);
        if !sequence.cold.parents.is_empty() {
            drafts.tree = Some(Span::new(batch.parents.len(), sequence.cold.parents.len()));
            batch.parents.extend_from_slice(&sequence.cold.parents);
        }
    }
    let tokens = Span::new(start, batch.tokens.len() - start);
    let samples = sequence.claimed + scheduled.tokens == sequence.len();
    let context_len = sequence.claimed + scheduled.tokens + scheduled.drafts;
    BatchRow {
        request: sequence.id.0,
        seq: scheduled.seq,
        phase: if sequence.prefilling { Phase::Prefill } else { Phase::Decode },
        tokens,
        cached: sequence.claimed,
        context_len,
        last_block_tokens: size.within(context_len - 1) + 1,
        sample_from: if samples { scheduled.redirected + scheduled.tokens - 1 } else { tokens.len },
        scored: to_score(sequence, scheduled),
        pool_row: sequence.pool_row.unwrap_or_default(),
        drafts,
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
    let first = scheduled.redirected + from - sequence.claimed;
    Span { start: first, len: to.saturating_sub(from) }
}

/// Appends the row's input tokens; a token that is still on the device is `IN_FLIGHT`.
fn push_known(sequence: &Sequence, scheduled: &ScheduledRow, tokens: &mut Vec<Token>) {
    let known = sequence.tokens.len();
    let to = sequence.claimed + scheduled.tokens;
    let from = sequence.claimed - scheduled.redirected;
    sequence.tokens.copy(from..to, tokens);
    tokens.extend(std::iter::repeat_n(IN_FLIGHT, (to - to.min(known).max(from)) as usize));
}
