//! Sharded programs of published configs: weights, KV widths, experts and all-reduces per layer,
//! and the errors of impossible rank counts.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Collective, DispatchShape, Model, Op, Program, Source, SplitError};
use serde_json::{Value as Json, json};

fn target(config: Json) -> Program {
    Model::build(&Source::of_config(config)).unwrap().target
}

fn elements(program: &Program) -> usize {
    program.elements_read().iter().sum()
}

fn all_reduces(program: &Program) -> usize {
    program.ops.iter().filter(|op| matches!(op, Op::Collect { how: Collective::Sum, .. })).count()
}

fn qwen3_30b() -> Json {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "vocab_size": 151936})
}

fn deepseek_v3() -> Json {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false, "topk_group": 4,
        "v_head_dim": 128, "vocab_size": 129280})
}

#[test]
fn two_ranks_each_read_half_of_a_dense_model() {
    let whole = target(json!({
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "vocab_size": 151936}));
    let norms = 28 * (2 * 1024 + 2 * 128) + 1024;
    let copied = 151_936 * 1024 + norms;
    for rank in 0..2 {
        let part = whole.for_rank(rank, 2).unwrap();
        assert_eq!(elements(&part), copied + (elements(&whole) - copied) / 2);
        assert_eq!(part.kv_width() * 2, whole.kv_width());
        assert_eq!(all_reduces(&part), 2 * 28, "attention and feed-forward block of each layer");
        assert_eq!(part.value(part.logits().unwrap()).width(), 151_936);
    }
}

#[test]
fn experts_are_divided_and_scarce_kv_heads_are_replicated() {
    let whole = target(qwen3_30b());
    for rank in 0..8 {
        let part = whole.for_rank(rank, 8).unwrap();
        assert_eq!(part.kv_width(), 48 * 2 * 128, "one of four KV heads per layer");
        let experts = part.ops.iter().filter_map(|op| match op {
            Op::Mixture { experts, .. } => Some((experts.first, experts.gate.count, part.routed_experts(op))),
            _ => None,
        });
        let experts: Vec<_> = experts.collect();
        assert_eq!(experts, vec![(rank * 16, 16, 128); 48]);
        let names = part.weights.iter().filter(|w| w.name.contains(".mlp.experts.")).count();
        assert_eq!(names, 48 * 16 * 3, "weights of other ranks' experts are not named");
    }
}

#[test]
fn latent_rows_are_replicated_and_branches_share_an_all_reduce() {
    let model = Model::build(&Source::of_config(deepseek_v3())).unwrap();
    let part: Vec<Program> = model.programs().map(|program| program.for_rank(3, 8).unwrap()).collect();
    let (target, predictions) = (&part[0], &part[1..]);
    assert_eq!(target.kv_width(), model.target.kv_width());
    assert_eq!(all_reduces(target), 2 * 61, "experts and shared experts are summed together");
    assert_eq!(predictions.len(), 1);
    assert_eq!(all_reduces(&predictions[0]), 2);
    let heads = target.ops.iter().find_map(|op| match op {
        Op::GroupLinear { matrices, .. } => Some(matrices.count),
        _ => None,
    });
    assert_eq!(heads, Some(16));
    // 1/8 of experts and heads, and all replicated weights, which are few.
    assert!(elements(target) < elements(&model.target) / 7);
}

#[test]
fn impossible_rank_counts_are_typed_errors() {
    let whole = target(qwen3_30b());
    assert_eq!(whole.for_rank(2, 2), Err(SplitError::Rank { rank: 2, ranks: 2 }));
    assert_eq!(whole.for_rank(0, 0), Err(SplitError::Rank { rank: 0, ranks: 0 }));
    assert_eq!(whole.for_all_ranks(0), Err(SplitError::Rank { rank: 0, ranks: 0 }));
    let error = whole.for_rank(0, 33).unwrap_err();
    assert!(
        matches!(error, SplitError::Heads { heads: 32, kv_heads: 4, ranks: 33, layer: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("Qwen3MoeForCausalLM"), "{error}");
    assert!(whole.for_rank(0, usize::MAX).is_err());
    let part = whole.for_rank(0, 2).unwrap();
    assert_eq!(part.for_rank(0, 2), Err(SplitError::AlreadySplit { ranks: 2 }));
    assert_eq!(whole.for_rank(0, 1).unwrap(), whole);
    let mut few = qwen3_30b();
    (few["num_experts"], few["num_experts_per_tok"]) = (3.into(), 2.into());
    assert!(matches!(target(few).for_rank(0, 4), Err(SplitError::Experts { experts: 3, ranks: 4, .. })));
    let mut narrow = qwen3_30b();
    (narrow["mlp_only_layers"], narrow["intermediate_size"]) = (json!([0]), 3.into());
    let error = target(narrow).for_rank(0, 4).unwrap_err();
    assert!(matches!(&error, SplitError::Columns { tensor, columns: 3, .. } if tensor.contains("down_proj")));
}

#[test]
fn part_boundaries_coincide_with_quantization_blocks() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "head_dim": 128, "hidden_size": 512,
        "intermediate_size": 1280, "max_position_embeddings": 512, "num_attention_heads": 6,
        "num_hidden_layers": 1, "num_key_value_heads": 6, "rms_norm_eps": 1e-6, "vocab_size": 1000});
    let mut source = Source::of_config(config);
    let names = Model::build(&source).unwrap().target.weights;
    source.blocks = names.into_iter().map(|weight| (weight.name, 256)).collect();
    let whole = Model::build(&source).unwrap().target;
    let widths = |program: &Program| -> Vec<usize> {
        let inputs = program.ops.iter().filter_map(|op| match op {
            Op::Linear { matrix, .. } if !matrix.inputs.is_multiple_of(512) || matrix.outputs == 512 => {
                Some(matrix.inputs)
            }
            _ => None,
        });
        inputs.collect()
    };
    // Six heads of half a block each, and five blocks of columns, for two ranks.
    let parts = [0, 1].map(|rank| whole.for_rank(rank, 2).unwrap());
    let all: Vec<Vec<usize>> = parts.iter().map(widths).collect();
    assert!(all.iter().flatten().all(|inputs| inputs.is_multiple_of(256)), "{all:?}");
    assert_eq!(all.iter().map(|of| of[of.len() - 1]).sum::<usize>(), 1280);
    assert_eq!(parts.iter().map(|part| part.layers[0].kv_heads).sum::<usize>(), 6);
    let error = whole.for_rank(0, 4).unwrap_err();
    assert!(
        matches!(&error, SplitError::Blocks { tensor, block: 256, .. } if tensor.contains("o_proj")),
        "{error}"
    );
}

#[test]
fn a_replica_has_its_experts_and_all_other_weights() {
    let whole = target(qwen3_30b());
    let weights_per_expert = 3 * 2048 * 768;
    for replica in 0..3 {
        let part = whole.for_replica(replica, 3).unwrap();
        let local = (replica + 1) * 128 / 3 - replica * 128 / 3;
        let stored = |program: &Program| {
            program.weights.iter().map(|w| w.shape.iter().product::<usize>()).sum::<usize>()
        };
        assert_eq!(stored(&whole) - stored(&part), 48 * (128 - local) * weights_per_expert);
        assert_eq!(part.kv_width(), whole.kv_width());
        assert_eq!(part.dispatch_shape(), Some(DispatchShape { width: 2048, top_k: 8 }));
        assert_eq!(all_reduces(&part), 0);
        assert!(part.check_replicas(3).is_ok() && part.check_replicas(1).is_err());
        assert!(matches!(part.for_rank(0, 2), Err(SplitError::AlreadySplit { ranks: 3 })));
    }
    assert_eq!(whole.for_replica(0, 1).unwrap(), whole);
    assert!(matches!(whole.for_replica(0, 129), Err(SplitError::Experts { experts: 128, ranks: 129, .. })));
    let dense = target(json!({
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "hidden_size": 64, "intermediate_size": 96,
        "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true,
        "vocab_size": 100}));
    assert!(matches!(dense.for_replica(0, 2), Err(SplitError::NoExperts { .. })));
}
