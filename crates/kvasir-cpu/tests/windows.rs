//! Sliding-window layers with KV pools of their own give the bits of the same layers in the full
//! group: over random operations, in every KV type, with explicit masks, and in dummy steps.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, Precision, ThreadPool};
use kvasir_exec::{Executor, Step, StepError};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheKind, GroupId, Lowering, Plan, PlanKind, Slot, StepId};
use kvasir_program::Model;
use kvasir_testkit::checkpoints::{exact, narrow};
use kvasir_testkit::steps::{prompt, row_input, step};
use kvasir_testkit::windows::{Executors, check_random_operations, window_configs, windowed_cache};
use std::{ops::Range, sync::Arc};

const KINDS: [CacheKind; 3] = [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells];

/// The windows of a model, ascending.
fn windows(model: &CpuModel) -> Vec<u32> {
    let mut windows = model.program().windows();
    windows.sort_unstable();
    windows.dedup();
    windows
}

/// An executor with pools for `cache`.
fn executor(model: &Arc<CpuModel>, kv: KvType, cache: &dyn Cache) -> CpuExecutor {
    let slots = cache.shape().pool_slots();
    let has_windows = !cache.shape().windows.is_empty();
    let limits = Limits { slots: slots[0], tokens: 256, rows: 8, kv, ring: None };
    let executor = CpuExecutor::new(Arc::clone(model), limits).unwrap();
    executor.with_window_groups(has_windows.then_some(slots)).unwrap()
}

/// The executors without and with window groups.
struct Pair([CpuExecutor; 2]);

impl Executors for Pair {
    /// Runs the step with window groups once more, over the same pools under explicit masks.
    fn run(&mut self, cache: usize, mut step: Step) -> Vec<f32> {
        assert_eq!(step.plan.windows.is_empty(), cache == 0);
        self.0[cache].execute(&mut step, &[]).unwrap();
        let logits = step.output.logits.clone();
        if cache == 1 {
            let mut explicit = Plan::default();
            Lowering::default().lower(&step.plan, &mut explicit);
            assert!(explicit.windows.iter().all(|section| section.kind == PlanKind::Explicit));
            explicit.moves.clear();
            explicit.windows.iter_mut().for_each(|section| section.moves.clear());
            step.plan = explicit;
            self.0[cache].execute(&mut step, &[]).unwrap();
            assert!(step.output.logits == logits, "explicit masks give other logits");
        }
        logits
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        self.0[1].release(group, slots);
    }
}

fn check(model: &Arc<CpuModel>, kv: KvType, kind: CacheKind, seed: u64) {
    let windows = windows(model);
    let caches = [windowed_cache(kind, Vec::new()), windowed_cache(kind, window_configs(&windows))];
    let mut pair = Pair(caches.map(|cache| executor(model, kv, &*cache)));
    check_random_operations(kind, &windows, seed, 250, &mut pair);
}

#[test]
fn window_groups_give_the_bits_of_the_full_group() {
    let mut kinds = KvType::ALL.into_iter().cycle();
    // Full and window layers, shared K/V, sinks, and window layers alone.
    for (seed, case) in (0..).zip(["gemma3", "gemma4_ple", "gpt_oss", "mistral", "olmo3"]) {
        let (exact, narrow) = (exact(case, 2), narrow(case, 2));
        for kind in KINDS {
            check(&exact, KvType::F32, kind, seed);
            check(&narrow, kinds.next().unwrap(), kind, seed + 10);
        }
    }
}

#[test]
fn two_windows_have_two_groups() {
    let checkpoint = Checkpoint::open(&kvasir_testkit::paths::model("gemma4_moe")).unwrap();
    let mut program = Model::build(&checkpoint.source()).unwrap().target;
    program.layers[0].window = Some(9);
    let threads = Arc::new(ThreadPool::new(2));
    let model = CpuModel::load(&program, Arc::new(checkpoint), Precision::Auto, threads).unwrap();
    let model = Arc::new(model);
    assert_eq!(windows(&model), [9, 16]);
    (0..).zip(KINDS).for_each(|(seed, kind)| check(&model, KvType::Bf16, kind, seed));
}

#[test]
fn a_plan_without_its_window_sections_is_refused() {
    let model = narrow("gemma3", 1);
    let mut cache = windowed_cache(CacheKind::Paged, window_configs(&windows(&model)));
    let mut executor = executor(&model, KvType::Bf16, &*cache);
    assert!(executor.kv_layout().is_err());
    let rings = Limits { slots: 64, tokens: 8, rows: 1, kv: KvType::Bf16, ring: Some(8) };
    let rings = CpuExecutor::new(Arc::clone(&model), rings).unwrap();
    assert!(rings.with_window_groups(Some(cache.shape().pool_slots())).is_err());
    let seq = cache.open().unwrap();
    let inputs = [row_input(seq, &prompt(20, 1))];
    let mut fails = |id: u64, change: &dyn Fn(&mut Step), what: &str| {
        let mut wrong = step(&mut *cache, id, &inputs);
        cache.cancel(StepId(id)).unwrap();
        change(&mut wrong);
        let error = executor.execute(&mut wrong, &[]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains(what)), "{error}");
    };
    fails(1, &|step| step.plan.windows.clear(), "0 window sections");
    fails(2, &|step| step.plan.windows[0].write_slots[3] = 10_000, "beyond");
    fails(3, &|step| step.plan.windows[0].segments[0].pool.0 = 3, "pool 3");
    // A dummy step has no window sections, and stores nothing.
    executor.execute(&mut Step::dummy(3, cache.shape().dummy_slot), &[]).unwrap();
    assert_eq!(executor.pool().grown(GroupId(1)), 0);
    executor.execute(&mut step(&mut *cache, 5, &inputs), &[]).unwrap();
}
