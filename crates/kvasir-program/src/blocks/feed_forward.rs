//! The gated feed-forward block: down(act(gate(x)) * up(x)), as SwiGLU or GeGLU.

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::op::Activation;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// A gated feed-forward block.
#[derive(Clone, Copy)]
pub(crate) struct FeedForward {
    pub(crate) intermediate: usize,
    pub(crate) bias: bool,
    /// Fused gate and up: one matrix, all rows of the gate first.
    pub(crate) fused: bool,
    pub(crate) activation: Activation,
}

impl FeedForward {
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        let (intermediate, activation) = (config.size("intermediate_size")?, activation(config)?);
        Ok(Self { intermediate, bias: false, fused: false, activation })
    }

    /// Builds the block; its tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
        let (hidden, inner) = (b.program.hidden, self.intermediate);
        let (gate, up) = if self.fused {
            let matrix = b.matrix(&format!("{p}gate_up_proj"), 2 * inner, hidden, self.bias, Role::Matrix)?;
            let both = b.linear(x, matrix)?;
            (b.slice(both, 1, 0, inner)?, b.slice(both, 1, inner, inner)?)
        } else {
            let gate = b.matrix(&format!("{p}gate_proj"), inner, hidden, self.bias, Role::Matrix)?;
            let up = b.matrix(&format!("{p}up_proj"), inner, hidden, self.bias, Role::Matrix)?;
            (b.linear(x, gate)?, b.linear(x, up)?)
        };
        let y = b.gate(gate, up, self.activation)?;
        let down = b.matrix(&format!("{p}down_proj"), hidden, inner, self.bias, Role::Matrix)?;
        b.linear(y, down)
    }
}

/// Reads `hidden_act`, or Gemma's `hidden_activation`; it applies to experts too.
pub(crate) fn activation(config: Config<'_>) -> Result<Activation> {
    let key = if config.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
    match config.text(key)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(config.bad(key, format!("is {other:?}, which is not supported"))),
    }
}
