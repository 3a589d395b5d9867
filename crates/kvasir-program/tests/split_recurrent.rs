//! Sharded programs of recurrent models: states and weights of each rank, collectives, replicated
//! layers.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Collective, Model, Op, Program, Source};
use serde_json::{Value as Json, json};

fn target(config: Json) -> Program {
    Model::build(&Source::of_config(config)).unwrap().target
}

fn qwen3_5(key_heads: usize, value_heads: usize) -> Json {
    json!({
        "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"},
        "tie_word_embeddings": true, "vocab_size": 5000})
}

fn nemotron_h(groups: usize) -> Json {
    json!({
        "architectures": ["NemotronHForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*", "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 32, "mamba_head_dim": 64,
        "n_groups": groups, "ssm_state_size": 128, "conv_kernel": 4, "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 4096, "vocab_size": 5000})
}

fn collectives(program: &Program, kind: Collective) -> usize {
    program.ops.iter().filter(|op| matches!(op, Op::Collect { how, .. } if *how == kind)).count()
}

/// Elements of the weights whose names contain `name` that a program reads.
fn elements(program: &Program, name: &str) -> usize {
    let weights = program.weights.iter().zip(program.elements_read());
    weights.filter(|(weight, _)| weight.name.contains(name)).map(|(_, read)| read).sum()
}

fn tail_elements(program: &Program) -> usize {
    program.states.iter().map(|state| state.tail_elements).sum()
}

#[test]
fn ranks_divide_the_heads_of_a_gated_delta_rule() {
    for (keys, values, ranks) in [(16, 16, 2), (16, 32, 4), (16, 48, 8)] {
        let whole = target(qwen3_5(keys, values));
        let layers = elements(&whole, "linear_attn.") - elements(&whole, "linear_attn.norm");
        for rank in 0..ranks {
            let part = whole.for_rank(rank, ranks).unwrap();
            assert_eq!(part.state_elements() * ranks, whole.state_elements());
            assert_eq!(tail_elements(&part) * ranks, tail_elements(&whole));
            let own = elements(&part, "linear_attn.") - elements(&part, "linear_attn.norm");
            assert_eq!(own * ranks, layers, "{keys} {values} {ranks}");
            assert_eq!(collectives(&part, Collective::Sum), 2 * 8);
            assert_eq!(collectives(&part, Collective::Join), 1, "logits");
        }
    }
}

#[test]
fn ranks_that_share_a_key_head_both_compute_it() {
    // Two ranks read each key head, and both store the state of its convolution.
    let whole = target(qwen3_5(2, 8));
    let part = whole.for_rank(3, 4).unwrap();
    let delta_states = 6 * 8 * 128 * 128;
    let conv_states = |heads: usize| 6 * 3 * heads * 128;
    assert_eq!(whole.state_elements(), delta_states + conv_states(2 + 2 + 8));
    assert_eq!(part.state_elements(), delta_states / 4 + conv_states(1 + 1 + 2));
}

#[test]
fn tiled_value_heads_are_divided_into_ranges() {
    let mut source = Source::of_config(qwen3_5(16, 32));
    (source.layout.ssm_tensors, source.layout.tiled_value_heads) = (true, true);
    let whole = Model::build(&source).unwrap().target;
    let heads = |program: &Program| {
        let forms = program.ops.iter().filter_map(|op| match op {
            Op::GatedDelta { form, .. } => Some((form.key_heads, form.value_heads)),
            _ => None,
        });
        forms.collect::<Vec<_>>()
    };
    // A range of 16 value heads reads all 16 key heads; a range of 8 value heads reads 8.
    assert_eq!(heads(&whole.for_rank(1, 2).unwrap()), [(16, 16); 6]);
    assert_eq!(heads(&whole.for_rank(1, 4).unwrap()), [(8, 8); 6]);
    // A rank's 8 value heads begin or end inside a tile of 12, so the recurrence is replicated.
    let mut source = Source::of_config(qwen3_5(12, 24));
    (source.layout.ssm_tensors, source.layout.tiled_value_heads) = (true, true);
    let whole = Model::build(&source).unwrap().target;
    assert_eq!(heads(&whole.for_rank(1, 3).unwrap()), [(12, 24); 6]);
}

#[test]
fn heads_that_are_not_divisible_by_ranks_are_replicated() {
    let whole = target(qwen3_5(16, 16));
    let part = whole.for_rank(1, 3).unwrap();
    assert_eq!(part.state_elements(), whole.state_elements());
    assert_eq!(elements(&part, "in_proj_qkv"), elements(&whole, "in_proj_qkv"));
    // The output gate and the output projection are divided by columns.
    assert!(elements(&part, "out_proj") * 2 < elements(&whole, "out_proj"));
}

#[test]
fn a_norm_over_all_heads_needs_an_all_gather() {
    // Two Mamba layers. With eight groups, each rank has whole groups of the norm.
    for (groups, gathers) in [(8, 1), (1, 1 + 2)] {
        let whole = target(nemotron_h(groups));
        let part = whole.for_rank(1, 4).unwrap();
        assert_eq!(collectives(&part, Collective::Join), gathers, "{groups} groups");
        assert_eq!(collectives(&part, Collective::Sum), 4, "{groups} groups");
        let of_heads = 2 * (32 * 64 * 128 + 3 * 32 * 64);
        let of_groups = 2 * (3 * 2 * groups * 128);
        assert_eq!(whole.state_elements(), of_heads + of_groups);
        assert_eq!(part.state_elements(), of_heads / 4 + of_groups / groups.min(4));
        assert_eq!(elements(&part, "out_proj") * 4, elements(&whole, "out_proj"));
        let norm = elements(&whole, "mixer.norm");
        assert_eq!(elements(&part, "mixer.norm"), if groups == 1 { norm } else { norm / 4 });
    }
}

#[test]
fn heads_that_end_inside_a_quantization_block_are_gathered() {
    // Three heads of 128 columns per rank, and blocks of 256.
    let mut source = Source::of_config(qwen3_5(6, 6));
    let weights = Model::build(&source).unwrap().target.weights;
    let outputs = weights.into_iter().filter(|weight| weight.name.ends_with("linear_attn.out_proj.weight"));
    source.blocks = outputs.map(|weight| (weight.name, 256)).collect();
    let whole = Model::build(&source).unwrap().target;
    let parts = [0, 1].map(|rank| whole.for_rank(rank, 2).unwrap());
    for part in &parts {
        assert_eq!(collectives(part, Collective::Join), 6 + 1);
        assert_eq!(part.state_elements() * 2, whole.state_elements());
    }
    let inputs = parts.each_ref().map(|part| elements(part, "out_proj") / (6 * 1024));
    assert_eq!(inputs, [256, 512]);
}

#[test]
fn ranks_divide_the_channels_of_a_gated_convolution() {
    let whole = target(json!({
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": 1024, "intermediate_size": 4608,
        "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_attention_heads": 16, "num_key_value_heads": 8, "conv_L_cache": 3, "conv_bias": false,
        "block_auto_adjust_ff_dim": false, "norm_eps": 1e-5, "max_position_embeddings": 4096,
        "rope_theta": 1e6, "vocab_size": 5000}));
    let parts: Vec<Program> = (0..3).map(|rank| whole.for_rank(rank, 3).unwrap()).collect();
    for name in ["conv.in_proj", "conv.conv", "conv.out_proj"] {
        let sum: usize = parts.iter().map(|part| elements(part, name)).sum();
        assert_eq!(sum, elements(&whole, name), "{name}");
    }
    assert_eq!(parts.iter().map(Program::state_elements).sum::<usize>(), whole.state_elements());
    assert!(parts.iter().all(|part| part.state_elements() * 5 < whole.state_elements() * 2));
}
