//! Consistency checker for the scheduler: cross-checks sequences, queue, running list, executor
//! rows, reserved slots, state slots and retained sessions against the KV cache.
//!
//! Cost: O(live sequences × running sequences). The tests call it after every step; `Engine::serve`
//! calls it when it goes idle.

use crate::request::sequence::Status;
use crate::scheduler::state::World;

/// Checks all invariants of the scheduler state and its cache; returns the first violation.
pub(crate) fn check(world: &World) -> Result<(), String> {
    world.cache.check()?;
    let (mut waiting, mut running, mut rows, mut reserved, mut states) = (0, 0, 0, 0, 0);
    let mut prefilling = 0;
    for (entry, sequence) in world.slab.iter() {
        let name = sequence.id.0;
        match sequence.status {
            Status::Waiting => waiting += 1,
            Status::Running => running += 1,
            Status::Finished if sequence.steps_in_flight == 0 => {
                return Err(format!("request {name} has ended, no step names it, and it is still here"));
            }
            Status::Finished => {}
        }
        if (sequence.status == Status::Running) != sequence.cache.is_some() {
            return Err(format!(
                "request {name} is {:?} and its cache sequence is {:?}",
                sequence.status, sequence.cache
            ));
        }
        if sequence.pool_row.is_some() && sequence.status != Status::Running && sequence.steps_in_flight == 0
        {
            return Err(format!("request {name} keeps an executor row that no step names"));
        }
        if sequence.status == Status::Running && !world.running.contains(&entry) {
            return Err(format!("request {name} runs and is not listed"));
        }
        if sequence.computed > sequence.claimed || sequence.claimed > sequence.len() {
            return Err(format!(
                "request {name}: computed {}, claimed {}, known {}",
                sequence.computed,
                sequence.claimed,
                sequence.len()
            ));
        }
        if let Some(seq) = sequence.cache {
            let claimed = world.cache.claimed_len(seq).map_err(|error| format!("request {name}: {error}"))?;
            // While drafts are being verified, the cache may count them, or in tree mode not even
            // the newest token.
            if claimed != sequence.claimed && !sequence.verifying {
                return Err(format!(
                    "request {name}: the cache has {claimed} tokens claimed, not {}",
                    sequence.claimed
                ));
            }
        }
        rows += usize::from(sequence.pool_row.is_some());
        reserved += sequence.reserved;
        prefilling += u32::from(sequence.prefilling);
        states += u32::from(sequence.pool_row.is_some() && sequence.cold.params.stateful);
    }
    for (session, retained) in world.retained.iter() {
        let len = world
            .cache
            .claimed_len(retained.seq)
            .map_err(|error| format!("session {}: {error}", session.0))?;
        if len as usize != retained.tokens.len() || len % world.block != 0 || len == 0 {
            return Err(format!(
                "session {}: {} tokens retained, {len} in the cache",
                session.0,
                retained.tokens.len()
            ));
        }
    }
    let rule = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    rule(waiting == world.queue.len(), "the queue and the waiting requests differ")?;
    rule(running == world.running.len(), "the running list and the running requests differ")?;
    rule(reserved == world.budget.reserved(), "the sum of reservations is wrong")?;
    rule(prefilling == world.prefilling, "the number of prompts under way is wrong")?;
    rule(states == world.state_slots.taken(), "places for state are lost or given twice")?;
    let all = world.limits.max_num_seqs as usize;
    rule(rows + world.free_rows.len() == all, "token-pool rows are lost or given twice")?;
    rule(
        world.budget.reserved() <= world.cache.room().available() + world.cache.room().leased,
        "more is reserved than there is",
    )
}
