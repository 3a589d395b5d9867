//! Static shapes on real weights: under padding, the reference backend gives each request the
//! tokens and the logits, bit for bit, that it gets alone.
//!
//! Random workloads run on the plain backend: ragged, as the rectangles of the `rectangular`
//! policy, and with decode batches padded to declared sizes. Every step that reaches the executor
//! is checked for its shape. Guards `kvasir-exec`'s padding and the masked attention of
//! `kvasir-plain`.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{Arrivals, Outputs, RecordingExecutor, request, run_each};
use kvasir_engine::{
    Chunked, Core, Engine, Limits, Mixing, Order, Policy, Rectangular, RectangularConfig, Request,
};
use kvasir_exec::{Abilities, Executor, PoolRow, Ran, Refused, RowKind, SequenceSpec, Step, StepError};
use kvasir_formats::Checkpoint;
use kvasir_kv::{CacheConfig, CacheKind, Token, build};
use kvasir_plain::{Limits as PoolLimits, PlainExecutor, PlainModel};
use kvasir_program::Model;
use kvasir_testkit::{Random, paths};

/// Sequences, prompt plus answer, are shorter than this.
const LENGTH: u32 = 96;

/// The shape that every step must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Ragged,
    /// Slots per block, and tokens per prefill chunk.
    Rectangle(u32, u32),
}

/// Coverage, so that a vacuous test fails.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    left_padded: usize,
    right_padded: usize,
    redirected: usize,
    dummy_tokens: usize,
    dummy_rows: usize,
    wide_steps: usize,
}

/// Checks the shape of every step.
struct Checked {
    inner: PlainExecutor,
    shape: Shape,
    dummy: u32,
    coverage: Coverage,
}

impl Checked {
    fn check(&mut self, step: &Step) {
        let Step { batch, plan, .. } = step;
        let rows = || batch.rows.iter().zip(&plan.rows);
        let real = || rows().filter(|(row, _)| row.kind != RowKind::Dummy);
        for (row, planned) in rows().filter(|(row, _)| row.kind == RowKind::Dummy) {
            assert_eq!((planned.read_len, planned.segments.len), (0, 0));
            assert!(plan.write_slots[planned.queries.range()].iter().all(|slot| *slot == self.dummy));
            self.coverage.dummy_tokens += row.tokens.len as usize;
        }
        if batch.rows.iter().all(|row| !row.kind.is_prefill()) {
            let sizes = self.inner.abilities().batch_sizes;
            let fits = sizes.is_empty() || batch.rows.len() > *sizes.last().unwrap() as usize;
            assert!(fits || sizes.contains(&(batch.rows.len() as u32)), "{} rows", batch.rows.len());
            self.coverage.dummy_rows += batch.rows.len() - real().count();
            self.coverage.wide_steps += usize::from(real().count() > 1);
        }
        let Shape::Rectangle(block, chunk) = self.shape else { return };
        let width = real().map(|(_, planned)| planned.read_len).max().unwrap();
        for (row, planned) in real() {
            assert_eq!((planned.read_len, width % block), (width, 0), "no rectangle");
            let left = (planned.left_pad_blocks * block) as usize;
            let entries: Vec<_> = plan.entries(planned).map(|(_, slot, _)| slot).collect();
            assert!(entries[..left].iter().all(|slot| slot / block == 0), "block 0 is the dummy block");
            assert!(entries[left..].iter().all(|slot| slot / block > 0));
            let last = row.tokens.len - 1;
            let visible: Vec<_> = (0..width).filter(|entry| plan.sees(planned, last, *entry)).collect();
            assert!(
                visible[0] as usize == left
                    && visible.len()
                        == plan.positions[row.tokens.range()].last().copied().unwrap() as usize + 1
            );
            self.coverage.left_padded += usize::from(left > 0);
            self.coverage.right_padded += usize::from(left + visible.len() < width as usize);
            self.coverage.redirected += planned.redirected as usize;
        }
        if batch.rows.iter().any(|row| row.kind.is_prefill()) {
            assert_eq!(
                (real().count(), batch.tokens.len() as u32),
                (1, chunk),
                "a whole chunk of one prompt"
            );
        }
    }
}

impl Executor for Checked {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        self.check(&step);
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        self.inner.wait(pending)
    }
}

/// Cache and batch shape of a run.
#[derive(Debug)]
struct Setup {
    cache: CacheKind,
    block: u32,
    rectangle: Option<RectangularConfig>,
    batch_sizes: Vec<u32>,
    sharing: bool,
}

impl Setup {
    fn engine(&self, model: &PlainModel) -> Engine<RecordingExecutor<Checked>> {
        let config = CacheConfig {
            block_size: self.block,
            max_sequences: 32,
            sharing: self.sharing,
            dummy: self.rectangle.is_some(),
            ..CacheConfig::new(640)
        };
        let cache = build(self.cache, &config).unwrap();
        let limits = Limits {
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: LENGTH,
            prefix_cache: self.sharing && self.cache.is_block_based(),
            ..Limits::default()
        };
        let (policy, shape): (Box<dyn Policy>, _) = match self.rectangle {
            Some(config) => {
                (Box::new(Rectangular::new(config)), Shape::Rectangle(self.block, config.chunk_size))
            }
            None => (Box::new(Chunked::new(19, Mixing::On { target: None })), Shape::Ragged),
        };
        let pool = PoolLimits {
            slots: cache.shape().capacity + cache.shape().block_size,
            tokens: 64,
            rows: 32,
            states: None,
        };
        let inner = PlainExecutor::new(model, pool).with_batch_sizes(self.batch_sizes.clone());
        let (dummy, coverage) = (cache.shape().dummy_slot, Coverage::default());
        let executor = RecordingExecutor::new(Checked { inner, shape, dummy, coverage }, model.program());
        Engine::new(Core::new(limits, Order::Fcfs, policy, cache), executor, || 0)
    }

    /// Runs requests that arrive in every second turn; returns outputs by tag.
    fn run(&self, model: &PlainModel, requests: &[Request], coverage: &mut Coverage) -> Outputs {
        let mut engine = self.engine(model);
        let arrivals = Arrivals { requests, siblings: 1, interval: 2, max_turns: 5000, context: self };
        let outputs = arrivals.run(&mut engine, &mut common::Coverage::default(), |_, _, _| {});
        for (tokens, logits) in outputs.values() {
            assert_eq!(tokens.len(), logits.len());
        }
        let step_coverage = engine.executor().inner.coverage;
        coverage.left_padded += step_coverage.left_padded;
        coverage.right_padded += step_coverage.right_padded;
        coverage.redirected += step_coverage.redirected;
        coverage.dummy_tokens += step_coverage.dummy_tokens;
        coverage.dummy_rows += step_coverage.dummy_rows;
        coverage.wide_steps += step_coverage.wide_steps;
        outputs
    }
}

fn load(case: &str) -> PlainModel {
    let checkpoint = Checkpoint::open(&paths::model(case)).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    PlainModel::load(&model, &checkpoint).unwrap()
}

/// Requests with common prefixes and various lengths and temperatures.
fn requests(random: &mut Random, model: &PlainModel) -> Vec<Request> {
    let trunk: Vec<Token> = (0..64).map(|_| random.between(1, 400)).collect();
    let count = u64::from(random.between(3, 6));
    let one = |n: u64| {
        let shared = if random.chance(70) { random.between(0, 50) } else { 0 };
        let mut prompt = trunk[..shared as usize].to_vec();
        prompt.extend((0..random.between(1, 20)).map(|_| random.between(1, 400)));
        let max_tokens = random.between(2, 12);
        let temperature = if random.chance(50) { 0.9 } else { 0.0 };
        request(model.program(), n, prompt, max_tokens, temperature)
    };
    (0..count).map(one).collect()
}

const CASES: [&str; 6] = ["qwen3_yarn_swa", "gpt_oss", "deepseek_v32", "deepseek_v4", "gemma3", "gemma4_ple"];
const SEEDS: u64 = 3;

/// Runs `setups` of random workloads on every checkpoint and compares with each request alone.
fn same_bits(setups: impl Fn(&mut Random) -> Vec<Setup>) -> Coverage {
    let mut coverage = Coverage::default();
    for case in CASES {
        let model = load(case);
        for seed in 0..SEEDS {
            let mut random = Random::new(seed);
            let requests = requests(&mut random, &model);
            let ragged =
                |cache| Setup { cache, block: 8, rectangle: None, batch_sizes: Vec::new(), sharing: true };
            let alone = ragged(CacheKind::Contiguous);
            let wanted = run_each(&requests, 1, |one| alone.run(&model, one, &mut Coverage::default()));
            let together = ragged(CacheKind::Radix).run(&model, &requests, &mut Coverage::default());
            assert!(together == wanted, "{case}, seed {seed}: ragged");
            for (n, setup) in setups(&mut random).iter().enumerate() {
                assert!(
                    setup.run(&model, &requests, &mut coverage) == wanted,
                    "{case}, seed {seed}, setup {n}"
                );
            }
        }
    }
    coverage
}

#[test]
fn rectangles_and_ragged_rows_give_the_same_bits() {
    let coverage = same_bits(|random| {
        let rectangle = |cache| {
            let block = random.pick(&[2, 4, 8]);
            let max_batch = random.between(1, 5);
            let config = RectangularConfig {
                chunk_size: block * random.between(1, 4),
                max_batch,
                max_batch_tkv: u64::from(LENGTH + random.between(0, LENGTH * (max_batch - 1))),
                interleave: random.chance(60),
                pausing: random.chance(40),
                ..RectangularConfig::default()
            };
            let batch_sizes = if random.chance(30) { vec![2, 4] } else { Vec::new() };
            let sharing = random.chance(70);
            Setup { cache, block, rectangle: Some(config), batch_sizes, sharing }
        };
        [CacheKind::Paged, CacheKind::Radix].map(rectangle).into()
    });
    println!("{coverage:?}");
    assert!(
        coverage.left_padded > 50 && coverage.right_padded > 50 && coverage.redirected > 0,
        "{coverage:?}"
    );
    assert!(
        coverage.dummy_tokens > 100 && coverage.dummy_rows > 0 && coverage.wide_steps > 20,
        "{coverage:?}"
    );
}

#[test]
fn padded_decode_batches_give_the_same_bits() {
    let coverage = same_bits(|random| {
        let sizes = [vec![1, 2, 4, 8], vec![3, 5], vec![8]];
        let padded = |cache: &CacheKind| {
            let batch_sizes = sizes[random.between(0, 2) as usize].clone();
            Setup { cache: *cache, block: 8, rectangle: None, batch_sizes, sharing: true }
        };
        [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells].iter().map(padded).collect()
    });
    println!("{coverage:?}");
    assert!(
        coverage.dummy_rows > 100 && coverage.dummy_tokens == coverage.dummy_rows && coverage.wide_steps > 20,
        "{coverage:?}"
    );
}
