//! DeepSeek-V4: attention to a sliding window and to compressed entries (CSA, HCA),
//! hyper-connections between residual streams, and a MoE whose first layers route by token id.

pub(crate) mod attention;
pub(crate) mod metadata;
pub(crate) mod moe;

use crate::arch::Architecture;
use crate::arch::class::{Class, Rename};
use crate::arch::config_defaults::fill;
use crate::arch::deepseek_v4::attention::CompressedAttention;
use crate::arch::deepseek_v4::metadata::{COMPRESSION, TENSORS};
use crate::arch::deepseek_v4::moe::Moe;
use crate::arch::glm5_next::metadata::{HYPER_CONNECTION_TENSORS, HYPER_CONNECTIONS};
use crate::blocks::decoder::{Norms, multi_stream_decoder};
use crate::blocks::hyper_connection::HyperConnections;
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED};
use crate::gguf::heads::{HEADS, WINDOW};
use crate::gguf::latent::INDEXER;
use serde_json::{Map, Value as Json};

pub(crate) static DEEPSEEK_V4: Architecture = Architecture {
    classes: &[Class::text("DeepseekV4ForCausalLM", "deepseek_v4")],
    renames: &[
        Rename { from: "embed.", to: "model.embed_tokens." },
        Rename { from: "head.", to: "lm_head." },
    ],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["deepseek4"],
        written: |_| "deepseek4",
        claims: |_| true,
        tensors: &[TENSORS, HYPER_CONNECTION_TENSORS],
        transforms: &[],
        rules: &[HEADS, WINDOW, EXPERTS, EXPERT_WIDTH, GROUPED, INDEXER, HYPER_CONNECTIONS, COMPRESSION],
    },
    models: "DeepSeek-V4",
    specifics: "attention to a window and compressed entries, hyper-connections, routing by token id",
    defaults,
    target,
    prediction: None,
};

fn defaults(config: &mut Map<String, Json>) {
    fill(config, [("tie_word_embeddings", false.into()), ("norm_topk_prob", true.into())]);
    fill(config, [("hc_mult", 4.into()), ("hc_sinkhorn_iters", 20.into()), ("hc_eps", 1e-6.into())]);
    fill(config, [("num_key_value_heads", 1.into()), ("scoring_func", "sqrtsoftplus".into())]);
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (norms, connections) = (Norms::rms(c)?, HyperConnections::read(c)?);
    let (attention, moe) = (CompressedAttention::read(b, norms)?, Moe::read(c)?);
    // The checkpoint may contain prediction layers (MTP), which this program does not run.
    b.ignore_tensors(|name| name.starts_with("mtp."));
    let layer = |b: &mut Builder<'_>, i: usize, x| {
        let p = format!("model.layers.{i}.");
        let x = connections.wrap(b, &format!("{p}hc_attn"), x, |b, h| {
            let h = norms.row(b, h, &format!("{p}attn_norm"))?;
            attention.build(b, i, h)
        })?;
        connections.wrap(b, &format!("{p}hc_ffn"), x, |b, h| {
            let h = norms.row(b, h, &format!("{p}ffn_norm"))?;
            moe.build(b, i, h)
        })
    };
    multi_stream_decoder(b, connections.streams, layer, |b, x| {
        let x = connections.join(b, "hc_head", x)?;
        norms.row(b, x, "model.norm")
    })
}
