//! Metadata of RoPE: base, scaling, and the tensors that hold frequency divisors.

use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::Rule;
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::{Value as Json, json};
use std::f64::consts::TAU;

pub(crate) const ROPE: &[Rule] = &[Rule::Code { read, write }];

/// Divisors of frequencies for all lengths (Llama 3).
const DIVISORS: &str = "rope_freqs.weight";
/// LongRoPE's divisors.
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

const ORIGINAL: &str = "rope.scaling.original_context_length";

/// Keys of YaRN that both sides have.
const YARN: [(&str, &str); 3] = [
    ("rope.scaling.yarn_beta_fast", "beta_fast"),
    ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ("rope.scaling.yarn_attn_factor", "attention_factor"),
];

fn read(r: &mut ConfigReader<'_>) -> Result<()> {
    let base = r.number("rope.freq_base").unwrap_or(json!(10_000.0));
    r.set("rope_theta", base);
    let original = r.number(ORIGINAL);
    if let Some(long) = r.file.floats(LONG)? {
        let short = r.file.floats(SHORT)?.unwrap_or_else(|| long.clone());
        let kind = "longrope";
        r.set(
            "rope_scaling",
            json!({"rope_type": kind, "type": kind, "long_factor": long, "short_factor": short}),
        );
        original.into_iter().for_each(|original| r.set_scaling("original_max_position_embeddings", original));
        return Ok(());
    }
    if let Some(divisors) = r.file.floats(DIVISORS)? {
        // Equivalent to longrope with a single factor list and no attention scaling.
        let max = r.config.get("max_position_embeddings").cloned();
        let scaling = json!({
            "rope_type": "longrope", "type": "longrope", "long_factor": divisors, "short_factor": divisors,
            "attention_factor": 1.0, "original_max_position_embeddings": max,
        });
        r.set("rope_scaling", scaling);
        return Ok(());
    }
    let factor = r.number("rope.scaling.factor").or_else(|| r.number("rope.scale_linear"));
    let scales = factor.as_ref().and_then(Json::as_f64).is_some_and(|f| f != 0.0 && f != 1.0);
    let kind = r.file.value("rope.scaling.type");
    match kind.as_ref().and_then(Json::as_str).or(scales.then_some("linear")) {
        Some("linear") => {
            r.set("rope_scaling", json!({"rope_type": "linear", "type": "linear", "factor": factor}));
        }
        Some("yarn") => {
            let scaling = json!({
                "rope_type": "yarn", "type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            });
            r.set("rope_scaling", scaling);
            for (key, config) in YARN {
                r.number(key).into_iter().for_each(|value| r.set_scaling(config, value));
            }
        }
        None | Some("none" | "longrope") => {}
        Some(other) => {
            return Err(ProgramError::metadata(
                "rope.scaling.type",
                format!("is {other:?}, which is not supported"),
            ));
        }
    }
    Ok(())
}

fn write(w: &mut MetadataWriter<'_>) -> Result<()> {
    w.rope_float("rope_theta").into_iter().for_each(|theta| w.float("rope.freq_base", theta));
    let kind = w.rope_value("rope_type").or_else(|| w.rope_value("type"));
    let kind = kind.and_then(Json::as_str).unwrap_or("default");
    let original = w.rope_value("original_max_position_embeddings").and_then(Json::as_u64);
    if let (Some(n), "yarn" | "longrope" | "su") = (original, kind) {
        w.count(ORIGINAL, usize::try_from(n).unwrap_or(usize::MAX));
    }
    match kind {
        // The divisors of a proportional rope are written by the architecture: they depend on the
        // width of its full layers' heads.
        "default" | "proportional" => {}
        "linear" | "yarn" => {
            w.set("rope.scaling.type", MetadataValue::Text(if kind == "yarn" { "yarn" } else { "linear" }));
            w.rope_float("factor").into_iter().for_each(|factor| w.float("rope.scaling.factor", factor));
            if kind == "yarn" {
                for (key, config) in YARN {
                    w.rope_float(config).into_iter().for_each(|value| w.float(key, value));
                }
            }
        }
        "llama3" => {
            let divisors = llama3(w)?;
            w.written.tensors.push((DIVISORS, divisors));
        }
        "longrope" | "su" => {
            let (long, short) = (list(w, "long_factor")?, list(w, "short_factor")?);
            w.written.tensors.extend([(LONG, long), (SHORT, short)]);
            let original = original.unwrap_or(1).max(2) as f64;
            let stretched = w.config.size("max_position_embeddings")? as f64 / original;
            let amplitude = if stretched > 1.0 { (1.0 + stretched.ln() / original.ln()).sqrt() } else { 1.0 };
            let amplitude = w.rope_float("attention_factor").unwrap_or(amplitude);
            w.float("rope.scaling.attn_factor", amplitude);
        }
        other => {
            return Err(w
                .config
                .bad("rope_type", format!("is {other:?}, which cannot be represented in GGUF")));
        }
    }
    Ok(())
}

fn list(w: &MetadataWriter<'_>, key: &str) -> Result<Vec<f32>> {
    let list = w.rope_value(key).and_then(Json::as_array);
    let list = list.and_then(|all| all.iter().map(|v| v.as_f64().map(|f| f as f32)).collect());
    list.ok_or_else(|| w.config.bad(key, "is not a list of numbers"))
}

/// Llama 3 RoPE frequency divisors: 1 for short wavelengths, `factor` for long ones, interpolated
/// between.
fn llama3(w: &MetadataWriter<'_>) -> Result<Vec<f32>> {
    let get = |key: &str| w.rope_float(key).ok_or_else(|| w.config.bad(key, "is missing"));
    let (factor, low, high) = (get("factor")?, get("low_freq_factor")?, get("high_freq_factor")?);
    let original = get("original_max_position_embeddings")?;
    let base = w.rope_float("rope_theta").unwrap_or(10_000.0);
    let width = match w.config.opt_size("head_dim")? {
        Some(width) => width,
        None => w.config.size("hidden_size")? / w.config.size("num_attention_heads")?,
    };
    let divisor = |i: usize| {
        let wave = TAU * base.powf(2.0 * i as f64 / width as f64);
        if wave < original / high {
            1.0
        } else if wave > original / low {
            factor as f32
        } else {
            let smooth = (original / wave - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        }
    };
    Ok((0..width / 2).map(divisor).collect())
}
