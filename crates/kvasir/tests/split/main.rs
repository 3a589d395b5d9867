//! Tensor parallelism on both backends: all ranks compute equal bits, which also equal those of one
//! process that runs all shards. Logits are near those of the unsharded model.
//!
//! Ranks are threads with `ThreadRank` collectives. A rank that panics aborts the process, because
//! the others would wait forever.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod harness;
mod recurrent;

use harness::{Backend, check, cpu, plain};
use kvasir_cpu::{Precision, RandomWeights};
use kvasir_formats::{Checkpoint, DType, Rules, convert};
use kvasir_program::{Eagle3, Model, Op, Program, Source, SplitError, Tap};
use kvasir_testkit::Random;
use kvasir_testkit::paths::{model, repository};
use kvasir_testkit::ranks::ThreadRank;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn checkpoints() -> Vec<String> {
    let entries = std::fs::read_dir(repository().join("testdata/models")).unwrap();
    let dirs = entries.map(|entry| entry.unwrap().path());
    let recorded = dirs.filter(|dir| dir.join("config.json").exists() && dir.join("expected.json").exists());
    let mut names: Vec<String> =
        recorded.map(|dir| dir.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() >= 24, "only {} checkpoints", names.len());
    names
}

#[test]
fn shards_of_every_checkpoint_match_the_unsharded_model() {
    for name in checkpoints() {
        let checkpoint = Arc::new(Checkpoint::open(&model(&name)).unwrap());
        let model = Model::build(&checkpoint.source()).unwrap();
        for whole in model.programs() {
            let name = format!("{name} {:?}", whole.purpose);
            for ranks in [2, 3, 4] {
                let reference = |program: &Program| plain(program, &checkpoint);
                let plain = check(&format!("{name} plain"), whole, ranks, &reference, 1e-3);
                println!("{name} {ranks} ranks: plain {plain:.1e} of the deviation");
                let exact = |program: &Program| cpu(program, checkpoint.clone(), Precision::F32);
                let error = check(&format!("{name} f32"), whole, ranks, &exact, 1e-3);
                println!("{name} {ranks} ranks: f32 {error:.1e} of the deviation");
            }
            for ranks in [2, 3] {
                let fast = |program: &Program| cpu(program, checkpoint.clone(), Precision::Auto);
                let error = check(&format!("{name} auto"), whole, ranks, &fast, 0.03);
                println!("{name} {ranks} ranks: auto {error:.1e} of the deviation");
            }
        }
    }
}

/// Converts a test checkpoint to GGUF.
fn gguf(name: &str, dtype: &str, rules: &[String]) -> Checkpoint {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("split-{name}-{dtype}.gguf"));
    convert(&model(name), &file, &Rules::parse(dtype, rules).unwrap()).unwrap();
    let opened = Checkpoint::open(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    opened
}

#[test]
fn shards_of_gguf_files_match_the_unsharded_model() {
    let names =
        ["qwen3", "llama", "phi3", "gemma3", "glm4_moe", "deepseek_v3", "mixtral", "gpt_oss_mxfp4", "qwen2"];
    // Rows of one block, and heads that end inside a block, cannot be divided.
    let rules = ["*_shexp.*=bf16".to_owned(), "*attn_output*=bf16".to_owned()];
    for (name, dtype) in names.into_iter().flat_map(|name| ["q8_0", "q4_0"].map(|dtype| (name, dtype))) {
        let rules = if ["glm4_moe", "deepseek_v3"].contains(&name) { &rules[..] } else { &[] };
        let checkpoint = Arc::new(gguf(name, dtype, rules));
        let model = Model::build(&checkpoint.source()).unwrap();
        let exact = |program: &Program| cpu(program, checkpoint.clone(), Precision::F32);
        let fast = |program: &Program| cpu(program, checkpoint.clone(), Precision::Auto);
        check(&format!("{name} {dtype} f32"), &model.target, 2, &exact, 1e-3);
        check(&format!("{name} {dtype} auto"), &model.target, 2, &fast, 0.03);
        let reference = |program: &Program| plain(program, &checkpoint);
        check(&format!("{name} {dtype} plain"), &model.target, 2, &reference, 1e-3);
    }
}

#[test]
fn too_few_blocks_for_the_ranks_name_the_tensor() {
    let refused = |name: &str, ranks: usize| {
        let model = Model::build(&gguf(name, "q8_0", &[]).source()).unwrap();
        match model.target.for_rank(0, ranks) {
            Err(SplitError::Blocks { tensor, columns, block, .. }) => (tensor, columns, block),
            other => panic!("{name}: {other:?}"),
        }
    };
    // Four heads of 16 elements: an output projection of two blocks of 32 columns.
    let (tensor, columns, block) = refused("llama", 3);
    assert!(tensor.contains("o_proj") && (columns, block) == (64, 32), "{tensor}");
    let (tensor, columns, block) = refused("glm4_moe", 2);
    assert!(tensor.contains("shared_experts.down_proj") && (columns, block) == (32, 32), "{tensor}");
}

#[test]
fn eagle3_heads_and_their_targets_can_be_sharded() {
    for name in ["eagle3_llama", "eagle3_qwen3"] {
        let checkpoint = Checkpoint::open(&model(name)).unwrap();
        let target = Model::build(&checkpoint.source()).unwrap().target;
        let mut draft = Checkpoint::open(&model(name).join("draft")).unwrap();
        draft.borrow_tensor("embed_tokens.weight", &checkpoint, "model.embed_tokens.weight").unwrap();
        let head = Eagle3::build(&draft.source(), &target).unwrap();
        for ranks in [2, 3, 4] {
            // The head's vocabulary is not the target's, so the CPU backend runs it as a draft
            // only.
            let reference = |program: &Program| plain(program, &draft);
            check(&format!("{name} head"), &head.program, ranks, &reference, 1e-3);
            // Features are replicated, whether they are added before or after sharding.
            let before = target.with_features(head.layers, 64).unwrap().for_rank(0, ranks).unwrap();
            let after = target.for_rank(0, ranks).unwrap().with_features(head.layers, 64).unwrap();
            for program in [before, after] {
                let features = program.tap(Tap::Features).unwrap();
                assert_eq!(program.value(features).width(), 64);
            }
        }
    }
}

/// A random config of an architecture.
fn config(random: &mut Random, architecture: &str, unit: usize) -> Json {
    let n = |random: &mut Random, low: u32, high: u32| random.between(low, high) as usize;
    let kv_heads = n(random, 1, 4);
    let heads = kv_heads * n(random, 1, 4);
    let head_dim = unit * n(random, 1, 2);
    let experts = n(random, 4, 9);
    json!({
        "architectures": [architecture], "hidden_size": unit * n(random, 1, 3),
        "intermediate_size": unit * n(random, 4, 7), "moe_intermediate_size": unit * n(random, 1, 2),
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "vocab_size": n(random, 90, 130), "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": random.chance(50),
        "mlp_bias": random.chance(50), "tie_word_embeddings": random.chance(50),
        "num_local_experts": experts, "num_experts": experts, "n_routed_experts": experts,
        "num_experts_per_tok": n(random, 1, 3), "n_shared_experts": n(random, 0, 2), "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "norm_topk_prob": true,
        "kv_lora_rank": unit, "q_lora_rank": unit, "qk_nope_head_dim": unit, "qk_rope_head_dim": 16,
        "v_head_dim": unit, "index_n_heads": 2, "index_head_dim": 32, "index_topk": 24,
        "sliding_window": 20, "partial_rotary_factor": 1.0, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    })
}

/// Marks all weights whose rows consist of whole blocks as quantized in blocks.
fn in_blocks(source: Source, block: usize) -> Source {
    let model = Model::build(&source).unwrap();
    let whole = model.target.weights.iter().filter(|w| w.shape.last().is_some_and(|n| n % block == 0));
    let blocks: BTreeMap<String, usize> = whole.map(|w| (w.name.clone(), block)).collect();
    Source { blocks, ..source }
}

#[test]
fn shards_of_random_shapes_match_the_unsharded_model() {
    let dense = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen2ForCausalLM", "Phi3ForCausalLM"];
    let mixtures = ["MixtralForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "GptOssForCausalLM"];
    let latent = ["DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"];
    let all: Vec<&str> = dense.into_iter().chain(mixtures).chain(latent).collect();
    let (mut split, mut refused) = (0, 0);
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let types = [(DType::F32, 16), (DType::BF16, 16), (DType::Q8_0, 32), (DType::Q4K, 256)];
        // Rounding may change the routes, so mixtures are tested in f32 only.
        let architecture = random.pick(&all);
        let (dtype, unit) = if dense.contains(&architecture) { random.pick(&types) } else { types[0] };
        let source = Source::of_config(config(random, architecture, unit));
        let source = in_blocks(source, dtype.block_len());
        let ranks = random.between(2, 5) as usize;
        let name = format!("seed {seed}: {architecture} {dtype} {}", source.config);
        let whole = Model::build(&source).unwrap().target;
        let weights = Arc::new(RandomWeights::new(dtype));
        let load = |program: &Program| cpu(program, weights.clone(), Precision::Auto);
        match whole.for_rank(0, ranks) {
            Ok(_) => {
                check(&name, &whole, ranks, &load, if dtype == DType::F32 { 1e-3 } else { 0.05 });
                split += 1;
            }
            Err(SplitError::Heads { heads, .. }) => {
                assert!(heads < ranks, "{name}");
                refused += 1;
            }
            Err(SplitError::Blocks { block, columns, .. }) => {
                assert!(columns.div_ceil(block) < 2 * ranks, "{name}");
                refused += 1;
            }
            Err(SplitError::Experts { experts, .. }) => assert!(experts < ranks, "{name}"),
            Err(other) => panic!("{name}: {other}"),
        }
    }
    assert!(split >= 30 && refused >= 3, "{split} divided, {refused} refused");
}

#[test]
fn shards_add_up_to_the_unsharded_weights_and_cache() {
    for name in checkpoints() {
        let checkpoint = Checkpoint::open(&model(&name)).unwrap();
        let model = Model::build(&checkpoint.source()).unwrap();
        let whole = checkpoint.bytes_read(model.programs());
        let part = |rank| model.programs().map(|program| program.for_rank(rank, 2).unwrap()).collect();
        let parts: [Vec<Program>; 2] = [part(0), part(1)];
        let bytes: Vec<u64> = parts.iter().map(|part| checkpoint.bytes_read(part)).collect();
        // Norms, routers, the embedding and latent projections are replicated. A rank may read
        // several parts of a tensor.
        let read = |program: &Program, name: &str| -> usize {
            let weights = program.weights.iter().zip(program.elements_read());
            weights.filter(|(weight, _)| weight.name == name).map(|(_, read)| read).sum()
        };
        let on_both = |name: &str| {
            let sum: usize = parts.iter().map(|part| read(&part[0], name)).sum();
            sum.checked_sub(read(&model.target, name)).unwrap_or_else(|| panic!("{name} is not read"))
        };
        let both: usize = model.target.weights.iter().map(|weight| on_both(&weight.name)).sum();
        assert!(bytes.iter().all(|bytes| *bytes < whole), "{name}: {bytes:?} of {whole}");
        let sums: usize = parts.iter().map(|part| part[0].elements_read().iter().sum::<usize>()).sum();
        let all: usize = model.target.elements_read().iter().sum();
        assert_eq!(sums, all + both, "{name}: every element is on a rank");
        let kv: usize = parts.iter().map(|part| part[0].kv_width()).sum();
        assert!(kv >= model.target.kv_width(), "{name}");
        // Rows of an indexer are stored on every rank.
        if model.target.layers.iter().all(|layer| layer.kv_heads % 2 == 0 && layer.index_dim == 0) {
            assert_eq!(kv, model.target.kv_width(), "{name}");
        }
    }
}

#[test]
fn a_shard_rejects_a_group_of_another_size() {
    let checkpoint = Arc::new(Checkpoint::open(&model("qwen3")).unwrap());
    let model = Model::build(&checkpoint.source()).unwrap();
    let program = model.target.for_rank(0, 2).unwrap();
    assert_eq!((program.ranks(), model.target.ranks()), (Some(2), None));
    let three = || ThreadRank::all(3).remove(0);
    let Backend::Cpu(cpu) = cpu(&program, checkpoint.clone(), Precision::F32) else { return };
    assert!(cpu.among(three()).err().unwrap().contains("2 ranks"));
    let Backend::Plain(plain) = plain(&program, &checkpoint) else { return };
    assert!(plain.among(three()).err().unwrap().contains("2 ranks"));
    // Round trip through text and JSON.
    assert!(program.to_string().contains("collect") && program.to_string().contains("rank 0 of 2"));
    let json = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
    assert!(program.ops.iter().any(|op| matches!(op, Op::Collect { .. })));
}
