//! Sliding-window layers with KV pools of their own give the bits of the same layers in the full
//! group: over random operations, with two windows, and in dummy steps.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::steps::step;
use common::{limits, lower};
use kvasir_exec::{Executor, Step, StepError};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheKind, GroupId, Slot, StepId};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_program::Model;
use kvasir_testkit::steps::{prompt, row_input};
use kvasir_testkit::windows::{Executors, check_random_operations, window_configs, windowed_cache};
use std::ops::Range;

const KINDS: [CacheKind; 3] = [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells];

/// A model whose first layer has the window `first`, if one is given.
fn model(case: &str, first: Option<u32>) -> PlainModel {
    let checkpoint = Checkpoint::open(&kvasir_testkit::paths::model(case)).unwrap();
    let mut model = Model::build(&checkpoint.source()).unwrap();
    if first.is_some() {
        model.target.layers[0].window = first;
    }
    PlainModel::load(&model, &checkpoint).unwrap()
}

/// The windows of a model, ascending.
fn windows(model: &PlainModel) -> Vec<u32> {
    let mut windows = model.program().windows();
    windows.sort_unstable();
    windows.dedup();
    windows
}

/// An executor with pools for `cache`.
fn executor(model: &PlainModel, cache: &dyn Cache) -> PlainExecutor {
    let slots = cache.shape().pool_slots();
    let has_windows = !cache.shape().windows.is_empty();
    let limits = Limits { slots: slots[0], ..limits() };
    PlainExecutor::new(model, limits).with_window_groups(has_windows.then_some(slots))
}

/// The executors without and with window groups.
struct Pair([PlainExecutor; 2]);

impl Executors for Pair {
    fn run(&mut self, cache: usize, mut step: Step) -> Vec<f32> {
        assert_eq!(step.plan.windows.is_empty(), cache == 0);
        lower(&mut step);
        self.0[cache].pass(&step, None, &[]).unwrap().logits
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        self.0[1].release(group, slots);
    }
}

fn check(model: &PlainModel, kind: CacheKind, seed: u64, operations: usize) {
    let windows = windows(model);
    let caches = [windowed_cache(kind, Vec::new()), windowed_cache(kind, window_configs(&windows))];
    let mut pair = Pair(caches.map(|cache| executor(model, &*cache)));
    check_random_operations(kind, &windows, seed, operations, &mut pair);
}

#[test]
fn window_groups_give_the_bits_of_the_full_group() {
    // Full and window layers, shared K/V, sinks, and window layers alone.
    for (seed, case) in (0..).zip(["gemma3", "gemma4_ple", "gpt_oss", "mistral", "olmo3"]) {
        let model = model(case, None);
        KINDS.iter().for_each(|&kind| check(&model, kind, seed, 250));
    }
}

#[test]
fn two_windows_have_two_groups() {
    let model = model("gemma4_moe", Some(9));
    assert_eq!(windows(&model), [9, 16]);
    (0..).zip(KINDS).for_each(|(seed, kind)| check(&model, kind, seed, 250));
}

#[test]
fn a_plan_without_its_window_sections_is_refused() {
    let model = model("gemma3", None);
    let mut cache = windowed_cache(CacheKind::Paged, window_configs(&windows(&model)));
    let mut executor = executor(&model, &*cache);
    assert!(executor.kv_layout().is_err());
    let seq = cache.open().unwrap();
    let inputs = [row_input(seq, &prompt(20, 1))];
    let mut fails = |id: u64, change: &dyn Fn(&mut Step), what: &str| {
        let mut wrong = step(&mut *cache, id, &inputs);
        cache.cancel(StepId(id)).unwrap();
        change(&mut wrong);
        let error = executor.pass(&wrong, None, &[]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains(what)), "{error}");
    };
    fails(1, &|step| step.plan.windows.clear(), "0 window sections");
    fails(2, &|step| step.plan.windows[0].write_slots[3] = 10_000, "beyond");
    fails(3, &|step| step.plan.windows[0].read_bound = 10_000, "beyond");
    fails(4, &|step| step.plan.windows[0].segments[0].pool.0 = 3, "pool 3");
    // A dummy step has no window sections, and writes nothing there.
    let mut dummy = Step::dummy(3, cache.shape().dummy_slot);
    lower(&mut dummy);
    executor.pass(&dummy, None, &[]).unwrap();
    executor.pass(&step(&mut *cache, 5, &inputs), None, &[]).unwrap();
}
