//! Manifold-constrained hyper-connections (mHC): several residual streams instead of one.
//!
//! Per sublayer f, with streams X and weights that are computed from X:
//!
//! ```text
//! pre, post, C = weights(fn · rms(X))
//! y            = f(Σ_i pre_i X_i)
//! X_k          = post_k y + Σ_j C_jk X_j
//! ```

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::hyper_connection::HyperForm;
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrix, Role};

/// The hyper-connections of a model.
#[derive(Clone, Copy)]
pub(crate) struct HyperConnections {
    pub(crate) streams: usize,
    iterations: usize,
    eps: f64,
    norm_eps: f64,
}

/// Upper bound of `hc_mult` and `hc_sinkhorn_iters`, above the values of all published models.
const MAX_STREAMS_AND_ITERATIONS: usize = 64;

impl HyperConnections {
    pub(crate) fn read(c: Config<'_>) -> Result<Self> {
        let streams = c.at_most("hc_mult", MAX_STREAMS_AND_ITERATIONS)?;
        let iterations = c.at_most("hc_sinkhorn_iters", MAX_STREAMS_AND_ITERATIONS)?;
        let (eps, norm_eps) = (c.amount_or("hc_eps", 1e-6)?, c.amount_or("rms_norm_eps", 1e-6)?);
        Ok(Self { streams, iterations, eps, norm_eps })
    }

    /// Joins the streams to the input of the final norm, their weighted sum. Tensor names start
    /// with `name`.
    pub(crate) fn join(&self, b: &mut Builder<'_>, name: &str, streams: ValueId) -> Result<ValueId> {
        let weights = self.weights(b, name, streams, true)?;
        b.mix_streams(streams, weights, self.streams)
    }

    /// Wraps a sublayer in its hyper-connection, whose tensor names start with `name`.
    pub(crate) fn wrap<'a>(
        &self,
        b: &mut Builder<'a>,
        name: &str,
        streams: ValueId,
        sublayer: impl FnOnce(&mut Builder<'a>, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let count = self.streams;
        let weights = self.weights(b, name, streams, false)?;
        let [pre, post] = [0, count].map(|start| b.slice(weights, 1, start, count));
        let mixing = b.slice(weights, 1, 2 * count, count * count)?;
        let x = b.mix_streams(streams, pre?, count)?;
        let y = sublayer(b, x)?;
        let (scaled, mixed) = (b.mix_streams(y, post?, 1)?, b.mix_streams(streams, mixing, count)?);
        b.add(scaled, mixed)
    }

    /// Computes the weights of a hyper-connection from the streams.
    fn weights(&self, b: &mut Builder<'_>, name: &str, streams: ValueId, is_join: bool) -> Result<ValueId> {
        let (width, inputs) = (HyperForm::width(self.streams, is_join), b.width(streams));
        let normed = b.unweighted_rms(streams, 1, self.norm_eps)?;
        let matrix = b.weight(&format!("{name}_fn"), &[width, inputs], Role::Router)?;
        let projected = b.linear(normed, Matrix::whole(matrix, width, inputs))?;
        let scales = if is_join { 1 } else { 3 };
        let form = HyperForm {
            streams: self.streams,
            iterations: self.iterations,
            is_join,
            eps: self.eps as f32,
            scale: b.weight(&format!("{name}_scale"), &[scales], Role::Router)?,
            base: b.weight(&format!("{name}_base"), &[width], Role::Router)?,
        };
        b.hyper_connection(projected, form)
    }
}
