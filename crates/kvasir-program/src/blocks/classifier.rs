//! The classification head of a cross-encoder: `out_proj(norm(act(dense(x))))` of the pooled row `x`.
//!
//! Its tensors are named `classifier.…` for all architectures; see `arch/base_names.rs`.

use crate::builder::Builder;
use crate::error::Result;
use crate::ir::elementwise::Elementwise;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// A classification head.
#[derive(Clone, Copy)]
pub(crate) struct Classifier {
    pub(crate) function: Elementwise,
    pub(crate) dense_bias: bool,
    /// Epsilon of a LayerNorm without bias behind the activation.
    pub(crate) norm: Option<f64>,
}

/// The projection to the scores.
const SCORES: &str = "classifier.out_proj";

impl Classifier {
    /// Whether the checkpoint has a classification head; without a checkpoint, whether the config's
    /// class has one.
    pub(crate) fn is_present(b: &Builder<'_>) -> Result<bool> {
        let class = b.config.texts("architectures")?.and_then(|names| names.first().copied());
        let of_class = class.is_some_and(|class| class.ends_with("ForSequenceClassification"));
        Ok(if b.source.tensors.is_some() { b.source.has(&format!("{SCORES}.weight")) } else { of_class })
    }

    pub(crate) fn build(self, b: &mut Builder<'_>, pooled: ValueId) -> Result<ValueId> {
        let (hidden, mut x) = (b.program.hidden, pooled);
        let dense = "classifier.dense";
        // Some GGUF files have the projection to the scores only.
        if b.source.tensors.is_none() || b.source.has(&format!("{dense}.weight")) {
            let matrix = b.matrix(dense, hidden, hidden, self.dense_bias, Role::Matrix)?;
            x = b.project(x, matrix)?;
            x = b.elementwise(x, self.function);
            if let Some(eps) = self.norm {
                x = b.layer_norm(x, "classifier.norm", false, eps)?;
            }
        }
        let labels = labels(b)?;
        let matrix = b.matrix(SCORES, labels, hidden, true, Role::Matrix)?;
        b.project(x, matrix)
    }
}

/// The number of scores: rows of the stored matrix, else entries of `id2label`, else Transformers'
/// default of two.
fn labels(b: &Builder<'_>) -> Result<usize> {
    let stored = b.source.shape(&format!("{SCORES}.weight")).and_then(|shape| shape.first().copied());
    let named = b.config.get("id2label").and_then(|labels| Some(labels.as_object()?.len()));
    b.config.size_or("num_labels", stored.or(named).unwrap_or(2))
}
