//! Step traces of speculative decoding: which drafts a row verifies, and which are accepted.

#![allow(clippy::unwrap_used)] // helpers outside of test functions

use crate::drafter::Oracle;
use kvasir_engine::{
    Chunked, Core, Engine, Limits, Mixing, Order, Params, Request, StepTrace, TraceSink, Tracer,
};
use kvasir_kv::TreeCache;
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::{Random, complete::drain};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTrace>>>);

impl TraceSink for Steps {
    fn write(&mut self, step: &StepTrace) {
        self.0.lock().unwrap().push(step.clone());
    }
}

/// The trace of three requests, whose drafts are trees, chains, or absent.
fn traced(trees: Option<bool>, overlap: bool) -> Vec<StepTrace> {
    let policy = Box::new(Chunked::new(64, Mixing::Off));
    let cache = Box::new(TreeCache::new(4096));
    let core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
    let steps = Steps::default();
    let mut engine = Engine::new(core, Toy::new(), || 0).overlap(overlap);
    if let Some(trees) = trees {
        let oracle =
            Oracle { random: Random::new(5), width: 5, trees, accuracy: 70, shape: ToyShape::default() };
        engine = engine.draft(Box::new(oracle)).unwrap();
    }
    let mut engine = engine.observe(Box::new(Tracer::new(steps.clone(), 0..u64::MAX)));
    for tag in 0..3 {
        let params = Params { max_tokens: 40, ignore_eos: true, ..Params::default() };
        let prompt = (10..20 + tag).collect();
        engine.add_request(Request { tag: tag.into(), prompt, params }).unwrap();
    }
    drain(&mut engine);
    drop(engine);
    Arc::into_inner(steps.0).unwrap().into_inner().unwrap()
}

#[test]
fn accepted_drafts_are_paths_of_traced_trees() {
    for (trees, overlap) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut proposed: HashMap<u64, Vec<u32>> = HashMap::new();
        let (mut accepted_drafts, mut rejected_drafts, mut branches) = (0, 0, 0);
        for step in traced(Some(trees), overlap) {
            for (id, parents) in &step.drafts {
                let row = step.rows.iter().find(|row| row.0 == *id).unwrap();
                assert_eq!(parents.len() as u32, row.6, "a parent per draft");
                assert!((0..).zip(parents).all(|(i, parent)| *parent <= i), "a parent precedes its children");
                branches += (0..).zip(parents).filter(|(i, parent)| *parent != i).count();
                assert_eq!(proposed.insert(*id, parents.clone()), None, "verified one after the other");
            }
            for (id, nodes) in &step.accepted {
                let parents = proposed.remove(id).unwrap();
                let path = std::iter::once(&0).chain(nodes);
                assert!(path.zip(nodes).all(|(parent, node)| parents[*node as usize - 1] == *parent));
                accepted_drafts += nodes.len();
                rejected_drafts += parents.len() - nodes.len();
                // The target's own token follows them.
                if nodes.len() > 1 && step.ended.iter().all(|(ended, _)| ended != id) {
                    assert!(step.outputs.contains(&(*id, nodes.len() as u32 + 1)), "{step:?}");
                }
            }
        }
        assert!(accepted_drafts > 20 && rejected_drafts > 20 && (branches > 20) == trees);
    }
}

#[test]
fn plain_decoding_traces_no_drafts() {
    let steps = traced(None, false);
    assert!(steps.iter().all(|step| step.drafts.is_empty() && step.accepted.is_empty()));
}
