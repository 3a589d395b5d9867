//! Appends ops over parallel residual streams. A row holds the streams side by side, each of the
//! same width.

use crate::builder::Builder;
use crate::error::Result;
use crate::ir::hyper_connection::HyperForm;
use crate::ir::op::{NormKind, Op};
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

impl Builder<'_> {
    /// `streams` copies of `x`, side by side.
    pub(crate) fn repeat_streams(&mut self, x: ValueId, streams: usize) -> Result<ValueId> {
        (1..streams).try_fold(x, |all, _| self.concat(all, x, 1))
    }

    /// The mean of all streams of `x`.
    pub(crate) fn mean_of_streams(&mut self, x: ValueId, streams: usize) -> Result<ValueId> {
        let width = self.group(x, streams, "hc_mult")?;
        let mut sum = self.slice(x, 1, 0, width)?;
        for stream in 1..streams {
            let next = self.slice(x, 1, stream * width, width)?;
            sum = self.add(sum, next)?;
        }
        Ok(self.scale(sum, 1.0 / streams as f64))
    }

    /// Normalizes each of `streams` streams by itself, with one weight per element of the row.
    pub(crate) fn stream_norm(
        &mut self,
        x: ValueId,
        kind: NormKind,
        eps: f64,
        name: &str,
        streams: usize,
    ) -> Result<ValueId> {
        self.group(x, streams, "hc_count")?;
        let (width, groups, eps) = (self.width(x), streams, eps as f32);
        let weight = Some(self.weight(&format!("{name}.weight"), &[width], Role::Norm)?);
        Ok(self.numbers(width, |out| Op::Norm { x, kind, weight, bias: None, eps, groups, out }))
    }

    /// The dot product of each group of `a` with the same group of `b`.
    pub(crate) fn group_dot(&mut self, a: ValueId, b: ValueId, groups: usize) -> Result<ValueId> {
        self.group(a, groups, "hc_count")?;
        self.same(self.width(b), self.width(a), "hc_count")?;
        Ok(self.numbers(groups, |out| Op::GroupDot { a, b, groups, out }))
    }

    /// Computes the weights of a hyper-connection from their projections `x`.
    pub(crate) fn hyper_connection(&mut self, x: ValueId, form: HyperForm) -> Result<ValueId> {
        let width = HyperForm::width(form.streams, form.is_join);
        self.same(self.width(x), width, "hc_mult")?;
        Ok(self.numbers(width, |out| Op::HyperConnection { x, form, out }))
    }

    /// Weighted sums of the `streams` streams of `x`, one per output stream. There is one weight
    /// per pair of an input and an output stream.
    pub(crate) fn mix_streams(&mut self, x: ValueId, weights: ValueId, streams: usize) -> Result<ValueId> {
        let width = self.group(x, streams, "hc_mult")?;
        let outputs = self.group(weights, streams, "hc_mult")?;
        Ok(self.numbers(outputs * width, |out| Op::MixStreams { x, weights, streams, out }))
    }
}
