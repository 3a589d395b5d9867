//! The classification head of a cross-encoder: `out_proj(norm(act(dense(x))))` of the pooled vector
//! `x`.
//!
//! Its tensors are named `classifier.…` for all architectures; see `arch/canonical_name.rs`.

use crate::builder::Builder;
use crate::error::Result;
use crate::ir::elementwise::Elementwise;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

#[derive(Clone, Copy)]
pub(crate) struct Classifier {
    pub(crate) function: Elementwise,
    /// Whether the dense projection has a bias.
    pub(crate) dense_bias: bool,
    /// Epsilon of the LayerNorm (without bias) after the activation; `None` without the norm.
    pub(crate) norm_eps: Option<f64>,
}

/// The name of the final projection, from hidden size to labels.
const OUT_PROJ: &str = "classifier.out_proj";

impl Classifier {
    /// Whether the checkpoint stores a classification head; without a checkpoint, whether the model
    /// class of the config has one.
    pub(crate) fn is_present(b: &Builder<'_>) -> Result<bool> {
        let class = b.config.texts("architectures")?.and_then(|names| names.first().copied());
        let class_has_head = class.is_some_and(|class| class.ends_with("ForSequenceClassification"));
        Ok(if b.source.tensors.is_some() {
            b.source.has(&format!("{OUT_PROJ}.weight"))
        } else {
            class_has_head
        })
    }

    pub(crate) fn build(self, b: &mut Builder<'_>, pooled: ValueId) -> Result<ValueId> {
        let (hidden, mut x) = (b.program.hidden, pooled);
        let dense = "classifier.dense";
        // Some GGUF files store the final projection only.
        if b.source.tensors.is_none() || b.source.has(&format!("{dense}.weight")) {
            let matrix = b.matrix(dense, hidden, hidden, self.dense_bias, Role::Matrix)?;
            x = b.linear(x, matrix)?;
            x = b.elementwise(x, self.function);
            if let Some(eps) = self.norm_eps {
                x = b.layer_norm(x, "classifier.norm", false, eps)?;
            }
        }
        let labels = labels(b)?;
        let matrix = b.matrix(OUT_PROJ, labels, hidden, true, Role::Matrix)?;
        b.linear(x, matrix)
    }
}

/// The number of labels: rows of the stored projection, else entries of `id2label`, else two, which
/// is the default of Transformers.
fn labels(b: &Builder<'_>) -> Result<usize> {
    let stored = b.source.shape(&format!("{OUT_PROJ}.weight")).and_then(|shape| shape.first().copied());
    let named = b.config.get("id2label").and_then(|labels| Some(labels.as_object()?.len()));
    b.config.size_or("num_labels", stored.or(named).unwrap_or(2))
}
