//! Metadata of encoders: pooling, token types, local attention in both directions.

use crate::builder::position_table::skipped_rows;
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule, write_nothing};
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::Value as Json;

/// Pooling of an embedding model, where the file says it.
pub(crate) const POOLING: &[Rule] = &[Rule::Code { read: read_pooling, write: write_pooling }];

/// Bidirectional attention and pooling.
pub(crate) const ENCODER: &[Rule] = &[
    Rule::Code { read: read_pooling, write: write_pooling },
    Rule::Code { read: read_causal, write: write_causal },
];

/// The tables of token types and of positions.
pub(crate) const TABLES: &[Rule] = &[
    Rule::Code { read: read_types, write: write_nothing },
    Rule::Code { read: read_nothing, write: write_positions },
];

/// Local layers between global ones.
pub(crate) const LOCAL_ATTENTION: &[Rule] = &[
    Rule::count("attention.sliding_window", "local_attention", Absent::Omit),
    Rule::Code { read: read_pattern, write: write_pattern },
    Rule::Code { read: read_thetas, write: write_thetas },
];

const TYPE: &str = "pooling_type";
/// Pooling by its number in GGUF.
const BY_NUMBER: [(u64, &str); 3] = [(1, "mean"), (2, "cls"), (3, "lasttoken")];
/// A classification head.
const RANK: u32 = 4;

fn read_pooling(r: &mut ConfigReader<'_>) -> Result<()> {
    let Some(number) = r.uint(TYPE) else { return Ok(()) };
    match BY_NUMBER.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => r.set("pooling_mode", *name),
        // 0 leaves the choice to the reader.
        None if number == 0 || number == u64::from(RANK) => {}
        None => return Err(ProgramError::metadata(TYPE, format!("is {number}, which is not supported"))),
    }
    Ok(())
}

fn write_pooling(w: &mut MetadataWriter<'_>) -> Result<()> {
    if (w.has_tensor)("classifier.out_proj.weight") {
        w.set(TYPE, MetadataValue::Count(RANK));
        return Ok(());
    }
    let name = w.config.text("pooling_mode")?;
    if let Some((number, _)) = BY_NUMBER.iter().find(|(_, known)| Some(*known) == name) {
        w.set(TYPE, MetadataValue::Count(*number as u32));
    }
    Ok(())
}

fn read_causal(r: &mut ConfigReader<'_>) -> Result<()> {
    match r.flag("attention.causal") {
        Some(true) => Err(ProgramError::metadata("attention.causal", "is true, which is not supported")),
        _ => Ok(()),
    }
}

fn write_causal(w: &mut MetadataWriter<'_>) -> Result<()> {
    w.set("attention.causal", MetadataValue::Flag(false));
    Ok(())
}

fn read_types(r: &mut ConfigReader<'_>) -> Result<()> {
    let rows = r.file.shape("token_types.weight").and_then(|shape| shape.first().copied());
    r.set("type_vocab_size", rows.unwrap_or(1));
    Ok(())
}

/// The common rules read the context length, which is the number of rows.
fn read_nothing(_: &mut ConfigReader<'_>) -> Result<()> {
    Ok(())
}

/// Files hold no rows of the padding token, so the context is shorter than the config's table.
fn write_positions(w: &mut MetadataWriter<'_>) -> Result<()> {
    let skipped = skipped_rows(w.config)?;
    let positions = w.config.size("max_position_embeddings")?.saturating_sub(skipped);
    w.count("context_length", positions);
    Ok(())
}

const PATTERN: &str = "attention.sliding_window_pattern";

fn read_pattern(r: &mut ConfigReader<'_>) -> Result<()> {
    match r.file.value(PATTERN) {
        Some(Json::Array(local)) => {
            let is_local = |flag: &Json| flag.as_bool().unwrap_or(flag.as_u64() != Some(0));
            let kind = |flag: &Json| if is_local(flag) { "sliding_attention" } else { "full_attention" };
            let kinds: Vec<_> = local.iter().map(kind).collect();
            r.set("layer_types", kinds);
        }
        Some(every) if every.is_u64() => r.set("global_attn_every_n_layers", every),
        _ => {}
    }
    Ok(())
}

fn write_pattern(w: &mut MetadataWriter<'_>) -> Result<()> {
    match w.config.texts("layer_types")? {
        Some(kinds) => {
            let local = kinds.into_iter().map(|kind| kind == "sliding_attention").collect();
            w.set(PATTERN, MetadataValue::Flags(local));
        }
        None => w.copy_count(PATTERN, "global_attn_every_n_layers")?,
    }
    Ok(())
}

/// Metadata and config keys of the rotary bases.
const THETAS: [(&str, &str); 2] =
    [("rope.freq_base", "global_rope_theta"), ("rope.freq_base_swa", "local_rope_theta")];

fn read_thetas(r: &mut ConfigReader<'_>) -> Result<()> {
    for (key, config) in THETAS {
        if let Some(theta) = r.number(key) {
            r.set(config, theta);
        }
    }
    Ok(())
}

fn write_thetas(w: &mut MetadataWriter<'_>) -> Result<()> {
    for (key, config) in THETAS {
        if let Some(theta) = w.config.opt_float(config)? {
            w.float(key, theta);
        }
    }
    Ok(())
}
