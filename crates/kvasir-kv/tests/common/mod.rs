//! Helpers shared by the tests of several caches.

use kvasir_kv::{Cache, Plan, StepId};

/// The plan of a claimed step, in fresh memory.
pub(crate) fn plan_of(cache: &dyn Cache, step: u64) -> Plan {
    let mut plan = Plan::default();
    cache.plan(StepId(step), &mut plan).unwrap();
    plan
}
