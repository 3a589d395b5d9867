//! GGUF placements of the tensors of recurrent layers, and of tensors with folded factors: names,
//! shapes and value changes.

use crate::convert::output::{Change, Part};
use crate::convert::placement::{Placement, size, unsupported_tensor};
use crate::convert::recurrent_values::{DeltaSizes, RecurrentChange, RowFactors};
use crate::error::{Error, Result};
use crate::tensor::TensorView;
use kvasir_program::{Architecture, HeadLocation, Transform};
use serde_json::Value as Json;

/// GGUF placements of a tensor of a recurrent layer, or of a tensor with folded factors.
pub(super) fn placements(
    architecture: &Architecture,
    config: &Json,
    transform: Transform,
    view: &TensorView<'_>,
) -> Result<Vec<Placement>> {
    let (name, shape) = (view.name, view.shape);
    let bad = || Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`"));
    let squeezed = || match *shape {
        [channels, 1, kernel] => Ok(vec![channels, kernel]),
        _ => Err(bad()),
    };
    let column = || match *shape {
        [heads] | [1, 1, heads, 1] => Ok(vec![heads, 1]),
        _ => Err(bad()),
    };
    let (shape, change) = match transform {
        Transform::SqueezeConvolution => (squeezed()?, Change::None),
        Transform::DecayRate { column: true } => (column()?, Change::Recurrent(RecurrentChange::DecayRate)),
        Transform::DecayRate { column: false } => {
            (shape.to_vec(), Change::Recurrent(RecurrentChange::DecayRate))
        }
        Transform::Column => (column()?, Change::None),
        Transform::NormGroups { groups } => {
            let groups = size(config, groups)?;
            match *shape {
                [width] if groups > 0 && width.is_multiple_of(groups) => {
                    (vec![groups, width / groups], Change::None)
                }
                _ => return Err(bad()),
            }
        }
        Transform::TileHeads(location) => {
            let sizes = delta_sizes(config)?;
            check_heads(sizes, location, shape).ok_or_else(bad)?;
            let shape = if shape.len() == 3 { squeezed()? } else { shape.to_vec() };
            (shape, Change::Recurrent(RecurrentChange::TileHeads(sizes, location)))
        }
        Transform::SplitKeyHeads => return split_key_heads(config, view),
        Transform::FoldFactors => (shape.to_vec(), fold_factors(config, name, shape)?),
        _ => return Err(unsupported_tensor(name)),
    };
    Ok(vec![Placement::of(architecture, name, shape, change)?])
}

/// Reads the head sizes of the gated delta rule from a config.
fn delta_sizes(config: &Json) -> Result<DeltaSizes> {
    let (keys, values) = (size(config, "linear_num_key_heads")?, size(config, "linear_num_value_heads")?);
    if keys == 0 || !values.is_multiple_of(keys) {
        let why = format!("is {values}, not a multiple of {keys} key heads");
        return Err(Error::at("config.json: linear_num_value_heads", why));
    }
    Ok(DeltaSizes {
        key_heads: keys,
        ratio: values / keys,
        key_dim: size(config, "linear_key_head_dim")?,
        value_dim: size(config, "linear_value_head_dim")?,
    })
}

/// `None` if the shape does not have the value heads at `location`.
fn check_heads(sizes: DeltaSizes, location: HeadLocation, shape: &[usize]) -> Option<()> {
    let (rows, columns) = (*shape.first()?, *shape.last()?);
    let heads = sizes.key_heads * sizes.ratio;
    let fits = match location {
        HeadLocation::Rows | HeadLocation::DecayRates => rows == heads || rows == sizes.value_width(),
        HeadLocation::RowsAfterKeys => rows == 2 * sizes.key_width() + sizes.value_width(),
        HeadLocation::Columns => columns == sizes.value_width(),
    };
    fits.then_some(())
}

/// Splits Qwen3-Next's projection, whose rows are q, k, v and z of each key head, into q, k, v and
/// z.
fn split_key_heads(config: &Json, view: &TensorView<'_>) -> Result<Vec<Placement>> {
    let sizes = delta_sizes(config)?;
    let bad = || Error::at(format!("tensor {}", view.name), format!("has the shape `{:?}`", view.shape));
    let [rows, columns] = *view.shape else { return Err(bad()) };
    if rows != 2 * (sizes.key_width() + sizes.value_width()) {
        return Err(bad());
    }
    let prefix = view.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let layer = prefix.ok_or_else(|| unsupported_tensor(view.name))?;
    let part = |change| Part { change: Change::Recurrent(change), ..Part::whole(view.name) };
    let qkv_rows = 2 * sizes.key_width() + sizes.value_width();
    Ok(vec![
        Placement {
            name: format!("blk.{layer}.attn_qkv.weight"),
            shape: vec![qkv_rows, columns],
            expert: None,
            part: part(RecurrentChange::SelectQkv(sizes)),
        },
        Placement {
            name: format!("blk.{layer}.attn_gate.weight"),
            shape: vec![sizes.value_width(), columns],
            expert: None,
            part: part(RecurrentChange::SelectZ(sizes)),
        },
    ])
}

/// The multipliers of Falcon-H1 that are folded into a tensor: of its outputs, and for weights also
/// of its inputs.
fn fold_factors(config: &Json, name: &str, shape: &[usize]) -> Result<Change> {
    let one = |key: &str| config.get(key).and_then(Json::as_f64).unwrap_or(1.0);
    let nth = |key: &str, n: usize| config.get(key).and_then(|all| all.get(n)?.as_f64()).unwrap_or(1.0);
    let rows = shape.first().copied().unwrap_or(0);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let input = |factor: f64| if name.ends_with(".bias") { 1.0 } else { factor };
    let (attention, mamba) = (input(one("attention_in_multiplier")), input(one("ssm_in_multiplier")));
    let part = |end: &str| stem.ends_with(end);
    let factor = match () {
        () if part("embed_tokens") => one("embedding_multiplier"),
        () if part("lm_head") => one("lm_head_multiplier"),
        () if part("self_attn.q_proj") || part("self_attn.v_proj") => attention,
        () if part("self_attn.k_proj") => attention * one("key_multiplier"),
        () if part("self_attn.o_proj") => one("attention_out_multiplier"),
        () if part("gate_proj") => nth("mlp_multipliers", 0),
        () if part("down_proj") => nth("mlp_multipliers", 1),
        () if part("mamba.out_proj") => one("ssm_out_multiplier"),
        () if part("mamba.in_proj") => {
            let (inner, heads) = (size(config, "mamba_d_ssm")?, size(config, "mamba_n_heads")?);
            let shared = size(config, "mamba_n_groups")? * size(config, "mamba_d_state")?;
            let parts = [inner, inner, shared, shared, heads];
            if parts.iter().sum::<usize>() != rows {
                return Err(Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`")));
            }
            let factors = [0, 1, 2, 3, 4].map(|n| mamba * nth("ssm_multipliers", n));
            return Ok(Change::Scaled(RowFactors { rows: parts, factors }));
        }
        () => 1.0,
    };
    if factor == 1.0 {
        return Ok(Change::None);
    }
    Ok(Change::Scaled(RowFactors { rows: [rows, 0, 0, 0, 0], factors: [factor; 5] }))
}
