//! Qwen4-Exp (Qwen3.8-Flash-Next): Qwen3.5's MoE with residual streams that a low-rank gate joins,
//! sparse attention to selected blocks of tokens (QSA), and embeddings of hashed n-grams (PLE).

pub(crate) mod metadata;
pub(crate) mod ngram_embedding;
pub(crate) mod streams;

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::qwen3_5::layers::{FeedForwards, Layers, SharedMoe, recurrent_layers};
use crate::arch::qwen3_5::metadata::{DELTA, DELTA_TENSORS, SHARED_EXPERT, TILED_TRANSFORMS};
use crate::arch::qwen4_exp::metadata::{INDEXER, NGRAMS, STREAMS, TENSORS, TRANSFORMS};
use crate::arch::qwen4_exp::ngram_embedding::NgramEmbedding;
use crate::arch::qwen4_exp::streams::GatedStreams;
use crate::blocks::block_indexer::BlockIndexer;
use crate::blocks::decoder::multi_stream_decoder;
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::gguf::heads::HEADS;
use serde_json::{Map, Value as Json};

pub(crate) static QWEN4_EXP: Architecture = Architecture {
    classes: &[
        Class::text("Qwen4ExpForCausalLM", "qwen4_exp_text"),
        Class::multimodal("Qwen4ExpForConditionalGeneration", "qwen4_exp_text", &["visual."]),
    ],
    renames: &[],
    config_tensors: &[
        (".ple.ple_embedding.layer_multipliers", "ple_layer_multipliers"),
        (".ple.ple_embedding.ngram_heads_vocab_sizes", "ple_head_vocab_sizes"),
        (".ple.ple_embedding.ngram_heads_offsets", "ple_head_offsets"),
    ],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen4exp"],
        written: |_| "qwen4exp",
        claims: |_| true,
        tensors: &[DELTA_TENSORS, TENSORS],
        transforms: &[TILED_TRANSFORMS, TRANSFORMS],
        rules: &[HEADS, EXPERTS, EXPERT_WIDTH, SHARED_EXPERT, DELTA, STREAMS, INDEXER, NGRAMS],
    },
    models: "Qwen3.8-Flash-Next (text)",
    specifics: "Gated DeltaNet, attention to selected blocks, residual streams, hashed n-gram embeddings",
    defaults,
    target,
    prediction: None,
};

fn defaults(config: &mut Map<String, Json>) {
    crate::arch::qwen3_5::metadata::defaults(config);
    fill(config, [("norm_topk_prob", true.into()), ("hc_count", 4.into()), ("split_ngram_parts", 1.into())]);
    // N-grams do not extend across this id. Of several end-of-sequence ids, it is the last.
    let end = match config.get("eos_token_id") {
        Some(Json::Array(all)) => all.last().cloned(),
        other => other.cloned(),
    };
    if let Some(end) = end.filter(|_| is_missing(config, "ple_eos_token_id")) {
        config.insert("ple_eos_token_id".to_owned(), end);
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let moe = SharedMoe::read(c, c.flag_or("norm_topk_prob", true)?)?;
    let mut layers = Layers::new(b, false, FeedForwards::Moe(moe))?;
    let norms = layers.norms;
    layers.attention.indexer = Some(BlockIndexer::read(c, norms.kind, norms.eps)?);
    let streams = GatedStreams::read(c, norms)?;
    let ngrams = NgramEmbedding::read(c, norms, streams.count, &recurrent_layers(c)?)?;
    // The checkpoint may contain a prediction layer (MTP), which this program does not run.
    b.ignore_tensors(|name| name.starts_with("mtp."));
    let layer = |b: &mut Builder<'_>, i: usize, mut x| {
        let p = format!("model.layers.{i}.");
        if let Some(ngrams) = ngrams.as_ref().filter(|ngrams| ngrams.layer == i) {
            x = ngrams.build(b, &format!("{p}ple."), x)?;
        }
        let mixer = |b: &mut Builder<'_>, h| layers.mixer(b, i, h);
        let x = streams.wrap(b, &format!("{p}attn_hyper_connection."), x, mixer)?;
        let feed_forward = |b: &mut Builder<'_>, h| layers.feed_forward(b, i, h);
        streams.wrap(b, &format!("{p}mlp_hyper_connection."), x, feed_forward)
    };
    multi_stream_decoder(b, streams.count, layer, |b, x| {
        Ok(streams.join(b, "model.hyper_connection_mixer.", x)?.0)
    })
}
