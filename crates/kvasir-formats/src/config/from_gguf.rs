//! Reconstructs a Hugging Face config from GGUF metadata, per architecture.
//!
//! A file converted by us embeds the original config, which is returned verbatim. For other files
//! fields are derived from GGUF keys, tensor presence, and constants common to the published models
//! of a family.
//!
//! Guarded by `tests/gguf_config.rs` and `tests/convert.rs`.

use crate::config::storage_layout::StorageLayout;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gguf::names::is_latent;
use crate::gguf::reader::Gguf;
use crate::gguf::value::{Kind, Value};
use crate::tokenizer::end_tokens::end_tokens;
use serde_json::{Map, Value as Json, json};

/// Metadata key of the embedded original config.
pub(crate) const ORIGINAL: &str = "kvasir.config";
/// Metadata key of the embedded `generation_config.json`.
pub(crate) const GENERATION: &str = "kvasir.generation_config";

/// The config and the storage conventions of the file. Unsupported architectures are refused by
/// name.
pub(crate) fn hf_config(gguf: &Gguf) -> Result<(Json, StorageLayout)> {
    let reader = Reader { gguf, out: Map::new() };
    reader.build().map_err(|e| e.in_file(gguf.path()))
}

/// The embedded `generation_config.json`, if any.
pub(crate) fn generation_config(gguf: &Gguf) -> Result<Option<Json>> {
    let Some(text) = gguf.str(GENERATION) else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|e| Error::at(GENERATION, e).in_file(gguf.path()))
}

struct Reader<'a> {
    gguf: &'a Gguf,
    out: Map<String, Json>,
}

impl Reader<'_> {
    fn build(mut self) -> Result<(Json, StorageLayout)> {
        let mut facts = StorageLayout { gguf: true, ..StorageLayout::default() };
        self.common()?;
        let architecture = match self.gguf.architecture() {
            "llama" => {
                facts.interleaved_qk = true;
                if self.uint("expert_count").unwrap_or(0) > 0 {
                    self.copy("num_local_experts", "expert_count");
                    self.copy("num_experts_per_tok", "expert_used_count");
                    ("MixtralForCausalLM", "mixtral")
                } else {
                    self.set("attention_bias", self.has("blk.0.attn_q.bias"));
                    self.set("mlp_bias", self.has("blk.0.ffn_gate.bias"));
                    ("LlamaForCausalLM", "llama")
                }
            }
            "qwen2" => ("Qwen2ForCausalLM", "qwen2"),
            "qwen3" => {
                self.set("attention_bias", self.has("blk.0.attn_q.bias"));
                ("Qwen3ForCausalLM", "qwen3")
            }
            "qwen3moe" => {
                self.set("attention_bias", self.has("blk.0.attn_q.bias"));
                self.qwen3_moe();
                ("Qwen3MoeForCausalLM", "qwen3_moe")
            }
            latent @ ("deepseek2" | "deepseek32") => {
                facts.split_kv_b = self.has("blk.0.attn_k_b.weight");
                self.deepseek()?;
                if latent == "deepseek2" {
                    ("DeepseekV3ForCausalLM", "deepseek_v3")
                } else {
                    self.indexer()?;
                    ("DeepseekV32ForCausalLM", "deepseek_v32")
                }
            }
            "gpt-oss" => {
                facts.split_gate_up = true;
                self.gpt_oss();
                ("GptOssForCausalLM", "gpt_oss")
            }
            "glm4moe" => {
                self.glm4_moe();
                ("Glm4MoeForCausalLM", "glm4_moe")
            }
            "gemma3" => {
                facts.norm_plus_one = true;
                self.gemma3();
                ("Gemma3ForCausalLM", "gemma3_text")
            }
            "phi3" => ("Phi3ForCausalLM", "phi3"),
            other => {
                return Err(Error::at("general.architecture", format!("{other:?} is not supported")));
            }
        };
        self.prediction_layers();
        if let Some(config) = self.original(architecture.0)? {
            return Ok((config, facts));
        }
        match end_tokens(self.gguf)[..] {
            [] => {}
            [end] => self.set("eos_token_id", end),
            ref ends => self.set("eos_token_id", json!(ends)),
        }
        facts.rope_divisors = self.rope()?;
        self.set("architectures", json!([architecture.0]));
        self.set("model_type", json!(architecture.1));
        Ok((Json::Object(self.out), facts))
    }

    /// The embedded original config, if the file was converted by us: GGUF has no keys for some of
    /// its fields.
    fn original(&self, architecture: &str) -> Result<Option<Json>> {
        let Some(text) = self.gguf.str(ORIGINAL) else { return Ok(None) };
        let config: Json = serde_json::from_str(text).map_err(|e| Error::at(ORIGINAL, e))?;
        let named = config.pointer("/architectures/0").and_then(Json::as_str).unwrap_or_default();
        // GGUF stores Mistral models under the llama architecture.
        if named != architecture && (named, architecture) != ("MistralForCausalLM", "LlamaForCausalLM") {
            return Err(Error::at(ORIGINAL, format!("is for {named:?}, the file for {architecture}")));
        }
        Ok(Some(config))
    }

    fn common(&mut self) -> Result<()> {
        for (hf, key) in [
            ("num_hidden_layers", "block_count"),
            ("hidden_size", "embedding_length"),
            ("num_attention_heads", "attention.head_count"),
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            ("max_position_embeddings", "context_length"),
        ] {
            let value = self.number(key).ok_or_else(|| self.missing(key))?;
            self.set(hf, value);
        }
        self.copy("intermediate_size", "feed_forward_length");
        let kv = self.number("attention.head_count_kv").or_else(|| self.number("attention.head_count"));
        self.set("num_key_value_heads", kv.unwrap_or(Json::Null));
        // An explicit null: head_dim then defaults to hidden_size / heads.
        let head_dim = self.number("attention.key_length");
        self.set("head_dim", head_dim.unwrap_or(Json::Null));
        let embedding = self.gguf.tensors().iter().find(|t| t.name == "token_embd.weight");
        let vocab = embedding
            .and_then(|t| t.shape.first())
            .ok_or_else(|| Error::at("token_embd.weight", "is missing"))?;
        self.set("vocab_size", *vocab);
        self.set("tie_word_embeddings", !self.has("output.weight"));
        for (hf, key) in [("bos_token_id", "bos"), ("pad_token_id", "padding")] {
            if let Some(id) = self.gguf.u64(&format!("tokenizer.ggml.{key}_token_id")) {
                self.set(hf, id);
            }
        }
        Ok(())
    }

    fn qwen3_moe(&mut self) {
        self.copy("num_experts", "expert_count");
        self.copy("num_experts_per_tok", "expert_used_count");
        self.copy("moe_intermediate_size", "expert_feed_forward_length");
        // The converter drops both fields; every published model of this family has these values.
        self.set("norm_topk_prob", self.flag("expert_weights_norm").unwrap_or(true));
        self.set("decoder_sparse_step", 1);
        self.set("mlp_only_layers", self.dense_layers());
    }

    /// Layers without MoE experts.
    fn dense_layers(&self) -> Vec<u64> {
        let layers = self.uint("block_count").unwrap_or(0).min(100_000);
        (0..layers).filter(|n| !self.has(&format!("blk.{n}.ffn_gate_inp.weight"))).collect()
    }

    /// MoE routing fields common to DeepSeek and GLM.
    fn grouped_routing(&mut self) {
        for (hf, key) in [
            ("n_routed_experts", "expert_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("n_shared_experts", "expert_shared_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("first_k_dense_replace", "leading_dense_block_count"),
        ] {
            self.copy(hf, key);
        }
        self.set("n_group", self.uint("expert_group_count").unwrap_or(1));
        self.set("topk_group", self.uint("expert_group_used_count").unwrap_or(1));
        self.set("norm_topk_prob", self.flag("expert_weights_norm").unwrap_or(false));
        self.set("routed_scaling_factor", self.number("expert_weights_scale").unwrap_or(json!(1.0)));
        self.set("num_nextn_predict_layers", 0);
    }

    /// Multi-token prediction (MTP) layers, which GGUF counts as blocks.
    fn prediction_layers(&mut self) {
        if let Some(extra) = self.uint("nextn_predict_layers") {
            let blocks = self.uint("block_count").unwrap_or(0);
            self.set("num_nextn_predict_layers", extra);
            self.set("num_hidden_layers", blocks.saturating_sub(extra));
        }
    }

    fn deepseek(&mut self) -> Result<()> {
        self.grouped_routing();
        self.set("moe_layer_freq", 1);
        if self.uint("expert_gating_func") == Some(1) {
            let place = format!("{}.expert_gating_func", self.gguf.architecture());
            return Err(Error::at(place, "softmax routing (DeepSeek-V2) is not supported"));
        }
        self.set("scoring_func", "sigmoid");
        self.set("topk_method", "noaux_tc");
        self.set("q_lora_rank", self.number("attention.q_lora_rank").unwrap_or(Json::Null));
        self.copy("kv_lora_rank", "attention.kv_lora_rank");
        let rope = self.uint("rope.dimension_count").ok_or_else(|| self.missing("rope.dimension_count"))?;
        let key = self.uint("attention.key_length_mla").or_else(|| self.uint("attention.key_length"));
        let value =
            self.number("attention.value_length_mla").or_else(|| self.number("attention.value_length"));
        let nope =
            key.and_then(|k| k.checked_sub(rope)).ok_or_else(|| self.missing("attention.key_length_mla"))?;
        self.set("qk_nope_head_dim", nope);
        self.set("qk_rope_head_dim", rope);
        self.set("v_head_dim", value.unwrap_or(Json::Null));
        self.out.remove("head_dim");
        // GGUF describes MLA as a single KV head.
        self.copy("num_key_value_heads", "attention.head_count");
        Ok(())
    }

    fn indexer(&mut self) -> Result<()> {
        for (hf, key) in
            [("index_n_heads", "head_count"), ("index_head_dim", "key_length"), ("index_topk", "top_k")]
        {
            let key = format!("attention.indexer.{key}");
            let value = self.number(&key).ok_or_else(|| self.missing(&key))?;
            self.set(hf, value);
        }
        Ok(())
    }

    fn glm4_moe(&mut self) {
        self.grouped_routing();
        self.set("attention_bias", self.has("blk.0.attn_q.bias"));
        self.set("use_qk_norm", self.has("blk.0.attn_q_norm.weight"));
        self.partial_rotary();
    }

    fn partial_rotary(&mut self) {
        let head = self
            .uint("attention.key_length")
            .or_else(|| self.uint("embedding_length")?.checked_div(self.uint("attention.head_count")?));
        if let (Some(rope), Some(head)) = (self.uint("rope.dimension_count"), head)
            && rope < head
        {
            self.set("partial_rotary_factor", rope as f64 / head as f64);
        }
    }

    fn gpt_oss(&mut self) {
        self.copy("num_local_experts", "expert_count");
        self.copy("num_experts_per_tok", "expert_used_count");
        self.copy("intermediate_size", "expert_feed_forward_length");
        self.copy("sliding_window", "attention.sliding_window");
        self.set("attention_bias", true);
        self.windows(2);
        self.set("swiglu_limit", 7.0);
    }

    fn gemma3(&mut self) {
        let window = self.number("attention.sliding_window");
        self.set("sliding_window", window.unwrap_or(Json::Null));
        self.windows(6);
        self.copy("final_logit_softcapping", "final_logit_softcapping");
        self.set("rope_local_base_freq", self.number("rope.freq_base_swa").unwrap_or(json!(10_000.0)));
        self.set("hidden_activation", "gelu_pytorch_tanh");
        // Not stored in GGUF. Only the 27B model (62 layers) differs, with hidden_size / heads.
        let head = self.uint("attention.key_length").unwrap_or(256);
        let scalar = match (
            self.uint("block_count"),
            self.uint("embedding_length"),
            self.uint("attention.head_count"),
        ) {
            (Some(62), Some(hidden), Some(heads)) if heads > 0 => hidden / heads,
            _ => head,
        };
        self.set(
            "query_pre_attn_scalar",
            self.number("attention.query_pre_attn_scalar").unwrap_or(json!(scalar)),
        );
    }

    /// Sliding-window layers: all but every n-th, or a list of flags; `every` is the default
    /// period.
    fn windows(&mut self, every: u64) {
        let layers = self.uint("block_count").unwrap_or(0).min(100_000);
        let key = "attention.sliding_window_pattern";
        let listed = match self.gguf.arch(key) {
            Some(Value::Array(flags)) => {
                flags.scalars().map(|f| f.as_bool().unwrap_or(f.as_u64() != Some(0))).collect()
            }
            _ => Vec::new(),
        };
        let every = self.gguf.arch(key).and_then(Value::as_u64).unwrap_or(every);
        let slides = |n: u64| match listed.get(n as usize) {
            Some(flag) => *flag,
            None => !(n + 1).is_multiple_of(every),
        };
        let kinds: Vec<&str> =
            (0..layers).map(|n| if slides(n) { "sliding_attention" } else { "full_attention" }).collect();
        self.set("layer_types", kinds);
    }

    /// RoPE base and scaling. Returns true if the file has frequency divisors
    /// (`rope_freqs.weight`).
    fn rope(&mut self) -> Result<bool> {
        let base = self.number("rope.freq_base").unwrap_or(json!(10_000.0));
        self.set("rope_theta", base);
        let original = self.number("rope.scaling.original_context_length");
        if self.gguf.architecture() == "phi3" {
            self.partial_rotary();
            let window = self.uint("attention.sliding_window").filter(|&w| w > 0);
            self.set("sliding_window", window);
            if let Some(original) = &original {
                self.set("original_max_position_embeddings", original.clone());
            }
        }
        if let Some(long) = self.floats("rope_factors_long.weight")? {
            let short = self.floats("rope_factors_short.weight")?.unwrap_or_else(|| long.clone());
            let mut scaling = json!({"rope_type": "longrope", "type": "longrope", "long_factor": long, "short_factor": short});
            if let (Some(original), Some(map)) = (original, scaling.as_object_mut()) {
                map.insert("original_max_position_embeddings".into(), original);
            }
            self.set("rope_scaling", scaling);
            return Ok(false);
        }
        if let Some(divisors) = self.floats("rope_freqs.weight")? {
            // Equivalent to longrope with a single factor list and no attention scaling.
            let max = self.out.get("max_position_embeddings").cloned();
            self.set("rope_scaling", json!({
                "rope_type": "longrope", "type": "longrope", "long_factor": divisors, "short_factor": divisors,
                "attention_factor": 1.0, "original_max_position_embeddings": max,
            }));
            return Ok(true);
        }
        let factor = self.number("rope.scaling.factor").or_else(|| self.number("rope.scale_linear"));
        let scales = factor.as_ref().and_then(Json::as_f64).is_some_and(|f| f != 0.0 && f != 1.0);
        match self.gguf.arch("rope.scaling.type").and_then(Value::as_str).or(scales.then_some("linear")) {
            Some("linear") => {
                self.set("rope_scaling", json!({"rope_type": "linear", "type": "linear", "factor": factor}));
            }
            Some("yarn") => self.yarn(factor, original),
            // For gpt-oss an absent key would select YaRN by default.
            None | Some("none") if self.gguf.architecture() == "gpt-oss" => {
                self.set("rope_scaling", json!({"rope_type": "default"}));
            }
            None | Some("none" | "longrope") => {}
            Some(other) => return Err(Error::at("rope.scaling.type", format!("{other:?} is not supported"))),
        }
        Ok(false)
    }

    fn yarn(&mut self, factor: Option<Json>, original: Option<Json>) {
        let mut scaling = json!({
            "rope_type": "yarn", "type": "yarn", "factor": factor, "original_max_position_embeddings": original,
        });
        if let Some(map) = scaling.as_object_mut() {
            for (hf, key) in [
                ("beta_fast", "rope.scaling.yarn_beta_fast"),
                ("beta_slow", "rope.scaling.yarn_beta_slow"),
                ("attention_factor", "rope.scaling.yarn_attn_factor"),
            ] {
                if let Some(value) = self.number(key) {
                    map.insert(hf.into(), value);
                }
            }
            if self.gguf.architecture() == "gpt-oss" {
                map.insert("truncate".into(), json!(false));
            }
            // DeepSeek: GGUF stores `0.1 * mscale_all_dim`; `mscale` is equal in all published
            // models.
            if is_latent(self.gguf.architecture())
                && let Some(mul) = self.gguf.arch("rope.scaling.yarn_log_multiplier").and_then(Value::as_f64)
            {
                let all = (mul * 10.0 * 1e6).round() / 1e6;
                map.insert("mscale".into(), json!(all));
                map.insert("mscale_all_dim".into(), json!(all));
            }
        }
        self.set("rope_scaling", scaling);
    }

    fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.out.insert(key.to_owned(), value.into());
    }

    fn copy(&mut self, hf: &str, key: &str) {
        if let Some(value) = self.number(key) {
            self.set(hf, value);
        }
    }

    fn uint(&self, key: &str) -> Option<u64> {
        self.first(key).and_then(|v| v.as_u64())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.gguf.arch(key).and_then(Value::as_bool)
    }

    /// A number as JSON. An f32 takes its shortest decimal form, so that 1e-6 stays 1e-6.
    fn number(&self, key: &str) -> Option<Json> {
        match self.first(key)? {
            Value::F32(v) => v.to_string().parse::<f64>().ok().filter(|v| v.is_finite()).map(Json::from),
            Value::F64(v) => Some(v).filter(|v| v.is_finite()).map(Json::from),
            v => v.as_u64().map(Json::from),
        }
    }

    /// A scalar, or the first element of a per-layer array of equal numbers.
    fn first(&self, key: &str) -> Option<Value> {
        match self.gguf.arch(key)? {
            Value::Array(a) if a.kind() != Kind::Str => a.scalars().next(),
            v => Some(v.clone()),
        }
    }

    fn has(&self, tensor: &str) -> bool {
        self.gguf.tensors().iter().any(|t| t.name == tensor)
    }

    fn floats(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.gguf.tensors().iter().find(|t| t.name == tensor) else { return Ok(None) };
        if info.dtype != DType::F32 || info.shape.len() != 1 || info.shape.iter().any(|&n| n > 65_536) {
            return Err(Error::at(format!("tensor {tensor}"), "is not a short list of f32"));
        }
        let bytes = self.gguf.bytes(info).as_chunks::<4>().0;
        Ok(Some(bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    fn missing(&self, key: &str) -> Error {
        Error::at(format!("{}.{key}", self.gguf.architecture()), "is missing or not a number")
    }
}
