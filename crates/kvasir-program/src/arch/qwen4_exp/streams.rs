//! The residual streams of Qwen4-Exp. Per sublayer f, with m streams X:
//!
//! ```text
//! n   = rms(X) * (1 + w)                            per stream
//! x   = mean over the streams of sigmoid(up · silu(down · n / m)) * n
//! X_k = X_k + 2 sigmoid(inject · n / m)_k f(x)
//! ```

use crate::blocks::decoder::Norms;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::elementwise::Elementwise;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// Residual streams that a low-rank gate joins before each sublayer.
#[derive(Clone, Copy)]
pub(crate) struct GatedStreams {
    pub(crate) count: usize,
    rank: usize,
    norms: Norms,
}

/// Upper bound of the number of streams, above any published model's.
const MAX_STREAMS: usize = 64;

impl GatedStreams {
    pub(crate) fn read(c: Config<'_>, norms: Norms) -> Result<Self> {
        Ok(Self { count: c.at_most("hc_count", MAX_STREAMS)?, rank: c.size("hc_lowrank")?, norms })
    }

    /// Returns the input of a sublayer (x) and `n / m`. Tensor names start with `p`.
    pub(crate) fn join(&self, b: &mut Builder<'_>, p: &str, streams: ValueId) -> Result<(ValueId, ValueId)> {
        let (width, Norms { kind, eps }) = (b.width(streams), self.norms);
        let normed = b.stream_norm(streams, kind, eps, &format!("{p}hc_norm"), self.count)?;
        let scaled = b.scale(normed, 1.0 / self.count as f64);
        let down = b.matrix(&format!("{p}input_mix_weight_down"), self.rank, width, false, Role::Router)?;
        let low = b.linear(scaled, down)?;
        let low = b.elementwise(low, Elementwise::Silu);
        let up = b.matrix(&format!("{p}input_mix_weight_up"), width, self.rank, false, Role::Router)?;
        let gate = b.linear(low, up)?;
        let gated = b.gate(gate, normed, Activation::Sigmoid)?;
        Ok((b.mean_of_streams(gated, self.count)?, scaled))
    }

    /// Wraps a sublayer: joins the streams to its input and adds its output to each stream. The
    /// tensor names of the gates start with `p`.
    pub(crate) fn wrap<'a>(
        &self,
        b: &mut Builder<'a>,
        p: &str,
        streams: ValueId,
        sublayer: impl FnOnce(&mut Builder<'a>, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let (x, scaled) = self.join(b, p, streams)?;
        let y = sublayer(b, x)?;
        let width = b.width(streams);
        let inject = b.matrix(&format!("{p}block_inject_weight"), self.count, width, false, Role::Router)?;
        let weights = b.linear(scaled, inject)?;
        let weights = b.elementwise(weights, Elementwise::Sigmoid);
        let weights = b.scale(weights, 2.0);
        let added = b.mix_streams(y, weights, 1)?;
        b.add(streams, added)
    }
}
