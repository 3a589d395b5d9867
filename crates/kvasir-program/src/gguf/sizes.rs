//! Metadata common to all architectures: sizes, vocabulary, prediction layers.

use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::writer::MetadataWriter;

pub(crate) const SIZES: &[Rule] = &[
    Rule::count("embedding_length", "hidden_size", Absent::Fail),
    Rule::count("attention.head_count", "num_attention_heads", Absent::Fail),
    Rule::count("context_length", "max_position_embeddings", Absent::Fail),
    Rule::Code { read: read_epsilon, write: write_epsilon },
    Rule::count("feed_forward_length", "intermediate_size", Absent::Omit),
    Rule::Code { read: read_layers, write: write_layers },
    Rule::Code { read: read_vocabulary, write: write_vocabulary },
];

/// Metadata and config keys of the norm epsilons. Some hybrid models store the epsilon of their
/// RMSNorms under the LayerNorm key.
const EPSILONS: [(&str, &str); 2] = [
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
];

fn read_epsilon(r: &mut ConfigReader<'_>) -> Result<()> {
    let found = EPSILONS.into_iter().find_map(|(key, config)| Some((config, r.number(key)?)));
    let missing = || ConfigReader::missing(&EPSILONS.map(|(key, _)| key).join(" or "));
    let (config, epsilon) = found.ok_or_else(missing)?;
    r.set("rms_norm_eps", epsilon.clone());
    r.set(config, epsilon);
    Ok(())
}

fn write_epsilon(w: &mut MetadataWriter<'_>) -> Result<()> {
    for (key, config) in EPSILONS {
        if let Some(epsilon) = w.config.opt_float(config)? {
            w.float(key, epsilon);
            break;
        }
    }
    Ok(())
}

/// GGUF counts multi-token-prediction (MTP) layers as blocks.
fn read_layers(r: &mut ConfigReader<'_>) -> Result<()> {
    let (blocks, extra) = (r.required_uint("block_count")?, r.prediction_layers());
    r.set("num_hidden_layers", blocks.saturating_sub(extra));
    r.set("num_nextn_predict_layers", extra);
    Ok(())
}

fn write_layers(w: &mut MetadataWriter<'_>) -> Result<()> {
    let layers = w.config.number("num_hidden_layers")?;
    let extra = w.config.count("num_nextn_predict_layers")?;
    if extra > 0 && (w.has_tensor)(&format!("model.layers.{layers}.eh_proj.weight")) {
        w.count("block_count", layers + extra);
        w.count("nextn_predict_layers", extra);
    } else {
        w.count("block_count", layers);
    }
    Ok(())
}

fn read_vocabulary(r: &mut ConfigReader<'_>) -> Result<()> {
    let tensor = "token_embd.weight";
    let rows = r.file.shape(tensor).and_then(|shape| shape.first());
    let rows = *rows.ok_or_else(|| ProgramError::metadata(tensor, "is missing"))?;
    r.set("vocab_size", rows);
    r.set("tie_word_embeddings", !r.has("output.weight"));
    Ok(())
}

fn write_vocabulary(w: &mut MetadataWriter<'_>) -> Result<()> {
    let rows = w.config.size("vocab_size")?;
    w.count("vocab_size", rows);
    Ok(())
}
