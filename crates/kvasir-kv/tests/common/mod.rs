//! Helpers shared by the tests of several caches.

use kvasir_kv::{Cache, Layout, Plan, PoolId, Position, Slot, StepId};

/// The plan of a claimed step, in memory of its own.
pub(crate) fn plan_of(cache: &mut dyn Cache, step: u64) -> Plan {
    let mut plan = Plan::default();
    cache.plan(StepId(step), &mut plan).unwrap();
    plan
}

/// The entries that each row reads: pool, slot, position.
type Reads = Vec<Vec<(PoolId, Slot, Position)>>;

/// What a plan says, wherever its block tables keep it: the plan without them, and the entries of
/// every row.
pub(crate) fn meaning(plan: &Plan) -> (Plan, Reads) {
    let entries = plan.rows.iter().map(|row| plan.entries(row).collect()).collect();
    let mut plan = plan.clone();
    plan.table.clear();
    for segment in &mut plan.segments {
        if let Layout::Table { at, .. } = &mut segment.layout {
            *at = 0;
        }
    }
    (plan, entries)
}
