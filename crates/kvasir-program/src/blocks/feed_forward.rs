//! The gated feed-forward block: down(act(gate(x)) * up(x)), as SwiGLU or GeGLU.

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// A gated feed-forward block.
#[derive(Clone, Copy)]
pub(crate) struct FeedForward {
    pub(crate) intermediate: usize,
    pub(crate) bias: bool,
    /// Tensor name of the fused gate and up projection: one matrix, all rows of the gate first.
    pub(crate) fused: Option<&'static str>,
    pub(crate) activation: Activation,
    /// Tensor names of the gate, up and down projections.
    pub(crate) names: [&'static str; 3],
    /// Multipliers of the gate projection, before the activation, and of the output.
    pub(crate) factors: [f64; 2],
}

impl FeedForward {
    /// SwiGLU without biases, with Llama's tensor names. The caller sets `intermediate`.
    pub(crate) const PLAIN: Self = Self {
        intermediate: 0,
        bias: false,
        fused: None,
        activation: Activation::Silu,
        names: ["gate_proj", "up_proj", "down_proj"],
        factors: [1.0; 2],
    };

    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        let (intermediate, activation) = (config.size("intermediate_size")?, activation(config)?);
        Ok(Self { intermediate, activation, ..Self::PLAIN })
    }

    /// Builds the block; its tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
        let (hidden, inner) = (b.program.hidden, self.intermediate);
        let (gate, up) = if let Some(name) = self.fused {
            let matrix = b.matrix(&format!("{p}{name}"), 2 * inner, hidden, self.bias, Role::Matrix)?;
            let both = b.linear(x, matrix)?;
            (b.slice(both, 1, 0, inner)?, b.slice(both, 1, inner, inner)?)
        } else {
            let [gate, up, _] = self.names;
            let gate = b.matrix(&format!("{p}{gate}"), inner, hidden, self.bias, Role::Matrix)?;
            let up = b.matrix(&format!("{p}{up}"), inner, hidden, self.bias, Role::Matrix)?;
            (b.linear(x, gate)?, b.linear(x, up)?)
        };
        let gate = b.scale(gate, self.factors[0]);
        let y = b.gate(gate, up, self.activation)?;
        let down = b.matrix(&format!("{p}{}", self.names[2]), hidden, inner, self.bias, Role::Matrix)?;
        let y = b.linear(y, down)?;
        Ok(b.scale(y, self.factors[1]))
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
