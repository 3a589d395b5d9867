//! Appends recurrent ops (short convolution, gated delta rule, selective scan), each with a new
//! state.

use crate::builder::Builder;
use crate::error::{ProgramError, Result};
use crate::ir::ngram::NgramForm;
use crate::ir::op::{NormKind, Op};
use crate::ir::recurrent::{DeltaForm, ScanForm, StateFacts, StateId};
use crate::ir::value::ValueId;
use crate::ir::weight::{Role, WeightId};

/// Weights of a short convolution.
#[derive(Clone, Copy)]
pub(crate) struct Convolution {
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    pub(crate) kernel: usize,
    /// Distance in tokens between consecutive inputs of an output.
    pub(crate) dilation: usize,
    /// Whether SiLU follows.
    pub(crate) silu: bool,
}

/// Operands of a gated delta rule.
#[derive(Clone, Copy)]
pub(crate) struct DeltaOperands {
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
    pub(crate) v: ValueId,
    pub(crate) decay: ValueId,
    pub(crate) beta: ValueId,
}

/// Operands of a selective scan.
#[derive(Clone, Copy)]
pub(crate) struct ScanOperands {
    pub(crate) x: ValueId,
    pub(crate) b: ValueId,
    pub(crate) c: ValueId,
    pub(crate) dt: ValueId,
}

impl Builder<'_> {
    fn state(&mut self, facts: StateFacts) -> StateId {
        self.program.states.push(facts);
        StateId(self.program.states.len() as u32 - 1)
    }

    /// The weights of a convolution without an activation: `NAME.weight`, `kernel` elements per
    /// channel, and `NAME.bias` if `bias` is set.
    pub(crate) fn convolution(
        &mut self,
        name: &str,
        channels: usize,
        kernel: usize,
        bias: bool,
    ) -> Result<Convolution> {
        let weight_name = format!("{name}.weight");
        let weight = self.weight_with_unit_dims(&weight_name, &[channels, 1, kernel], Role::Recurrence)?;
        let bias =
            if bias { Some(self.weight(&format!("{name}.bias"), &[channels], Role::Bias)?) } else { None };
        Ok(Convolution { weight, bias, kernel, dilation: 1, silu: false })
    }

    /// RMSNorm over each of `groups` groups of a row, with one weight per element of the row.
    pub(crate) fn grouped_rms(&mut self, x: ValueId, name: &str, groups: usize, eps: f64) -> Result<ValueId> {
        let (width, group_width) = (self.width(x), self.group(x, groups, "n_groups")?);
        let by_group = self.source.layout.ssm_tensors;
        let shape: &[usize] = if by_group { &[groups, group_width] } else { &[width] };
        let weight = Some(self.weight(name, shape, Role::Norm)?);
        let (kind, bias, eps) = (NormKind::Rms, None, eps as f32);
        Ok(self.numbers(width, |out| Op::Norm { x, kind, weight, bias, eps, groups, out }))
    }

    /// A causal depthwise convolution over the tokens of a sequence.
    pub(crate) fn short_conv(&mut self, x: ValueId, conv: Convolution) -> ValueId {
        let width = self.width(x);
        let elements = width.saturating_mul((conv.kernel - 1).saturating_mul(conv.dilation));
        let state = self.state(StateFacts { elements, tail_elements: width });
        let Convolution { weight, bias, kernel, dilation, silu } = conv;
        self.numbers(width, |out| Op::ShortConv { x, weight, bias, kernel, dilation, silu, state, out })
    }

    /// Embeddings of hashed n-grams, from a table whose rows have `width` elements.
    pub(crate) fn ngram_embed(&mut self, form: NgramForm, width: usize) -> ValueId {
        let state = self.state(StateFacts { elements: form.size - 1, tail_elements: 1 });
        let (width, form) = (form.rows.len() * width, Box::new(form));
        self.numbers(width, |out| Op::NgramEmbed { form, state, out })
    }

    /// The gated delta rule. Checks the operands' widths and that the key heads divide the value
    /// heads.
    pub(crate) fn gated_delta(&mut self, operands: DeltaOperands, form: DeltaForm) -> Result<ValueId> {
        let DeltaOperands { q, k, v, decay, beta } = operands;
        if !form.value_heads.is_multiple_of(form.key_heads) {
            let why = format!("is {}, not a multiple of {} key heads", form.value_heads, form.key_heads);
            return Err(ProgramError::config("linear_num_value_heads", why));
        }
        for operand in [q, k] {
            self.same(self.width(operand), form.key_heads * form.key_dim, "linear_num_key_heads")?;
        }
        self.same(self.width(v), form.value_heads * form.value_dim, "linear_num_value_heads")?;
        self.same(self.width(decay), form.decays(), "linear_num_value_heads")?;
        self.same(self.width(beta), form.value_heads, "linear_num_value_heads")?;
        let state = self.state(form.state());
        let op = |out| Op::GatedDelta { q, k, v, decay, beta, form, state, out };
        Ok(self.numbers(form.value_heads * form.value_dim, op))
    }

    /// The selective scan. Checks the operands' widths and that the groups divide the heads.
    pub(crate) fn selective_scan(&mut self, operands: ScanOperands, form: ScanForm) -> Result<ValueId> {
        let ScanOperands { x, b, c, dt } = operands;
        if !form.heads.is_multiple_of(form.groups) {
            let why = format!("is {}, which does not divide {} heads", form.groups, form.heads);
            return Err(ProgramError::config("n_groups", why));
        }
        self.same(self.width(x), form.heads * form.head_dim, "mamba_num_heads")?;
        for operand in [b, c] {
            self.same(self.width(operand), form.groups * form.state_dim, "ssm_state_size")?;
        }
        self.same(self.width(dt), form.heads, "mamba_num_heads")?;
        let state = self.state(form.state());
        let op = |out| Op::SelectiveScan { x, b, c, dt, form, state, out };
        Ok(self.numbers(form.heads * form.head_dim, op))
    }
}
