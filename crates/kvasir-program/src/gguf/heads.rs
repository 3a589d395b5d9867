//! Metadata of multi-head and grouped-query attention (GQA): K/V heads, head width, partial rotary.

use crate::builder::config::Config;
use crate::builder::rope_config::rotated;
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::writer::MetadataWriter;
use serde_json::Value as Json;

const KV_HEADS: &str = "attention.head_count_kv";

pub(crate) const HEADS: &[Rule] = &[Rule::Code { read, write }];

/// Biases on the query, key and value projections.
pub(crate) const QKV_BIAS: &[Rule] =
    &[Rule::HasTensor { config: "attention_bias", tensor: "blk.0.attn_q.bias" }];

/// One sliding window, of all layers or of those that a pattern names; 0 is none.
pub(crate) const WINDOW: &[Rule] = &[Rule::Code { read: read_window, write: write_window }];

/// A soft cap on the logits.
pub(crate) const LOGIT_CAP: &[Rule] =
    &[Rule::float("final_logit_softcapping", "final_logit_softcapping", Absent::Omit)];

fn read(r: &mut ConfigReader<'_>) -> Result<()> {
    let kv = r.number(KV_HEADS).or_else(|| r.number("attention.head_count"));
    r.set("num_key_value_heads", kv.unwrap_or(Json::Null));
    // An explicit null: the width then is hidden_size / heads, whatever the architecture's default.
    let width = r.number("attention.key_length");
    r.set("head_dim", width.unwrap_or(Json::Null));
    let width = r
        .uint("attention.key_length")
        .or_else(|| r.uint("embedding_length")?.checked_div(r.uint("attention.head_count")?));
    if let (Some(rotated), Some(width)) = (r.uint("rope.dimension_count"), width)
        && rotated <= width
    {
        r.set("partial_rotary_factor", rotated as f64 / width as f64);
    }
    Ok(())
}

fn write(w: &mut MetadataWriter<'_>) -> Result<()> {
    let heads = w.config.size("num_attention_heads")?;
    let width = match w.config.opt_size("head_dim")? {
        Some(width) => width,
        None => w.config.size("hidden_size")? / heads,
    };
    let kv = w.config.size_or("num_key_value_heads", heads)?;
    w.count(KV_HEADS, kv);
    w.count("attention.key_length", width);
    w.count("attention.value_length", width);
    let share = w.rope_float("partial_rotary_factor").unwrap_or(1.0);
    w.count("rope.dimension_count", rotated(width, share));
    Ok(())
}

/// Reads the kind of each layer of a hybrid model: a layer with 0 KV heads is `recurrent`, any other
/// `attention`. The attention layers must have equal numbers of KV heads.
pub(crate) fn read_hybrid_layers(r: &mut ConfigReader<'_>, recurrent: &str, attention: &str) -> Result<()> {
    let heads = r.uints(KV_HEADS).ok_or_else(|| ConfigReader::missing(KV_HEADS))?;
    let kinds: Vec<_> = heads.iter().map(|n| if *n == 0 { recurrent } else { attention }).collect();
    r.set("layer_types", kinds);
    if let Some(count) = heads.iter().copied().find(|n| *n > 0) {
        if heads.iter().any(|n| *n > 0 && *n != count) {
            let why = "differs between attention layers, which is not supported";
            return Err(ProgramError::metadata(KV_HEADS, why));
        }
        r.set("num_key_value_heads", count);
    }
    Ok(())
}

/// Writes the KV heads of each layer of a hybrid model, 0 where `recurrent_layers` is true.
pub(crate) fn write_hybrid_layers(
    w: &mut MetadataWriter<'_>,
    recurrent_layers: fn(Config<'_>) -> Result<Vec<bool>>,
) -> Result<()> {
    let heads = w.config.size("num_key_value_heads")?;
    let recurrent = recurrent_layers(w.config)?;
    let all: Vec<usize> =
        recurrent.iter().map(|is_recurrent| if *is_recurrent { 0 } else { heads }).collect();
    w.counts(KV_HEADS, &all);
    Ok(())
}

fn read_window(r: &mut ConfigReader<'_>) -> Result<()> {
    let window = r.uint("attention.sliding_window").filter(|window| *window > 0);
    r.set("sliding_window", window);
    Ok(())
}

fn write_window(w: &mut MetadataWriter<'_>) -> Result<()> {
    if w.config.flag_or("use_sliding_window", true)? {
        w.copy_count("attention.sliding_window", "sliding_window")?;
    }
    Ok(())
}
