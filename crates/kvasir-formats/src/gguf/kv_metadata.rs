//! KV cache geometry (`kv_cache.*` metadata) of GGUF files: writing and validation against the
//! model.

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::gguf::value::{Array, Value};
use crate::gguf::writer::Writer;
use kvasir_kv::{Fact, KvFacts, LayerForm};
use kvasir_program::LayerFacts;
use std::collections::BTreeMap;

/// Per-token K and V geometry of a program's layers.
fn of_layers(layers: &[LayerFacts]) -> Result<KvFacts> {
    let small = |n: usize| {
        u32::try_from(n).map_err(|_| Error::at("KV cache geometry", "a layer's K or V is too wide"))
    };
    let form = |layer: &LayerFacts| {
        Ok(LayerForm {
            n_kv_heads: small(layer.kv_heads)?,
            head_dim: small(layer.key_dim)?,
            value_dim: if layer.value_in_key { 0 } else { small(layer.value_dim)? },
            index_dim: small(layer.index_dim)?,
            window: layer.window,
        })
    };
    Ok(KvFacts { layers: layers.iter().map(form).collect::<Result<_>>()? })
}

/// Writes the `kv_cache.*` keys for a program's layers.
pub(crate) fn write_kv_facts(layers: &[LayerFacts], out: &mut Writer) -> Result<()> {
    let mut facts = BTreeMap::new();
    of_layers(layers)?.write(&mut facts);
    for (key, fact) in facts {
        let small = |n: i64| u32::try_from(n).map_err(|_| Error::at(&key, format!("`{n}` is too large")));
        let value = match &fact {
            Fact::One(n) => Value::U32(small(*n)?),
            Fact::PerLayer(all) => {
                Value::Array(Array::of_u32(&all.iter().map(|&n| small(n)).collect::<Result<Vec<_>>>()?))
            }
        };
        out.set(&key, value);
    }
    Ok(())
}

/// Validates a file's `kv_cache.*` keys against its program.
///
/// Fails on unknown keys and on values that disagree. A file without such keys is valid: the
/// program has the geometry.
pub fn check_kv_facts(file: &Gguf, layers: &[LayerFacts]) -> Result<()> {
    let ours = file.metadata().iter().filter(|(key, _)| key.starts_with("kv_cache."));
    let facts = ours.map(|(key, value)| Ok((key.clone(), fact(key, value)?)));
    let facts: BTreeMap<_, _> = facts.collect::<Result<_>>()?;
    KvFacts::check(&facts, &of_layers(layers)?).map_err(|error| Error::at("metadata", error))
}

fn fact(key: &str, value: &Value) -> Result<Fact> {
    let int = |value: &Value| match value {
        Value::I8(n) => Ok(i64::from(*n)),
        Value::I16(n) => Ok(i64::from(*n)),
        Value::I32(n) => Ok(i64::from(*n)),
        Value::I64(n) => Ok(*n),
        value => {
            let n = value.as_u64().and_then(|n| i64::try_from(n).ok());
            n.ok_or_else(|| Error::at(key, "must be an integer or a list of integers"))
        }
    };
    match value {
        Value::Array(all) if all.len() > 1 << 16 => Err(Error::at(key, "has too many values")),
        Value::Array(all) => {
            Ok(Fact::PerLayer(all.scalars().map(|value| int(&value)).collect::<Result<_>>()?))
        }
        value => Ok(Fact::One(int(value)?)),
    }
}
