//! Per-layer embeddings of Gemma 4 (E2B, E4B). With P elements per layer and x0 the scaled
//! embedding:
//!
//! ```text
//! c = rms(projection · x0 / sqrt(hidden)) * w           per layer
//! p = (c + table[token] * sqrt(P)) / sqrt(2)
//! x = x + post_norm(up · (gelu(gate · x) * p[layer]))   at the end of each layer
//! ```

use crate::blocks::decoder::Norms;
use crate::builder::Builder;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// The per-layer inputs of a token, those of all layers concatenated in one row.
pub(crate) struct PerLayerInput {
    rows: ValueId,
    width: usize,
    norms: Norms,
}

impl PerLayerInput {
    /// Computes the inputs of all layers; `None` if the model has none.
    pub(crate) fn build(b: &mut Builder<'_>, norms: Norms, embedding: ValueId) -> Result<Option<Self>> {
        let c = b.config;
        let (width, layers) = (c.count("hidden_size_per_layer_input")?, c.number("num_hidden_layers")?);
        if width == 0 {
            return Ok(None);
        }
        let (all, hidden) = (layers * width, b.program.hidden);
        let height = c.size_or("vocab_size_per_layer_input", b.program.vocab)?;
        if height < b.program.vocab {
            let why = format!("is {height}, less than the vocabulary of {}", b.program.vocab);
            return Err(c.bad("vocab_size_per_layer_input", why));
        }
        let table = "model.embed_tokens_per_layer.weight";
        let tokens = b.embed_table(table, height, all, (width as f64).sqrt())?;
        let name = "model.per_layer_model_projection";
        let matrix = b.matrix(name, all, hidden, false, Role::Matrix)?;
        let context = b.linear(embedding, matrix)?;
        let context = b.scale(context, (hidden as f64).powf(-0.5));
        let context = norms.heads(b, context, "model.per_layer_projection_norm", layers)?;
        let rows = b.add(context, tokens)?;
        let rows = b.scale(rows, 0.5f64.sqrt());
        Ok(Some(Self { rows, width, norms }))
    }

    /// Adds a layer's input to the residual stream.
    pub(crate) fn add(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let (p, hidden, width) = (format!("model.layers.{layer}."), b.program.hidden, self.width);
        let gate = b.matrix(&format!("{p}per_layer_input_gate"), width, hidden, false, Role::Matrix)?;
        let gate = b.linear(x, gate)?;
        let input = b.slice(self.rows, 1, layer * width, width)?;
        let y = b.gate(gate, input, Activation::GeluTanh)?;
        let up = b.matrix(&format!("{p}per_layer_projection"), hidden, width, false, Role::Matrix)?;
        let y = b.linear(y, up)?;
        let y = self.norms.row(b, y, &format!("{p}post_per_layer_input_norm"))?;
        b.add(x, y)
    }
}
