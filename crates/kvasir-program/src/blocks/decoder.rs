//! The decoder stack (embedding, layers, final norm, LM head) and the MTP layer for speculative
//! decoding.

use crate::builder::config::Config;
use crate::builder::{Builder, Logits};
use crate::error::Result;
use crate::ir::op::NormKind;
use crate::ir::program::{Purpose, Tap};
use crate::ir::value::ValueId;
use crate::ir::weight::{Role, WeightId};

/// The kind and epsilon of the norms in a model.
#[derive(Clone, Copy)]
pub(crate) struct Norms {
    pub(crate) kind: NormKind,
    pub(crate) eps: f64,
}

impl Norms {
    pub(crate) fn rms(config: Config<'_>) -> Result<Self> {
        Ok(Self { kind: NormKind::Rms, eps: config.amount_or("rms_norm_eps", 1e-6)? })
    }

    /// Over the whole row.
    pub(crate) fn row(self, b: &mut Builder<'_>, x: ValueId, name: &str) -> Result<ValueId> {
        b.norm(x, self.kind, name, 1, self.eps)
    }

    /// Over each head (QK-norm).
    pub(crate) fn heads(self, b: &mut Builder<'_>, x: ValueId, name: &str, heads: usize) -> Result<ValueId> {
        b.norm(x, self.kind, name, heads, self.eps)
    }
}

/// Builds embedding, layers, final norm and LM head, with taps along the residual stream.
///
/// `layer` is given the layer's number and its input.
pub(crate) fn decoder<'a>(
    b: &mut Builder<'a>,
    embedding_scale: f64,
    norms: Norms,
    layer: impl FnMut(&mut Builder<'a>, usize, ValueId) -> Result<ValueId>,
) -> Result<()> {
    let x = b.embed(embedding_scale)?;
    let soft_cap = b.config.opt_positive("final_logit_softcapping")?;
    stack(b, x, norms, "model.norm", Logits { scale: 1.0, soft_cap }, layer)
}

/// Builds the layers over an embedding, the final norm (whose tensor is `final_norm`) and the LM
/// head.
pub(crate) fn stack<'a>(
    b: &mut Builder<'a>,
    embedding: ValueId,
    norms: Norms,
    final_norm: &str,
    logits: Logits,
    layer: impl FnMut(&mut Builder<'a>, usize, ValueId) -> Result<ValueId>,
) -> Result<()> {
    let x = layers(b, embedding, layer)?;
    let head = output_weight(b)?;
    finish(b, x, final_norm, norms, head, logits)
}

/// Builds a decoder with several residual streams. All streams start as the embedding; `join`
/// reduces them to the normed input of the LM head.
pub(crate) fn multi_stream_decoder<'a>(
    b: &mut Builder<'a>,
    streams: usize,
    layer: impl FnMut(&mut Builder<'a>, usize, ValueId) -> Result<ValueId>,
    join: impl FnOnce(&mut Builder<'a>, ValueId) -> Result<ValueId>,
) -> Result<()> {
    let x = b.embed(1.0)?;
    let x = b.repeat_streams(x, streams)?;
    let x = layers(b, x, layer)?;
    let head = output_weight(b)?;
    let x = join(b, x)?;
    lm_head(b, x, head, Logits::PLAIN)
}

/// Builds the layers. Adds a tap at the residual stream in front of each layer and after the last.
fn layers<'a>(
    b: &mut Builder<'a>,
    mut x: ValueId,
    mut layer: impl FnMut(&mut Builder<'a>, usize, ValueId) -> Result<ValueId>,
) -> Result<ValueId> {
    for i in 0..b.config.number("num_hidden_layers")? {
        b.tap(Tap::IntoLayer(i as u32), x);
        x = layer(b, i, x)?;
    }
    b.tap(Tap::OutOfLastLayer, x);
    Ok(x)
}

/// Builds an MTP layer as in DeepSeek-V3 and GLM-4.5.
///
/// The next token's embedding and the target's hidden state of this token are normed, concatenated
/// and projected. The result passes one decoder layer.
pub(crate) fn prediction<'a>(
    b: &mut Builder<'a>,
    norms: Norms,
    layer: impl FnOnce(&mut Builder<'a>, usize, ValueId) -> Result<ValueId>,
) -> Result<()> {
    let index = match b.program.purpose {
        Purpose::Prediction { index } => index as usize,
        Purpose::Target | Purpose::DraftHead => 0,
    };
    let number = b.config.number("num_hidden_layers")? + index;
    let p = format!("model.layers.{number}.");
    let hidden = b.program.hidden;
    let embedding = b.embed(1.0)?;
    let embedding = norms.row(b, embedding, &format!("{p}enorm"))?;
    let state = b.hidden();
    let state = norms.row(b, state, &format!("{p}hnorm"))?;
    let joined = b.concat(embedding, state, 1)?;
    let matrix = b.matrix(&format!("{p}eh_proj"), hidden, 2 * hidden, false, Role::Matrix)?;
    let x = b.linear(joined, matrix)?;
    b.tap(Tap::IntoLayer(number as u32), x);
    let x = layer(b, number, x)?;
    b.tap(Tap::OutOfLastLayer, x);
    let table = embedding_weight(b)?;
    b.tied(&format!("{p}embed_tokens.weight"), table)?;
    let head = output_weight(b)?;
    let head = b.program.resolve(head);
    b.tied(&format!("{p}shared_head.head.weight"), head)?;
    finish(b, x, &format!("{p}shared_head.norm"), norms, head, Logits::PLAIN)
}

fn finish(
    b: &mut Builder<'_>,
    x: ValueId,
    norm: &str,
    norms: Norms,
    head: WeightId,
    logits: Logits,
) -> Result<()> {
    let x = norms.row(b, x, norm)?;
    lm_head(b, x, head, logits)
}

/// Builds the LM head; `x` is the result of the final norm.
fn lm_head(b: &mut Builder<'_>, x: ValueId, head: WeightId, logits: Logits) -> Result<()> {
    b.tap(Tap::FinalNorm, x);
    let x = b.gather(x);
    b.head(x, head, b.program.vocab, logits)?;
    Ok(())
}

fn embedding_weight(b: &mut Builder<'_>) -> Result<WeightId> {
    let shape = [b.program.vocab, b.program.hidden];
    b.weight("model.embed_tokens.weight", &shape, Role::Embedding)
}

/// `lm_head.weight`, or the embedding if they are tied.
///
/// A stored LM head is used whatever the config says: it may have been trained apart.
fn output_weight(b: &mut Builder<'_>) -> Result<WeightId> {
    let name = "lm_head.weight";
    let shape = [b.program.vocab, b.program.hidden];
    if !b.source.has(name) && b.config.flag_or("tie_word_embeddings", true)? {
        let table = embedding_weight(b)?;
        return b.tied(name, table);
    }
    b.weight(name, &shape, Role::Head)
}
