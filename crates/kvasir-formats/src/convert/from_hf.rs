//! Maps a Hugging Face checkpoint to GGUF tensors: names, shapes, stacked experts and required
//! permutations.
//!
//! 1. `outputs` maps each tensor to a GGUF name, a shape and a `Change` (RoPE permutation, norm
//!    offset, MLA split, …), as the architecture's names and transforms say.
//! 2. Experts of a layer are stacked along a new slowest dimension, in expert order.
//!
//! A tensor without a GGUF name is refused by name. Guarded by `tests/convert.rs`.

use crate::checkpoint::Checkpoint;
use crate::convert::output::{Change, Output, Part};
use crate::convert::placement::{Placement, size, unsupported_tensor};
use crate::convert::recurrent_tensors;
use crate::error::{Error, Result};
use crate::tensor::TensorView;
use kvasir_program::{Architecture, Transform, skipped_position_rows};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// All output tensors, embeddings first, then layer by layer.
pub(super) fn outputs(model: &Checkpoint) -> Result<Vec<Output>> {
    let architecture = Architecture::of(model.config()).map_err(|e| Error::at(model.path().display(), e))?;
    // Head counts may follow from the architecture's defaults.
    let config = &architecture.spelled_out(model.config());
    let mut out: BTreeMap<(usize, String), Output> = BTreeMap::new();
    for view in model.tensors() {
        for Placement { name, shape, expert, part } in placements(model, architecture, config, &view)? {
            let layer = name
                .strip_prefix("blk.")
                .and_then(|r| r.split('.').next()?.parse().ok())
                .map_or(0, |l: usize| l + 1);
            let slot =
                out.entry((layer, name.clone())).or_insert_with(|| Output { name, shape, parts: Vec::new() });
            match expert {
                None => slot.parts.push(part),
                Some(e) => {
                    // Names sort `10` before `2`, so experts are placed by number.
                    if slot.parts.len() <= e {
                        slot.parts.resize(e + 1, Part::whole(""));
                    }
                    slot.parts[e] = part;
                }
            }
        }
    }
    let mut all: Vec<Output> = out.into_values().collect();
    for output in &mut all {
        if let Some(missing) = output.parts.iter().position(|p| p.source.is_empty()) {
            return Err(Error::at(
                format!("tensor {}", output.name),
                format!("expert `{missing}` is missing"),
            ));
        }
        if output.name == NGRAM_TABLE {
            output.shape[0] = ngram_rows(model, output);
        } else if output.parts.len() > 1 {
            output.shape.insert(0, output.parts.len());
        } else if output.name.contains("_exps.") && output.shape.len() < 3 && output.name.ends_with(".weight")
        {
            output.shape.insert(0, 1);
        }
    }
    Ok(all)
}

/// GGUF placements of one tensor. Companion scale tensors have none: dequantization applies them.
fn placements(
    model: &Checkpoint,
    architecture: &Architecture,
    config: &Json,
    view: &TensorView<'_>,
) -> Result<Vec<Placement>> {
    let (name, shape) = (view.name, view.shape.to_vec());
    if name.ends_with("_scale_inv") || name.ends_with("_scales") {
        return Ok(Vec::new());
    }
    // A copy of the tied embedding is dropped.
    if name == "lm_head.weight"
        && model.config().get("tie_word_embeddings").and_then(Json::as_bool) == Some(true)
        && model
            .tensor("model.embed_tokens.weight")
            .is_some_and(|e| (e.dtype, e.bytes) == (view.dtype, view.bytes))
    {
        return Ok(Vec::new());
    }
    let change = match architecture.gguf.transform(name) {
        None | Some(Transform::Identity) => Change::None,
        Some(Transform::PlusOne) => Change::PlusOne,
        Some(Transform::InterleavePairs { heads }) => {
            Change::Pairs(size(config, heads).or_else(|_| size(config, "num_attention_heads"))?)
        }
        Some(Transform::SkipPaddingRows) => return position_table(architecture, config, name, &shape),
        Some(Transform::SplitLatent) => return latent(config, name, &shape),
        Some(Transform::SplitExperts) => return split_experts(name, &shape),
        Some(Transform::SplitIndexer) => return split_indexer(architecture, config, name, &shape),
        Some(Transform::JoinParts) => return ngram_table_part(name, &shape),
        Some(Transform::SplitGateUp) => return split_gate_up(config, name, &shape),
        Some(transform) => return recurrent_tensors::placements(architecture, config, transform, view),
    };
    Ok(vec![Placement::of(architecture, name, shape, change)?])
}

/// The position table of RoBERTa, without the unused rows before position 0.
fn position_table(
    architecture: &Architecture,
    config: &Json,
    name: &str,
    shape: &[usize],
) -> Result<Vec<Placement>> {
    let skipped = skipped_position_rows(config).map_err(|e| Error::at("config.json", e))?;
    let [rows, width] = *shape else { return Err(Error::at(format!("tensor {name}"), "is not a matrix")) };
    let change = if skipped == 0 { Change::None } else { Change::SkipRows(skipped) };
    let kept = vec![rows.saturating_sub(skipped), width];
    Ok(vec![Placement::of(architecture, name, kept, change)?])
}

/// GGUF name of the table of n-gram embeddings, which joins all parts of the source.
const NGRAM_TABLE: &str = "per_layer_token_embd.weight";

/// Places the tensor `shard_N` as part N of the table of n-gram embeddings.
fn ngram_table_part(name: &str, shape: &[usize]) -> Result<Vec<Placement>> {
    let number = name.rsplit_once(".shard_").and_then(|(_, rest)| rest.strip_suffix(".weight")?.parse().ok());
    let number: usize = number.filter(|n| *n < MAX_PARTS).ok_or_else(|| unsupported_tensor(name))?;
    let part = Part::whole(name);
    Ok(vec![Placement { name: NGRAM_TABLE.into(), shape: shape.to_vec(), expert: Some(number), part }])
}

/// Exclusive upper bound of N in `shard_N`.
const MAX_PARTS: usize = 4096;

/// Total rows of the parts of a table.
fn ngram_rows(model: &Checkpoint, table: &Output) -> usize {
    let rows = |part: &Part| model.tensor(&part.source).and_then(|part| part.shape.first().copied());
    table.parts.iter().filter_map(rows).sum()
}

/// Splits the projection of Qwen4's indexer: the rows of the queries come first, then those of the
/// key.
fn split_indexer(
    architecture: &Architecture,
    config: &Json,
    name: &str,
    shape: &[usize],
) -> Result<Vec<Placement>> {
    let queries = size(config, "indexer_n_heads")?.saturating_mul(size(config, "indexer_head_dim")?);
    let bad = || Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`"));
    let [rows, columns] = *shape else { return Err(bad()) };
    let keys = rows.checked_sub(queries).filter(|keys| *keys > 0).ok_or_else(bad)?;
    let placed = |part: &str, rows: usize, change: Change| -> Result<Placement> {
        let target = name.replace("index_qk_proj", part);
        let mut placement = Placement::of(architecture, &target, vec![rows, columns], change)?;
        placement.part.source = name.to_owned();
        Ok(placement)
    };
    Ok(vec![
        placed("q_proj", queries, Change::FirstRows(queries))?,
        placed("k_proj", keys, Change::SkipRows(queries))?,
    ])
}

/// The number of a tensor's layer, and the rest of its name.
fn in_layer(name: &str) -> Result<(&str, &str)> {
    name.strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'))
        .ok_or_else(|| unsupported_tensor(name))
}

/// gpt-oss: the experts of a layer in one tensor, [expert, out, in] packed and [expert, in, out] as
/// floats, with gate and up interleaved.
fn split_experts(name: &str, shape: &[usize]) -> Result<Vec<Placement>> {
    let (layer, rest) = in_layer(name)?;
    let transposed = !name.ends_with("_blocks") && !name.ends_with("_bias");
    let out = |stem: &str, suffix: &str, shape: Vec<usize>, change| {
        let source = name.strip_suffix("_blocks").unwrap_or(name).to_owned();
        let part = Part { source, transposed, change };
        Placement { name: format!("blk.{layer}.{stem}.{suffix}"), shape, expert: None, part }
    };
    let bad = || Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`"));
    // [expert, out, in], for both the packed and the float layout.
    let logical = || match *shape {
        [e, o, blocks, 16] => Ok([e, o, blocks * 32]),
        [e, i, o] => Ok([e, o, i]),
        _ => Err(bad()),
    };
    match rest.strip_prefix("mlp.experts.").unwrap_or_default() {
        "gate_up_proj" | "gate_up_proj_blocks" => {
            let [e, o, i] = logical()?;
            Ok(vec![
                out("ffn_gate_exps", "weight", vec![e, o / 2, i], Change::EverySecond(0)),
                out("ffn_up_exps", "weight", vec![e, o / 2, i], Change::EverySecond(1)),
            ])
        }
        "down_proj" | "down_proj_blocks" => {
            let [e, o, i] = logical()?;
            Ok(vec![out("ffn_down_exps", "weight", vec![e, o, i], Change::None)])
        }
        "gate_up_proj_bias" => {
            let [e, o] = *shape else { return Err(bad()) };
            Ok(vec![
                out("ffn_gate_exps", "bias", vec![e, o / 2], Change::EverySecond(0)),
                out("ffn_up_exps", "bias", vec![e, o / 2], Change::EverySecond(1)),
            ])
        }
        "down_proj_bias" => Ok(vec![out("ffn_down_exps", "bias", shape.to_vec(), Change::None)]),
        _ => Err(unsupported_tensor(name)),
    }
}

/// Splits a fused gate and up projection, the gate's rows first: that of all experts of a layer, or
/// of Granite's shared MLP. Their down projections are only renamed.
fn split_gate_up(config: &Json, name: &str, shape: &[usize]) -> Result<Vec<Placement>> {
    let (layer, rest) = in_layer(name)?;
    let bad = || Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`"));
    let routed = config.get("num_local_experts").and_then(Json::as_u64).unwrap_or(0) > 0;
    let shared = if routed { "_shexp" } else { "" };
    let (is_fused, suffix) = match rest {
        "shared_mlp.input_linear.weight" => (true, shared),
        "shared_mlp.output_linear.weight" => (false, shared),
        "block_sparse_moe.input_linear.weight" | "mlp.experts.gate_up_proj" => (true, "_exps"),
        "block_sparse_moe.output_linear.weight" | "mlp.experts.down_proj" => (false, "_exps"),
        _ => return Err(unsupported_tensor(name)),
    };
    let placement = |stem: &str, shape: Vec<usize>, change| {
        let part = Part { change, ..Part::whole(name) };
        Placement { name: format!("blk.{layer}.{stem}{suffix}.weight"), shape, expert: None, part }
    };
    if !is_fused {
        return Ok(vec![placement("ffn_down", shape.to_vec(), Change::None)]);
    }
    let rows = shape.len().checked_sub(2).and_then(|at| shape.get(at)).copied().ok_or_else(bad)?;
    if !rows.is_multiple_of(2) {
        return Err(bad());
    }
    let mut half = shape.to_vec();
    half[shape.len() - 2] = rows / 2;
    let of = |second| Change::Half { rows, second };
    Ok(vec![placement("ffn_gate", half.clone(), of(false)), placement("ffn_up", half, of(true))])
}

fn latent(config: &Json, name: &str, shape: &[usize]) -> Result<Vec<Placement>> {
    let (heads, keys, values) = (
        size(config, "num_attention_heads")?,
        size(config, "qk_nope_head_dim")?,
        size(config, "v_head_dim")?,
    );
    let [rows, rank] = *shape else { return Err(Error::at(format!("tensor {name}"), "is not a matrix")) };
    if heads.checked_mul(keys + values) != Some(rows) {
        return Err(Error::at(
            format!("tensor {name}"),
            format!("{rows} rows do not fit the config's heads"),
        ));
    }
    let (layer, _) = in_layer(name)?;
    let part = |change| Part { change, ..Part::whole(name) };
    Ok(vec![
        Placement {
            name: format!("blk.{layer}.attn_k_b.weight"),
            shape: vec![heads, rank, keys],
            expert: None,
            part: part(Change::LatentKeys { heads, keys, values }),
        },
        Placement {
            name: format!("blk.{layer}.attn_v_b.weight"),
            shape: vec![heads, values, rank],
            expert: None,
            part: part(Change::LatentValues { heads, keys, values }),
        },
    ])
}
