//! Mapping between GGUF and Hugging Face tensor names, per architecture, in both directions.

/// Name stems common to all architectures: GGUF below `blk.N.`, Hugging Face below
/// `model.layers.N.`.
///
/// `{}` stands for the expert number: GGUF stacks a layer's experts in one tensor, along the
/// slowest dimension.
const COMMON: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_head", "shared_head.head"),
    ("nextn.shared_head_norm", "shared_head.norm"),
];

const MIXTRAL: &[(&str, &str)] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
];

const GEMMA3: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const POST_ATTENTION: &[(&str, &str)] = &[("post_attention_norm", "post_attention_layernorm")];

const GPT_OSS: &[(&str, &str)] =
    &[("post_attention_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.router")];

/// DeepSeek sparse attention (DSA) indexer.
const DEEPSEEK32: &[(&str, &str)] = &[
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

const PHI3: &[(&str, &str)] = &[("ffn_up", "mlp.gate_up_proj")];

/// Complete names outside of layers.
const OUTSIDE: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Tensors whose values become config fields (RoPE factors).
const IN_CONFIG: &[&str] = &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// Layer tensors whose suffix differs between the formats.
const IRREGULAR: &[(&str, &str)] =
    &[("attn_sinks.weight", "self_attn.sinks"), ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")];

/// Whether this `general.architecture` uses multi-head latent attention (MLA).
pub(crate) fn is_latent(architecture: &str) -> bool {
    matches!(architecture, "deepseek2" | "deepseek32")
}

/// Hugging Face name of a GGUF tensor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HfName {
    /// The whole tensor has this name.
    Whole(String),
    /// One tensor per expert (slowest dimension): name parts before and after the expert number.
    PerExpert(String, String),
    /// The tensor's values are part of the config.
    InConfig,
}

/// Tensor naming of one architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    own: &'static [(&'static str, &'static str)],
}

impl Naming {
    /// Naming for this `general.architecture`; `experts` distinguishes Mixtral from Llama.
    pub(crate) fn of(architecture: &str, experts: bool) -> Option<Self> {
        let own: &[_] = match architecture {
            "llama" if experts => MIXTRAL,
            "llama" | "qwen2" | "qwen3" | "qwen3moe" | "deepseek2" => &[],
            "deepseek32" => DEEPSEEK32,
            "gemma3" => GEMMA3,
            "gpt-oss" => GPT_OSS,
            "glm4moe" => POST_ATTENTION,
            "phi3" => PHI3,
            _ => return None,
        };
        Some(Self { own })
    }

    fn stems(self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        self.own.iter().chain(COMMON)
    }

    /// GGUF name of a Hugging Face tensor, and its expert number if it belongs to a stack.
    pub(crate) fn to_gguf(self, name: &str) -> Option<(String, Option<usize>)> {
        if let Some((gguf, _)) = OUTSIDE.iter().find(|(_, hf)| *hf == name) {
            return Some(((*gguf).to_owned(), None));
        }
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        if let Some((gguf, _)) = IRREGULAR.iter().find(|(_, hf)| *hf == rest) {
            return Some((format!("blk.{layer}.{gguf}"), None));
        }
        let (stem, suffix) = rest.rsplit_once('.')?;
        if !matches!(suffix, "weight" | "bias") {
            return None;
        }
        // Architecture-specific stems take precedence over common ones.
        let hidden = |gguf: &str, hf: &str| self.own.iter().any(|(g, h)| *g == gguf && *h != hf);
        self.stems().filter(|(gguf, hf)| !hidden(gguf, hf)).find_map(|(gguf, hf)| {
            let name = format!("blk.{layer}.{gguf}.{suffix}");
            match hf.split_once("{}") {
                None => (*hf == stem).then_some((name, None)),
                Some((before, after)) => {
                    let expert = stem.strip_prefix(before)?.strip_suffix(after)?;
                    Some((name, Some(expert.parse().ok().filter(|&e: &usize| e < 65_536)?)))
                }
            }
        })
    }

    /// Hugging Face name of a GGUF tensor, or `None` if unknown.
    pub(crate) fn to_hf(self, name: &str) -> Option<HfName> {
        if let Some((_, hf)) = OUTSIDE.iter().find(|(gguf, _)| *gguf == name) {
            return Some(HfName::Whole((*hf).to_owned()));
        }
        if IN_CONFIG.contains(&name) {
            return Some(HfName::InConfig);
        }
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        if let Some((_, hf)) = IRREGULAR.iter().find(|(gguf, _)| *gguf == rest) {
            return Some(HfName::Whole(format!("model.layers.{layer}.{hf}")));
        }
        let (stem, suffix) = rest.rsplit_once('.')?;
        if !matches!(suffix, "weight" | "bias") {
            return None;
        }
        let (_, hf) = self.stems().find(|(gguf, _)| *gguf == stem)?;
        Some(match hf.split_once("{}") {
            None => HfName::Whole(format!("model.layers.{layer}.{hf}.{suffix}")),
            Some((before, after)) => {
                HfName::PerExpert(format!("model.layers.{layer}.{before}"), format!("{after}.{suffix}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_both_ways() {
        for (arch, experts) in
            [("llama", false), ("llama", true), ("gemma3", false), ("gpt-oss", false), ("phi3", false)]
        {
            let naming = Naming::of(arch, experts).unwrap();
            // gpt-oss names the pre-FFN norm `post_attention_norm`.
            let norm =
                if arch == "gpt-oss" { "blk.7.post_attention_norm.weight" } else { "blk.7.ffn_norm.weight" };
            for name in [norm, "blk.7.attn_q.bias", "blk.7.ffn_up.weight", "token_embd.weight"] {
                let Some(HfName::Whole(hf)) = naming.to_hf(name) else { panic!("{name}") };
                assert_eq!(naming.to_gguf(&hf), Some((name.to_owned(), None)), "{arch}");
            }
            let Some(HfName::PerExpert(before, after)) = naming.to_hf("blk.7.ffn_up_exps.weight") else {
                panic!()
            };
            let expert = naming.to_gguf(&format!("{before}12{after}"));
            assert_eq!(expert, Some(("blk.7.ffn_up_exps.weight".to_owned(), Some(12))), "{arch}");
        }
    }

    #[test]
    fn tensor_names_depend_on_the_architecture() {
        let whole = |s: &str| Some(HfName::Whole(s.into()));
        let llama = Naming::of("llama", false).unwrap();
        assert_eq!(llama.to_hf("blk.3.attn_q.weight"), whole("model.layers.3.self_attn.q_proj.weight"));
        assert_eq!(llama.to_hf("blk.3.attn_q.wight"), None);
        assert_eq!(llama.to_hf("blk.x.attn_q.weight"), None);
        let gemma = Naming::of("gemma3", false).unwrap();
        assert_eq!(
            gemma.to_hf("blk.0.ffn_norm.weight"),
            whole("model.layers.0.pre_feedforward_layernorm.weight")
        );
        let mixtral = Naming::of("llama", true).unwrap();
        assert_eq!(
            mixtral.to_hf("blk.1.ffn_up_exps.weight"),
            Some(HfName::PerExpert("model.layers.1.block_sparse_moe.experts.".into(), ".w3.weight".into()))
        );
    }
}
