//! Consistency checker for the scheduler: cross-checks sequences, queue, running list, executor
//! rows, reserved slots, live states and retained sessions against the KV cache.
//!
//! Cost: O(live sequences × running sequences). The tests call it after every step; `Engine::serve`
//! calls it when it goes idle.

use crate::request::sequence::{Sequence, Status};
use crate::scheduler::state::SchedulerState;

fn rule(holds: bool, violation: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation()) }
}

impl SchedulerState {
    /// Checks all invariants of the scheduler state and its cache; returns the first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let (requests, cache) = (&self.requests, self.kv.cache());
        cache.check()?;
        requests.iter().try_for_each(|(entry, sequence)| self.check_request(entry, sequence))?;
        for (session, retained) in self.kv.retained().iter() {
            let held = retained.tokens.len();
            let len =
                cache.claimed_len(retained.seq).map_err(|error| format!("session {}: {error}", session.0))?;
            let next = cache
                .next_position(retained.seq)
                .map_err(|error| format!("session {}: {error}", session.0))?;
            let is_whole = next == retained.gaps.position(len) && next % self.kv.block() == 0;
            rule(len as usize == held && is_whole && len > 0, || {
                format!("session {}: {held} tokens retained, {len} to {next} in the cache", session.0)
            })?;
        }
        let count = |counts: fn(&Sequence) -> bool| requests.iter().filter(|(_, s)| counts(s)).count();
        let waiting = count(|sequence| sequence.status == Status::Waiting);
        let running = count(|sequence| sequence.status == Status::Running);
        let prefilling = count(|sequence| sequence.prefilling);
        let rows = count(|sequence| sequence.pool_row.is_some());
        let has_state = |sequence: &Sequence| {
            sequence.pool_row.is_some() && requests.live_states().is_needed_by(sequence)
        };
        let states = requests.iter().filter(|(_, sequence)| has_state(sequence)).count();
        let live = cache.shape().groups.states().map_or(0, |group| cache.usage_of(group).held);
        let reserved: u32 = requests.iter().map(|(_, sequence)| sequence.reserved).sum();
        let (granted, usage) = (self.kv.budget().reserved(), cache.usage());
        for (holds, violation) in [
            (waiting == requests.waiting().len(), "the queue and the waiting requests differ"),
            (running == requests.running().len(), "the running list and the running requests differ"),
            (reserved == granted, "the sum of reservations is wrong"),
            (prefilling == requests.prefilling() as usize, "the number of requests in prefill is wrong"),
            (states == requests.live_states().taken() as usize, "the number of live states taken is wrong"),
            (live as usize <= running, "more sequences than the running ones have a live state"),
            (
                rows + requests.free_rows() == self.limits.max_num_seqs as usize,
                "executor rows are lost or bound twice",
            ),
            (granted <= usage.available() + usage.leased, "more slots are reserved than there are"),
        ] {
            rule(holds, || violation.to_owned())?;
        }
        Ok(())
    }

    fn check_request(&self, entry: u32, sequence: &Sequence) -> Result<(), String> {
        let (name, runs) = (sequence.id.0, sequence.status == Status::Running);
        let is_named = sequence.steps_in_flight > 0;
        rule(sequence.status != Status::Finished || is_named, || {
            format!("request {name} has ended, no step names it, and it is still here")
        })?;
        rule(runs == sequence.cache.is_some(), || {
            format!("request {name} is {:?} and its cache sequence is {:?}", sequence.status, sequence.cache)
        })?;
        rule(sequence.pool_row.is_none() || runs || is_named, || {
            format!("request {name} keeps an executor row that no step names")
        })?;
        rule(!runs || self.requests.running().contains(&entry), || {
            format!("request {name} runs and is not listed")
        })?;
        let (computed, claimed, known) = (sequence.computed, sequence.claimed, sequence.len());
        rule(computed <= claimed && claimed <= known, || {
            format!("request {name}: computed {computed}, claimed {claimed}, known {known}")
        })?;
        let Some(seq) = sequence.cache else { return Ok(()) };
        let held = self.kv.cache().claimed_len(seq).map_err(|error| format!("request {name}: {error}"))?;
        // While drafts are being verified, the cache may count them, or in tree mode not even the
        // newest token.
        rule(held == claimed || sequence.verifying, || {
            format!("request {name}: the cache has {held} tokens claimed, not {claimed}")
        })
    }
}
