//! `Device`: executes plans on one tag per slot and checks that each query reads exactly the tags
//! the model expects.
//!
//! It also checks the form of every plan and that its `Lowering` shows each query the same entries.

use super::model::Query;
use kvasir_kv::{Lowering, Mask, Plan, PlanKind, PoolId};
use std::collections::VecDeque;

/// A pool with a tag per slot, and the submitted steps.
pub(crate) struct Device {
    slots: Vec<Option<u32>>,
    queue: VecDeque<(Plan, Vec<Query>)>,
    lowering: Lowering,
}

impl Device {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { slots: vec![None; capacity as usize], queue: VecDeque::new(), lowering: Lowering::default() }
    }

    /// Queues a step, after checking its form and that lowering preserves what each query sees.
    pub(crate) fn submit(&mut self, plan: &Plan, queries: Vec<Query>) {
        check_form(plan);
        let mut explicit = Plan::default();
        self.lowering.lower(plan, &mut explicit);
        check_form(&explicit);
        assert!(explicit.rows.iter().all(|row| matches!(row.mask, Mask::Explicit { .. })));
        for (row, lowered) in plan.rows.iter().zip(&explicit.rows) {
            assert_eq!(row.queries, lowered.queries);
            for query in 0..row.queries.len {
                assert_eq!(seen(plan, row, query), seen(&explicit, lowered, query), "lowered {plan:?}");
            }
        }
        self.queue.push_back((plan.clone(), queries));
    }

    /// Runs the oldest step: slot copies, writes, then reads.
    pub(crate) fn run(&mut self) {
        let (plan, queries) = self.queue.pop_front().unwrap();
        let moved: Vec<_> = plan.moves.iter().map(|m| self.slots[m.from as usize]).collect();
        plan.moves.iter().zip(moved).for_each(|(m, tag)| self.slots[m.to as usize] = tag);
        assert_eq!(plan.positions, queries.iter().map(|q| q.position).collect::<Vec<_>>());
        for (query, &slot) in queries.iter().zip(&plan.write_slots) {
            self.slots[slot as usize] = Some(query.tag);
        }
        for row in &plan.rows {
            for q in 0..row.queries.len {
                let tags = seen(&plan, row, q).into_iter().map(|(_, slot, _)| self.slots[slot as usize]);
                let query = &queries[(row.queries.start + q) as usize];
                let expected: Vec<_> = query.visible.iter().map(|&tag| Some(tag)).collect();
                assert_eq!(tags.collect::<Vec<_>>(), expected, "query {q} of {row:?} in {plan:?}");
            }
        }
    }
}

/// The entries that one query sees.
fn seen(plan: &Plan, row: &kvasir_kv::PlanRow, query: u32) -> Vec<(PoolId, u32, u32)> {
    let entries = plan.entries(row).zip(0..).filter(|&(_, entry)| plan.sees(row, query, entry));
    entries.map(|(entry, _)| entry).collect()
}

/// Invariants of every plan of every cache.
fn check_form(plan: &Plan) {
    assert_eq!(plan.positions.len(), plan.write_slots.len());
    for row in &plan.rows {
        let entries: Vec<_> = plan.entries(row).collect();
        assert_eq!(entries.len(), row.read_len as usize);
        assert!(entries.is_sorted_by_key(|&(_, _, position)| position), "positions rise: {entries:?}");
        assert!(entries.iter().all(|&(pool, slot, _)| pool.0 > 0 || slot < plan.read_bound));
        for query in 0..row.queries.len {
            let own = plan.write_slots[(row.queries.start + query) as usize];
            let last = seen(plan, row, query).pop().map(|(_, slot, _)| slot);
            assert_eq!(last, Some(own), "a query sees itself last");
        }
    }
    assert!(plan.write_slots.iter().all(|&slot| slot < plan.read_bound));
    assert!(plan.moves.iter().all(|m| m.from < plan.read_bound && m.to < plan.read_bound));
    let explicit = plan.rows.iter().any(|row| matches!(row.mask, Mask::Explicit { .. }));
    assert_eq!(plan.kind == PlanKind::Explicit, explicit);
    if plan.kind == PlanKind::Contiguous {
        let [row] = plan.rows[..] else { panic!("{} rows of a contiguous plan", plan.rows.len()) };
        for (i, (pool, slot, position)) in plan.entries(&row).enumerate() {
            assert_eq!((pool, slot), (PoolId(0), i as u32));
            assert_eq!(position, plan.segments[0].first + i as u32);
        }
        assert_eq!(row.read_len, plan.segments.iter().map(|segment| segment.len).sum::<u32>());
    }
}
