//! GGUF metadata of encoders: pooling, token types, position tables, alternating local attention.

use crate::builder::position_table::skipped_rows;
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule, write_nothing};
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::Value as Json;

/// Pooling of an embedding model, if the file has `pooling_type`.
pub(crate) const POOLING: &[Rule] = &[Rule::Code { read: read_pooling, write: write_pooling }];

/// Bidirectional attention.
pub(crate) const BIDIRECTIONAL: &[Rule] = &[Rule::Code { read: read_causal, write: write_causal }];

/// Token types and learned positions.
pub(crate) const EMBEDDING_TABLES: &[Rule] = &[
    Rule::Code { read: read_token_types, write: write_nothing },
    Rule::Code { read: read_nothing, write: write_positions },
];

/// Window, layer pattern and RoPE thetas of alternating local and global layers.
pub(crate) const LOCAL_ATTENTION: &[Rule] = &[
    Rule::count("attention.sliding_window", "local_attention", Absent::Omit),
    Rule::Code { read: read_window_pattern, write: write_window_pattern },
    Rule::Code { read: read_thetas, write: write_thetas },
];

const POOLING_TYPE: &str = "pooling_type";
/// Values of `pooling_type` (`llama_pooling_type`), and their names under `pooling_mode`.
const POOLING_TYPES: [(u64, &str); 3] = [(1, "mean"), (2, "cls"), (3, "lasttoken")];
/// The `pooling_type` of a model with a classification head.
const POOLING_RANK: u32 = 4;

fn read_pooling(r: &mut ConfigReader<'_>) -> Result<()> {
    let Some(number) = r.uint(POOLING_TYPE) else { return Ok(()) };
    match POOLING_TYPES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => r.set("pooling_mode", *name),
        // 0 is `none`: the config default applies.
        None if number == 0 || number == u64::from(POOLING_RANK) => {}
        None => {
            return Err(ProgramError::metadata(POOLING_TYPE, format!("is {number}, which is not supported")));
        }
    }
    Ok(())
}

fn write_pooling(w: &mut MetadataWriter<'_>) -> Result<()> {
    if (w.has_tensor)("classifier.out_proj.weight") {
        w.set(POOLING_TYPE, MetadataValue::Count(POOLING_RANK));
        return Ok(());
    }
    let name = w.config.text("pooling_mode")?;
    if let Some((number, _)) = POOLING_TYPES.iter().find(|(_, known)| Some(*known) == name) {
        w.set(POOLING_TYPE, MetadataValue::Count(*number as u32));
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

fn read_token_types(r: &mut ConfigReader<'_>) -> Result<()> {
    let rows = r.file.shape("token_types.weight").and_then(|shape| shape.first().copied());
    r.set("type_vocab_size", rows.unwrap_or(1));
    Ok(())
}

/// The common rules already read `context_length`, which is the number of stored rows.
fn read_nothing(_: &mut ConfigReader<'_>) -> Result<()> {
    Ok(())
}

/// The skipped rows are not stored, so `context_length` is less than `max_position_embeddings`.
fn write_positions(w: &mut MetadataWriter<'_>) -> Result<()> {
    let skipped = skipped_rows(w.config)?;
    let positions = w.config.size("max_position_embeddings")?.saturating_sub(skipped);
    w.count("context_length", positions);
    Ok(())
}

const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

fn read_window_pattern(r: &mut ConfigReader<'_>) -> Result<()> {
    match r.file.value(WINDOW_PATTERN) {
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

fn write_window_pattern(w: &mut MetadataWriter<'_>) -> Result<()> {
    match w.config.texts("layer_types")? {
        Some(kinds) => {
            let local = kinds.into_iter().map(|kind| kind == "sliding_attention").collect();
            w.set(WINDOW_PATTERN, MetadataValue::Flags(local));
        }
        None => w.copy_count(WINDOW_PATTERN, "global_attn_every_n_layers")?,
    }
    Ok(())
}

/// Metadata keys of the RoPE thetas, and their config keys.
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
