//! Metadata of Gemma 4: what differs between its sliding-window (`…_swa`) and full layers.

use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule, write_nothing};
use crate::gguf::writer::MetadataWriter;
use serde_json::{Value as Json, json};

/// KV heads and head widths of sliding-window and full layers. A layer without a value projection
/// has V = K.
pub(crate) const HEADS: &[Rule] = &[Rule::Code { read: read_heads, write: write_heads }];

/// RoPE bases of sliding-window and full layers; infinite frequency divisors mark the unrotated
/// pairs of full layers.
pub(crate) const ROPES: &[Rule] = &[Rule::Code { read: read_ropes, write: write_ropes }];

/// MLP widths: layers with shared K/V may have an MLP of double width.
pub(crate) const DOUBLE_WIDE: &[Rule] = &[Rule::Code { read: read_widths, write: write_widths }];

pub(crate) const PER_LAYER_INPUT: &[Rule] = &[
    Rule::count("embedding_length_per_layer_input", "hidden_size_per_layer_input", Absent::Omit),
    Rule::Code { read: read_table_height, write: write_nothing },
];

pub(crate) const EXPERTS: &[Rule] = &[
    Rule::count("expert_count", "num_experts", Absent::Omit),
    Rule::count("expert_used_count", "num_experts_per_tok", Absent::Omit),
    Rule::count("expert_feed_forward_length", "moe_intermediate_size", Absent::Omit),
    Rule::HasTensor { config: "enable_moe_block", tensor: "blk.0.ffn_gate_inp.weight" },
];

/// The infinite frequency divisor of unrotated pairs.
const UNROTATED: f32 = 1e30;
const DIVISORS: &str = "rope_freqs.weight";
const WIDTHS: &str = "feed_forward_length";
const KV_HEADS: &str = "attention.head_count_kv";

/// Whether each layer has a sliding window, from the `layer_types` that an earlier rule has set.
fn sliding_layers(r: &ConfigReader<'_>) -> Vec<bool> {
    let types = r.config.get("layer_types").and_then(Json::as_array);
    types.into_iter().flatten().map(|kind| kind == "sliding_attention").collect()
}

fn read_heads(r: &mut ConfigReader<'_>) -> Result<()> {
    let full = r.required_uint("attention.key_length")?;
    r.set("global_head_dim", full);
    r.set("head_dim", r.uint("attention.key_length_swa").unwrap_or(full));
    let layers = sliding_layers(r);
    let heads = r.uints(KV_HEADS).ok_or_else(|| ConfigReader::missing(KV_HEADS))?;
    let first = |is_sliding: bool| {
        let found = layers.iter().zip(&heads).find(|(layer, _)| **layer == is_sliding);
        found.map(|(_, heads)| *heads)
    };
    let (sliding, full) = (first(true), first(false));
    r.set("num_key_value_heads", sliding.or(full));
    r.set("num_global_key_value_heads", full);
    let full_layer = layers.iter().position(|is_sliding| !is_sliding);
    let k_is_v = full_layer.is_some_and(|layer| !r.has(&format!("blk.{layer}.attn_v.weight")));
    if !k_is_v && sliding.is_some() && full.is_some() && sliding != full {
        let why =
            "differs between sliding-window and full layers with value projections, which is not supported";
        return Err(ProgramError::metadata(KV_HEADS, why));
    }
    r.set("attention_k_eq_v", k_is_v);
    Ok(())
}

fn write_heads(w: &mut MetadataWriter<'_>) -> Result<()> {
    let (full, sliding) = (w.config.size("global_head_dim")?, w.config.size("head_dim")?);
    for (key, value) in [("attention.key_length", full), ("attention.value_length", full)] {
        w.count(key, value);
    }
    for (key, value) in [("attention.key_length_swa", sliding), ("attention.value_length_swa", sliding)] {
        w.count(key, value);
    }
    let heads = w.config.size("num_key_value_heads")?;
    let k_is_v = w.config.flag_or("attention_k_eq_v", false)?;
    let full_heads = if k_is_v { w.config.size_or("num_global_key_value_heads", heads)? } else { heads };
    let all: Vec<usize> = config_sliding_layers(w)?
        .iter()
        .map(|is_sliding| if *is_sliding { heads } else { full_heads })
        .collect();
    w.counts(KV_HEADS, &all);
    w.count("rope.dimension_count", full);
    w.count("rope.dimension_count_swa", sliding);
    Ok(())
}

/// Whether each layer has a sliding window, from a config.
fn config_sliding_layers(w: &MetadataWriter<'_>) -> Result<Vec<bool>> {
    let count = w.config.number("num_hidden_layers")?;
    Ok(match w.config.texts("layer_types")? {
        Some(types) => types.into_iter().map(|kind| kind == "sliding_attention").collect(),
        None => (1..=count).map(|n| !n.is_multiple_of(6) && n < count).collect(),
    })
}

fn read_ropes(r: &mut ConfigReader<'_>) -> Result<()> {
    let base = r.number("rope.freq_base").unwrap_or(json!(1_000_000.0));
    let sliding = r.number("rope.freq_base_swa").unwrap_or(json!(10_000.0));
    let mut full = json!({"rope_type": "default", "rope_theta": base});
    if let Some(divisors) = r.file.floats(DIVISORS)? {
        let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
        if divisors[rotated..].iter().any(|divisor| *divisor < UNROTATED / 2.0) {
            let why = "is not a run of ones followed by infinite divisors, which is not supported";
            return Err(ProgramError::metadata(DIVISORS, why));
        }
        let fraction = rotated as f64 / divisors.len().max(1) as f64;
        full = json!({"rope_type": "proportional", "partial_rotary_factor": fraction, "rope_theta": base});
    }
    // An earlier rule has read the divisors as the RoPE scaling of all layers.
    r.config.remove("rope_scaling");
    r.config.remove("rope_theta");
    let sliding = json!({"rope_type": "default", "rope_theta": sliding});
    r.set("rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}

fn write_ropes(w: &mut MetadataWriter<'_>) -> Result<()> {
    let value = |path: &str| w.json.pointer(&format!("/rope_parameters/{path}"));
    let number = |path: &str| value(path).and_then(Json::as_f64);
    let base = number("full_attention/rope_theta").unwrap_or(1_000_000.0);
    let sliding = number("sliding_attention/rope_theta").unwrap_or(10_000.0);
    let kind = value("full_attention/rope_type").and_then(Json::as_str).unwrap_or("default").to_owned();
    let fraction = number("full_attention/partial_rotary_factor").unwrap_or(1.0);
    let factor = number("full_attention/factor").unwrap_or(1.0);
    w.float("rope.freq_base", base);
    w.float("rope.freq_base_swa", sliding);
    if kind == "proportional" && factor == 1.0 {
        let pairs = w.config.size("global_head_dim")? / 2;
        let rotated = ((pairs as f64 * fraction) as usize).min(pairs);
        let divisors = (0..pairs).map(|pair| if pair < rotated { 1.0 } else { UNROTATED }).collect();
        w.written.tensors.push((DIVISORS, divisors));
        return Ok(());
    }
    if kind == "default" && fraction == 1.0 {
        return Ok(());
    }
    let why =
        format!("is {kind:?} with `partial_rotary_factor` {fraction}, which cannot be represented in GGUF");
    Err(w.config.bad("rope_parameters.full_attention.rope_type", why))
}

fn read_widths(r: &mut ConfigReader<'_>) -> Result<()> {
    let widths = r.uints(WIDTHS).unwrap_or_default();
    let is_wide = widths.first() != widths.last();
    let shared = r.uint("attention.shared_kv_layers").unwrap_or(0) as usize;
    let first = widths.first().copied().unwrap_or(0);
    let writers = widths.len().saturating_sub(shared);
    let expected = |layer: usize| if is_wide && layer >= writers { 2 * first } else { first };
    if let Some(layer) = (0..widths.len()).find(|layer| widths[*layer] != expected(*layer)) {
        let why = format!("is {} in layer {layer}, which is not supported", widths[layer]);
        return Err(ProgramError::metadata(WIDTHS, why));
    }
    r.set("use_double_wide_mlp", is_wide);
    Ok(())
}

fn write_widths(w: &mut MetadataWriter<'_>) -> Result<()> {
    if w.config.flag_or("use_double_wide_mlp", false)? {
        let (layers, shared) =
            (w.config.number("num_hidden_layers")?, w.config.count("num_kv_shared_layers")?);
        let (width, writers) = (w.config.size("intermediate_size")?, layers.saturating_sub(shared));
        let all: Vec<usize> = (0..layers).map(|n| if n < writers { width } else { 2 * width }).collect();
        w.counts(WIDTHS, &all);
    }
    Ok(())
}

fn read_table_height(r: &mut ConfigReader<'_>) -> Result<()> {
    if let Some([height, _]) = r.file.shape("per_layer_token_embd.weight") {
        let height = *height;
        r.set("vocab_size_per_layer_input", height);
    }
    Ok(())
}
