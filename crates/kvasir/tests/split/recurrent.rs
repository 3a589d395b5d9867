//! Recurrent layers on several ranks: drafts, GGUF files, each rank's part of the states, and a
//! collective that fails between two recurrent layers.

use crate::harness::{Backend, check, check_with, cpu, plain};
use crate::{gguf, in_blocks, model};
use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, Precision, RandomWeights, ThreadPool};
use kvasir_exec::{Ranks, StepError};
use kvasir_formats::{Checkpoint, DType};
use kvasir_kv::{Cache, CacheConfig, CacheKind, SeqId, StateConfig, StepId, build};
use kvasir_program::{Model, Op, Program, Source, SplitError};
use kvasir_testkit::Random;
use kvasir_testkit::steps::{prompt, row_input, step};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One model per recurrence and per op that follows it.
const CASES: [&str; 7] =
    ["qwen3_5", "qwen3_next", "kimi_linear", "lfm2", "falcon_h1", "granitemoehybrid", "nemotron_h"];

fn open(case: &str) -> (Arc<Checkpoint>, Program) {
    let checkpoint = Arc::new(Checkpoint::open(&model(case)).unwrap());
    let target = Model::build(&checkpoint.source()).unwrap().target;
    (checkpoint, target)
}

#[test]
fn rejected_drafts_change_no_logits_on_any_rank() {
    for case in CASES {
        let (checkpoint, whole) = open(case);
        for ranks in [2, 3] {
            let exact = |program: &Program| cpu(program, checkpoint.clone(), Precision::F32);
            let drafted = |backend: Backend| backend.drafted_logits(ranks as u64);
            let error = check_with(&format!("{case} f32"), &whole, ranks, &exact, &drafted, 1e-3);
            let reference = |program: &Program| plain(program, &checkpoint);
            check_with(&format!("{case} plain"), &whole, ranks, &reference, &drafted, 1e-3);
            println!("{case} with drafts, {ranks} ranks: {error:.1e} of the deviation");
        }
    }
}

#[test]
fn shards_of_gguf_files_match_the_unsharded_model() {
    // Rows of one block, and heads that end inside a block, cannot be divided.
    let rules = ["*attn_output*=bf16".to_owned(), "*_shexp.*=bf16".to_owned()];
    let with_shared_experts = ["qwen3_next", "kimi_linear", "granitemoehybrid"];
    for (case, dtype) in CASES.into_iter().flat_map(|case| ["bf16", "q8_0"].map(|dtype| (case, dtype))) {
        let rules = if with_shared_experts.contains(&case) { &rules[..] } else { &rules[..1] };
        let checkpoint = Arc::new(gguf(case, dtype, rules));
        let whole = Model::build(&checkpoint.source()).unwrap().target;
        for ranks in [2, 4] {
            if whole.for_rank(0, ranks).is_err() {
                assert!(ranks == 4, "{case} {dtype}");
                continue;
            }
            let exact = |program: &Program| cpu(program, checkpoint.clone(), Precision::F32);
            let error = check(&format!("{case} {dtype} f32"), &whole, ranks, &exact, 1e-3);
            let reference = |program: &Program| plain(program, &checkpoint);
            check(&format!("{case} {dtype} plain"), &whole, ranks, &reference, 1e-3);
            println!("{case} {dtype}, {ranks} ranks: {error:.1e} of the deviation");
        }
    }
}

#[test]
fn ranks_divide_the_states_of_recurrent_layers() {
    // Part of the model's state elements on one rank of two, per mille. Each rank of Granite and
    // Falcon-H1 stores the convolution inputs of B and C, which all heads share.
    let parts_per_mille = [
        ("qwen3_5", 500),
        ("qwen3_next", 500),
        ("kimi_linear", 500),
        ("lfm2", 500),
        ("nemotron_h", 500),
        ("granitemoehybrid", 518),
        ("falcon_h1", 525),
    ];
    for (case, per_mille) in parts_per_mille {
        let (_, whole) = open(case);
        for rank in 0..2 {
            let part = whole.for_rank(rank, 2).unwrap();
            assert_eq!(part.state_elements() * 1000 / whole.state_elements(), per_mille, "{case}");
        }
    }
    // The heads of these models cannot be divided among three ranks, so each stores all states.
    for case in ["qwen3_5", "granitemoehybrid"] {
        let (_, whole) = open(case);
        assert_eq!(whole.for_rank(2, 3).unwrap().state_elements(), whole.state_elements(), "{case}");
    }
}

/// A random config of a model with recurrent layers. Widths are multiples of `unit`; only recurrent
/// heads may have half of it.
fn random_config(random: &mut Random, unit: usize) -> Json {
    let n = |random: &mut Random, low: u32, high: u32| random.between(low, high) as usize;
    let (kv_heads, shared) = (n(random, 1, 3), n(random, 1, 4));
    let heads = shared * n(random, 1, 4);
    let head_dim = unit / n(random, 1, 2);
    let architectures =
        ["Qwen3_5ForCausalLM", "Qwen3NextForCausalLM", "NemotronHForCausalLM", "Lfm2ForCausalLM"];
    let architecture = random.pick(&architectures);
    let layer_types = match architecture {
        "Lfm2ForCausalLM" => json!(["conv", "full_attention", "conv"]),
        _ => json!(["linear_attention", "full_attention", "linear_attention"]),
    };
    json!({
        "architectures": [architecture], "hidden_size": unit * n(random, 2, 4),
        "intermediate_size": unit * n(random, 4, 7), "num_attention_heads": kv_heads * 4,
        "num_key_value_heads": kv_heads, "head_dim": unit, "num_hidden_layers": 3, "layer_types": layer_types,
        "hybrid_override_pattern": "M*M", "vocab_size": n(random, 90, 130), "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "norm_eps": 1e-6, "rope_theta": 10000.0, "block_auto_adjust_ff_dim": false,
        "partial_rotary_factor": 0.5, "attn_output_gate": true, "tie_word_embeddings": random.chance(50),
        "linear_num_key_heads": shared, "linear_num_value_heads": heads, "linear_key_head_dim": 16,
        "linear_value_head_dim": head_dim, "linear_conv_kernel_dim": 4, "mlp_only_layers": [0, 1, 2],
        "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": unit,
        "shared_expert_intermediate_size": 0, "mamba_num_heads": heads, "mamba_head_dim": head_dim,
        "n_groups": shared, "ssm_state_size": 16, "conv_kernel": 4, "use_conv_bias": random.chance(50),
        "conv_L_cache": n(random, 2, 4), "conv_bias": random.chance(50),
    })
}

#[test]
fn shards_of_random_recurrent_shapes_match_the_unsharded_model() {
    let (mut divided, mut replicated) = (0, 0);
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let (dtype, unit) =
            random.pick(&[(DType::F32, 16), (DType::BF16, 32), (DType::Q8_0, 32), (DType::Q4K, 256)]);
        let source = in_blocks(Source::of_config(random_config(random, unit)), dtype.block_len());
        let ranks = random.between(2, 4) as usize;
        let name = format!("seed {seed}: {dtype} {}", source.config);
        let whole = Model::build(&source).unwrap().target;
        match whole.for_rank(0, ranks) {
            Ok(part) if part.state_elements() < whole.state_elements() => divided += 1,
            Ok(_) => replicated += 1,
            Err(SplitError::Blocks { .. }) => continue,
            Err(other) => panic!("{name}: {other}"),
        }
        let weights = Arc::new(RandomWeights::new(dtype));
        let load = |program: &Program| cpu(program, weights.clone(), Precision::Auto);
        check(&name, &whole, ranks, &load, if dtype == DType::F32 { 1e-3 } else { 0.05 });
    }
    assert!(divided >= 15 && replicated >= 3, "{divided} divided, {replicated} replicated");
}

/// Collectives of one rank of two, without a peer: sums lack the peer's part. One call fails.
struct FailingRanks {
    calls: AtomicUsize,
    /// Number of the failing call, from 0.
    failing_call: usize,
}

impl FailingRanks {
    fn call(&self) -> Result<(), StepError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            call if call == self.failing_call => Err(StepError::Failed("a rank has aborted".into())),
            _ => Ok(()),
        }
    }
}

impl Ranks for FailingRanks {
    fn count(&self) -> usize {
        2
    }

    fn all_reduce(&self, _: &mut [f32]) -> Result<(), StepError> {
        self.call()
    }

    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        all.chunks_exact_mut(width)
            .zip(rows.chunks_exact(width).flat_map(|row| [row, row]))
            .for_each(|(to, row)| to.copy_from_slice(row));
        self.call()
    }
}

/// A step whose collective fails has already overwritten the states of earlier layers. The engine
/// fails the sequences of such a step, so their states are never read again.
#[test]
fn a_failed_collective_corrupts_only_the_states_of_its_step() {
    for case in ["qwen3_5", "granitemoehybrid"] {
        let (checkpoint, whole) = open(case);
        let program = whole.for_rank(0, 2).unwrap();
        let threads = Arc::new(ThreadPool::new(1));
        let model = CpuModel::load(&program, checkpoint, Precision::F32, threads).unwrap();
        let model = Arc::new(model);
        // Without checkpoints every step overwrites the live state.
        let in_place = Some(StateConfig { live: 1, checkpoints: 0, tail_rows: 0, interval: 0 });
        let executor = |failing_call| {
            let limits = Limits { slots: 128, tokens: 64, rows: 1, kv: KvType::F32, ring: None };
            let executor = CpuExecutor::new(Arc::clone(&model), limits).unwrap();
            let executor = executor.with_states(in_place).unwrap();
            executor.among(FailingRanks { calls: AtomicUsize::new(0), failing_call }).unwrap()
        };
        let config = CacheConfig { states: in_place, ..CacheConfig::new(128) };
        let new_cache = || build(CacheKind::Contiguous, &config).unwrap();
        let tokens = prompt(24, 1);
        let run = |executor: &mut CpuExecutor, cache: &mut dyn Cache, id: u64, seq: SeqId, tokens: &[u32]| {
            let mut step = step(cache, id, &[row_input(seq, tokens)]);
            let result = executor.execute(&mut step, &[]);
            if result.is_ok() {
                cache.retire(StepId(id)).unwrap()
            } else {
                cache.cancel(StepId(id)).unwrap()
            };
            result.map(|()| step.output.logits)
        };
        let (mut intact, mut cache) = (executor(usize::MAX), new_cache());
        let seq = cache.open().unwrap();
        let expected = run(&mut intact, &mut *cache, 1, seq, &tokens).unwrap();
        // The third collective of the second step belongs to the second recurrent layer.
        let failing_call = collectives(&program) + 2;
        let (mut failing, mut cache) = (executor(failing_call), new_cache());
        let seq = cache.open().unwrap();
        run(&mut failing, &mut *cache, 1, seq, &tokens[..16]).unwrap();
        let error = run(&mut failing, &mut *cache, 2, seq, &tokens[16..20]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains("aborted")), "{error}");
        let continued = run(&mut failing, &mut *cache, 3, seq, &tokens[16..]).unwrap();
        assert!(!expected.ends_with(&continued), "{case}: the failed step has changed no state");
        cache.close(seq).unwrap();
        let seq = cache.open().unwrap();
        let again = run(&mut failing, &mut *cache, 4, seq, &tokens).unwrap();
        assert!(again == expected, "{case}: a new sequence reads a state of the failed step");
    }
}

/// Number of collectives per step.
fn collectives(program: &Program) -> usize {
    program.ops.iter().filter(|op| matches!(op, Op::Collect { .. })).count()
}
