//! `Device`: executes plans on pools that store a content hash per slot. It panics if a query does
//! not read exactly the rows that its sequence owns in the window.

use crate::model::Query;
use kvasir_kv::{Plan, PlanKind, PlanRow, Section};
use std::collections::VecDeque;

/// The pool of one layer group.
struct Pool {
    /// `None` for the full group.
    window: Option<u32>,
    slots: Vec<Option<u64>>,
}

/// A pool per layer group, and the submitted steps.
pub(crate) struct Device {
    pools: Vec<Pool>,
    queue: VecDeque<(Plan, Vec<Query>)>,
    /// Number of slot copies of window groups so far.
    pub(crate) copies: usize,
}

impl Device {
    /// `pools` has the window and the number of slots of each group.
    pub(crate) fn new(pools: &[(Option<u32>, u32)]) -> Self {
        let pool = |&(window, slots): &(Option<u32>, u32)| Pool { window, slots: vec![None; slots as usize] };
        Self { pools: pools.iter().map(pool).collect(), queue: VecDeque::new(), copies: 0 }
    }

    /// Queues a step, after checking the form of its sections.
    pub(crate) fn submit(&mut self, plan: &Plan, queries: Vec<Query>) {
        assert_eq!(plan.windows.len() + 1, self.pools.len());
        assert!(plan.positions.iter().copied().eq(queries.iter().map(|query| query.position)));
        for (section, pool) in plan.sections().zip(&self.pools) {
            let spans = |section: &Section| section.rows.iter().map(|row| row.queries).collect::<Vec<_>>();
            assert_eq!(spans(section), spans(plan));
            assert_ne!(section.kind, PlanKind::Explicit);
            assert_eq!(section.write_slots.len(), queries.len());
            assert!(section.write_slots.iter().all(|slot| *slot < section.read_bound.max(256)));
            assert!(section.read_bound as usize <= pool.slots.len());
            for row in &section.rows {
                let entries: Vec<_> = section.entries(row).collect();
                assert_eq!(entries.len(), row.read_len as usize);
                assert!(entries.is_sorted_by(|a, b| a.2 < b.2), "{entries:?}");
                assert!(entries.iter().all(|(_, slot, _)| *slot < section.read_bound));
            }
        }
        self.queue.push_back((plan.clone(), queries));
    }

    /// Runs the oldest step: slot copies, writes, then reads.
    pub(crate) fn run(&mut self) {
        let (plan, queries) = self.queue.pop_front().unwrap();
        for (section, pool) in plan.sections().zip(&mut self.pools) {
            let copied: Vec<_> = section.moves.iter().map(|copy| pool.slots[copy.from as usize]).collect();
            for (copy, content) in section.moves.iter().zip(copied) {
                pool.slots[copy.to as usize] = content;
            }
            self.copies += pool.window.map_or(0, |_| section.moves.len());
            for (query, slot) in queries.iter().zip(&section.write_slots) {
                pool.slots[*slot as usize] = (!query.is_redirected).then_some(query.content);
            }
            for row in &section.rows {
                let rows = queries[row.queries.range()].iter().enumerate();
                // A redirected query may lack rows of its window: no later row reads its output.
                for (at, query) in rows.filter(|(_, query)| pool.window.is_none() || !query.is_redirected) {
                    let expected = query.visible.iter().filter(|(position, _)| pool.sees(query, *position));
                    let expected: Vec<_> = expected.map(|(at, content)| (*at, Some(*content))).collect();
                    let read = pool.read(section, row, at as u32, query);
                    assert_eq!(read, expected, "window {:?}, query {query:?} of {row:?}", pool.window);
                }
            }
        }
    }
}

impl Pool {
    fn sees(&self, query: &Query, position: u32) -> bool {
        self.window.is_none_or(|window| position + window > query.position)
    }

    /// Positions and contents of the slots that a query reads inside the window.
    fn read(&self, section: &Section, row: &PlanRow, at: u32, query: &Query) -> Vec<(u32, Option<u64>)> {
        let entries = section.entries(row).zip(0..).filter(|(_, entry)| section.sees(row, at, *entry));
        let entries = entries.filter(|((_, _, position), _)| self.sees(query, *position));
        entries.map(|((_, slot, position), _)| (position, self.slots[slot as usize])).collect()
    }
}
