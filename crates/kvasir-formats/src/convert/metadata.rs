//! Writes GGUF metadata from a Hugging Face config: dimensions, MoE routing, RoPE scaling and KV
//! cache geometry.
//!
//! The original config is also embedded verbatim (`kvasir.config`), since GGUF has no keys for some
//! of its fields.

use crate::checkpoint::Checkpoint;
use crate::config::from_gguf::GENERATION;
use crate::config::from_gguf::ORIGINAL;
use crate::convert::from_hf::{architecture, size};
use crate::error::{Error, Result};
use crate::gguf::kv_metadata::write_kv_facts;
use crate::gguf::names::is_latent;
use crate::gguf::value::Value;
use crate::gguf::writer::Writer;
use kvasir_program::{Architecture, Model};
use serde_json::Value as Json;

struct Meta<'a> {
    config: &'a Json,
    arch: &'static str,
    out: &'a mut Writer,
}

/// Writes the architecture's keys; returns the RoPE frequency divisors, which are stored as
/// tensors.
pub(super) fn write(model: &Checkpoint, out: &mut Writer) -> Result<Vec<(&'static str, Vec<f32>)>> {
    let config = model.config();
    let arch = architecture(config)?;
    let spelled_out =
        Architecture::of(config).map_err(|e| Error::at(model.path().display(), e))?.spelled_out(config);
    out.set("general.architecture", Value::Str(arch.into()));
    out.set("general.alignment", Value::U32(32));
    let name = model.path().file_name().and_then(|n| n.to_str()).unwrap_or("model");
    out.set("general.name", Value::Str(name.into()));
    let mut original = config.clone();
    if let Some(map) = original.as_object_mut() {
        map.remove("quantization_config"); // the file's tensor types apply
    }
    out.set(ORIGINAL, Value::Str(original.to_string()));
    if let Some(generation) = model.generation_config() {
        out.set(GENERATION, Value::Str(generation.to_string()));
    }
    let mut meta = Meta { config: &spelled_out, arch, out };
    meta.dimensions()?;
    meta.experts()?;
    meta.prediction_layers(model)?;
    meta.rope()
}

/// Writes `kv_cache.*` for the layers of the model's program.
pub(super) fn kv_facts(model: &Checkpoint, out: &mut Writer) -> Result<()> {
    let built = Model::build(&model.source()).map_err(|e| Error::at(model.path().display(), e))?;
    write_kv_facts(&built.target.layers, out)
}

impl Meta<'_> {
    fn number(&self, key: &str) -> Option<&Json> {
        self.config.get(key).filter(|v| v.is_number())
    }

    fn set(&mut self, key: &str, value: Value) {
        self.out.set(format!("{}.{key}", self.arch), value);
    }

    fn uint(&mut self, key: &str, n: usize) -> Result<()> {
        let n = u32::try_from(n).map_err(|_| Error::at(key, "is too large"))?;
        self.set(key, Value::U32(n));
        Ok(())
    }

    fn copy_uint(&mut self, key: &str, from: &str) -> Result<()> {
        if self.number(from).is_some() {
            let n = size(self.config, from)?;
            self.uint(key, n)?;
        }
        Ok(())
    }

    fn copy_float(&mut self, key: &str, from: &str) {
        if let Some(v) = self.number(from).and_then(Json::as_f64) {
            self.set(key, Value::F32(v as f32));
        }
    }

    fn dimensions(&mut self) -> Result<()> {
        let heads = size(self.config, "num_attention_heads")?;
        let hidden = size(self.config, "hidden_size")?;
        let head = size(self.config, "head_dim").unwrap_or(hidden / heads.max(1));
        for (key, from) in [
            ("block_count", "num_hidden_layers"),
            ("embedding_length", "hidden_size"),
            ("attention.head_count", "num_attention_heads"),
            ("context_length", "max_position_embeddings"),
            ("vocab_size", "vocab_size"),
        ] {
            let n = size(self.config, from)?;
            self.uint(key, n)?;
        }
        self.copy_uint("feed_forward_length", "intermediate_size")?;
        self.copy_float("attention.layer_norm_rms_epsilon", "rms_norm_eps");
        if is_latent(self.arch) {
            return self.latent();
        }
        let kv = size(self.config, "num_key_value_heads").unwrap_or(heads);
        self.uint("attention.head_count_kv", kv)?;
        self.uint("attention.key_length", head)?;
        self.uint("attention.value_length", head)?;
        let default = if self.arch == "glm4moe" { 0.5 } else { 1.0 };
        let partial = self.rope_value("partial_rotary_factor").and_then(|v| v.as_f64()).unwrap_or(default);
        self.uint("rope.dimension_count", (head as f64 * partial) as usize)?;
        let windowed = self.config.get("use_sliding_window").and_then(Json::as_bool).unwrap_or(true);
        if windowed && matches!(self.arch, "gemma3" | "gpt-oss" | "phi3") {
            self.copy_uint("attention.sliding_window", "sliding_window")?;
        }
        Ok(())
    }

    fn latent(&mut self) -> Result<()> {
        let get = |key: &str| size(self.config, key);
        let (rank, rope, nope, value) =
            (get("kv_lora_rank")?, get("qk_rope_head_dim")?, get("qk_nope_head_dim")?, get("v_head_dim")?);
        self.copy_uint("attention.q_lora_rank", "q_lora_rank")?;
        for (key, n) in [
            ("attention.head_count_kv", 1),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length", rank + rope),
            ("attention.value_length", rank),
            ("attention.key_length_mla", nope + rope),
            ("attention.value_length_mla", value),
            ("rope.dimension_count", rope),
        ] {
            self.uint(key, n)?;
        }
        if self.arch == "deepseek32" {
            for (key, from) in
                [("head_count", "index_n_heads"), ("key_length", "index_head_dim"), ("top_k", "index_topk")]
            {
                let n = size(self.config, from)?;
                self.uint(&format!("attention.indexer.{key}"), n)?;
            }
        }
        Ok(())
    }

    fn experts(&mut self) -> Result<()> {
        self.copy_uint("expert_count", "num_experts")?;
        self.copy_uint("expert_used_count", "num_experts_per_tok")?;
        self.copy_uint("expert_feed_forward_length", "moe_intermediate_size")?;
        if self.arch == "gpt-oss" {
            self.copy_uint("expert_feed_forward_length", "intermediate_size")?;
        }
        if !is_latent(self.arch) && self.arch != "glm4moe" {
            return Ok(());
        }
        self.copy_uint("expert_shared_count", "n_shared_experts")?;
        self.copy_uint("leading_dense_block_count", "first_k_dense_replace")?;
        self.copy_uint("expert_group_count", "n_group")?;
        self.copy_uint("expert_group_used_count", "topk_group")?;
        self.copy_float("expert_weights_scale", "routed_scaling_factor");
        let normalized = self.config.get("norm_topk_prob").and_then(Json::as_bool).unwrap_or(false);
        self.set("expert_weights_norm", Value::Bool(normalized));
        self.set("expert_gating_func", Value::U32(2)); // sigmoid
        Ok(())
    }

    /// Multi-token prediction (MTP) layers, which GGUF counts as blocks.
    fn prediction_layers(&mut self, model: &Checkpoint) -> Result<()> {
        let layers = size(self.config, "num_hidden_layers")?;
        let extra = size(self.config, "num_nextn_predict_layers").unwrap_or(0);
        let there = model.tensor(&format!("model.layers.{layers}.eh_proj.weight")).is_some();
        if extra > 0 && there {
            self.uint("block_count", layers + extra)?;
            self.uint("nextn_predict_layers", extra)?;
        }
        Ok(())
    }

    /// A RoPE setting. Newer configs use `rope_parameters`, older ones the top level;
    /// `rope_scaling` wins.
    fn rope_value(&self, key: &str) -> Option<Json> {
        let found = ["/rope_scaling/", "/rope_parameters/full_attention/", "/rope_parameters/", "/"]
            .into_iter()
            .find_map(|place| self.config.pointer(&format!("{place}{key}")));
        found.filter(|v| !v.is_null()).cloned()
    }

    fn rope(&mut self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let float = |v: Option<Json>| v.and_then(|v| v.as_f64());
        if let Some(theta) = float(self.rope_value("rope_theta")) {
            self.set("rope.freq_base", Value::F32(theta as f32));
        }
        let local =
            self.config.pointer("/rope_parameters/sliding_attention/rope_theta").and_then(Json::as_f64);
        if let Some(theta) = local.or(self.number("rope_local_base_freq").and_then(Json::as_f64)) {
            self.set("rope.freq_base_swa", Value::F32(theta as f32));
        }
        let kind = self.rope_value("rope_type").or_else(|| self.rope_value("type"));
        let kind = kind.as_ref().and_then(Json::as_str).unwrap_or("default").to_owned();
        let original = self.rope_value("original_max_position_embeddings").and_then(|v| v.as_u64());
        if let (Some(n), "yarn" | "longrope" | "su") = (original, kind.as_str()) {
            self.uint("rope.scaling.original_context_length", usize::try_from(n).unwrap_or(usize::MAX))?;
        }
        match kind.as_str() {
            "default" => Ok(Vec::new()),
            "linear" | "yarn" => {
                self.set("rope.scaling.type", Value::Str(kind.clone()));
                if let Some(factor) = float(self.rope_value("factor")) {
                    self.set("rope.scaling.factor", Value::F32(factor as f32));
                }
                if kind == "yarn" {
                    self.yarn();
                }
                Ok(Vec::new())
            }
            "llama3" => Ok(vec![("rope_freqs.weight", self.llama3()?)]),
            "longrope" | "su" => {
                let list = |key: &str| -> Result<Vec<f32>> {
                    let list = self.rope_value(key);
                    let list = list.as_ref().and_then(Json::as_array).and_then(|l| {
                        l.iter().map(|v| v.as_f64().map(|f| f as f32)).collect::<Option<Vec<f32>>>()
                    });
                    list.ok_or_else(|| Error::at(format!("config.json: {key}"), "is not a list of numbers"))
                };
                let out = vec![
                    ("rope_factors_long.weight", list("long_factor")?),
                    ("rope_factors_short.weight", list("short_factor")?),
                ];
                let max = size(self.config, "max_position_embeddings")? as f64;
                let original = original.unwrap_or(1).max(2) as f64;
                let scale = max / original;
                let attention = if scale > 1.0 { (1.0 + scale.ln() / original.ln()).sqrt() } else { 1.0 };
                let attention = float(self.rope_value("attention_factor")).unwrap_or(attention);
                self.set("rope.scaling.attn_factor", Value::F32(attention as f32));
                Ok(out)
            }
            other => {
                Err(Error::at("config.json: rope type", format!("{other:?} cannot be represented in GGUF")))
            }
        }
    }

    fn yarn(&mut self) {
        for (key, from) in [
            ("rope.scaling.yarn_beta_fast", "beta_fast"),
            ("rope.scaling.yarn_beta_slow", "beta_slow"),
            ("rope.scaling.yarn_attn_factor", "attention_factor"),
        ] {
            if let Some(v) = self.rope_value(from).and_then(|v| v.as_f64()) {
                self.set(key, Value::F32(v as f32));
            }
        }
        let all = self.rope_value("mscale_all_dim").and_then(|v| v.as_f64());
        if let Some(all) = all.filter(|_| is_latent(self.arch)) {
            self.set("rope.scaling.yarn_log_multiplier", Value::F32((0.1 * all) as f32));
        }
    }

    /// Llama 3 RoPE frequency divisors: 1 for short wavelengths, `factor` for long ones,
    /// interpolated between.
    fn llama3(&self) -> Result<Vec<f32>> {
        let get = |key: &str| {
            let v = self.rope_value(key).and_then(|v| v.as_f64());
            v.ok_or_else(|| Error::at(format!("config.json: {key}"), "is missing"))
        };
        let (factor, low, high) = (get("factor")?, get("low_freq_factor")?, get("high_freq_factor")?);
        let (original, base) =
            (get("original_max_position_embeddings")?, get("rope_theta").unwrap_or(10_000.0));
        let heads = size(self.config, "num_attention_heads")?;
        let head = size(self.config, "head_dim")
            .or_else(|_| size(self.config, "hidden_size").map(|n| n / heads.max(1)))?;
        let divisor = |i: usize| {
            let wave = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / head as f64);
            if wave < original / high {
                1.0
            } else if wave > original / low {
                factor as f32
            } else {
                let smooth = (original / wave - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        };
        Ok((0..head / 2).map(divisor).collect())
    }
}
