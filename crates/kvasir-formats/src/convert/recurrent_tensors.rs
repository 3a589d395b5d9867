//! GGUF placement of the tensors of recurrent layers, and of tensors with folded factors: names, shapes
//! and the change of values.

use crate::convert::output::{Change, Part};
use crate::convert::placed::{Placed, size, unplaced};
use crate::convert::recurrent_values::{DeltaSizes, Recurrence, RowFactors};
use crate::error::{Error, Result};
use crate::gguf::names::Naming;
use crate::tensor::TensorView;
use kvasir_program::{Architecture, HeadOrder, Transform};
use serde_json::Value as Json;

/// GGUF placement of a tensor of a recurrent layer, or of a tensor with folded factors.
pub(super) fn placed(
    architecture: &Architecture,
    config: &Json,
    transform: Transform,
    view: &TensorView<'_>,
) -> Result<Vec<Placed>> {
    let (name, shape) = (view.name, view.shape);
    let bad = || Error::at(format!("tensor {name}"), format!("has the shape `{shape:?}`"));
    let squeezed = || match *shape {
        [channels, 1, kernel] => Ok(vec![channels, kernel]),
        _ => Err(bad()),
    };
    let column = || match *shape {
        [heads] => Ok(vec![heads, 1]),
        _ => Err(bad()),
    };
    let (shape, change) = match transform {
        Transform::SqueezeConvolution => (squeezed()?, Change::None),
        Transform::DecayRate { column: true } => (column()?, Change::Recurrent(Recurrence::Rate)),
        Transform::DecayRate { column: false } => (shape.to_vec(), Change::Recurrent(Recurrence::Rate)),
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
        Transform::TileHeads(order) => {
            let sizes = delta_sizes(config)?;
            check_heads(sizes, order, shape).ok_or_else(bad)?;
            let shape = if shape.len() == 3 { squeezed()? } else { shape.to_vec() };
            (shape, Change::Recurrent(Recurrence::Tiled(sizes, order)))
        }
        Transform::SplitKeyHeads => return by_key_head(config, view),
        Transform::FoldFactors => (shape.to_vec(), scaled(config, name, shape)?),
        _ => return Err(unplaced(name)),
    };
    let found = Naming::of(architecture).to_gguf(name);
    let (gguf_name, expert) = found.ok_or_else(|| unplaced(name))?;
    Ok(vec![(gguf_name, shape, expert, Part { change, ..Part::whole(name) })])
}

/// Reads the sizes from a config.
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

/// `None` unless the shape has the value heads where `order` says.
fn check_heads(sizes: DeltaSizes, order: HeadOrder, shape: &[usize]) -> Option<()> {
    let (rows, columns) = (*shape.first()?, *shape.last()?);
    let heads = sizes.key_heads * sizes.ratio;
    let fits = match order {
        HeadOrder::Rows | HeadOrder::Rates => rows == heads || rows == sizes.values(),
        HeadOrder::BehindKeys => rows == 2 * sizes.keys() + sizes.values(),
        HeadOrder::Columns => columns == sizes.values(),
    };
    fits.then_some(())
}

/// Qwen3-Next's projection of q, k, v and z.
fn by_key_head(config: &Json, view: &TensorView<'_>) -> Result<Vec<Placed>> {
    let sizes = delta_sizes(config)?;
    let bad = || Error::at(format!("tensor {}", view.name), format!("has the shape `{:?}`", view.shape));
    let [rows, columns] = *view.shape else { return Err(bad()) };
    if rows != 2 * (sizes.keys() + sizes.values()) {
        return Err(bad());
    }
    let prefix = view.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let layer = prefix.ok_or_else(|| unplaced(view.name))?;
    let part = |recurrence| Part { change: Change::Recurrent(recurrence), ..Part::whole(view.name) };
    let inputs = 2 * sizes.keys() + sizes.values();
    Ok(vec![
        (
            format!("blk.{layer}.attn_qkv.weight"),
            vec![inputs, columns],
            None,
            part(Recurrence::Inputs(sizes)),
        ),
        (
            format!("blk.{layer}.attn_gate.weight"),
            vec![sizes.values(), columns],
            None,
            part(Recurrence::Gates(sizes)),
        ),
    ])
}

/// The factors of Falcon-H1 that act on a tensor's outputs, and for weights on its inputs.
fn scaled(config: &Json, name: &str, shape: &[usize]) -> Result<Change> {
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
