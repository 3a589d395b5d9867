//! A recurrent op of a random shape with random weights, and operands generated from token values.

use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::gated_delta::{self, DeltaOperands};
use crate::recurrent::inputs::StateInputs;
use crate::recurrent::op_context::OpContext;
use crate::recurrent::selective_scan::{self, ScanOperands};
use crate::recurrent::short_conv::{self, ShortConv};
use crate::recurrent::weights::{ConvWeights, HeadWeights};
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use kvasir_kv::StateConfig;
use kvasir_program::{
    DecayGate, DecayRate, DeltaForm, HeadMap, ScanForm, StateFacts, StateId, StateLayout, StateSpan,
    TimeStepLimits, WeightId,
};
use kvasir_testkit::random::Random;

/// Shape of a short convolution.
#[derive(Debug)]
pub(super) struct ConvForm {
    pub(super) kernel: usize,
    pub(super) dilation: usize,
    pub(super) silu: bool,
    pub(super) width: usize,
}

/// A recurrent op and its shape.
#[derive(Debug)]
pub(super) enum Form {
    Conv(ConvForm),
    Delta(DeltaForm),
    Scan(ScanForm),
}

pub(super) struct Case {
    pub(super) form: Form,
    pub(super) conv: ConvWeights,
    pub(super) heads: HeadWeights,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.form.fmt(f)
    }
}

/// One step of the op.
pub(super) struct CaseStep<'a> {
    pub(super) isa: Isa,
    pub(super) threads: &'a ThreadPool,
    pub(super) pool: &'a StatePool,
    pub(super) inputs: &'a StateInputs,
    pub(super) tokens: &'a [u64],
}

fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.unit()).collect()
}

impl Case {
    /// One case of each kind of op.
    pub(super) fn all_kinds(random: &mut Random) -> [Self; 3] {
        let size = |random: &mut Random, sizes: &[usize], max| {
            if random.chance(60) { random.pick(sizes) } else { random.between(1, max) as usize }
        };
        let (unused, kernel) = (WeightId(0), random.between(1, 5) as usize);
        let width = size(random, &[64, 128, 1024, 1100], 200);
        let dilation = random.pick(&[1, 1, 2, 3]);
        let conv = ConvForm { kernel, dilation, silu: random.chance(50), width };
        let delta = DeltaForm {
            key_heads: random.between(1, 3) as usize,
            value_heads: 0,
            key_dim: size(random, &[16, 32, 64], 40),
            value_dim: size(random, &[16, 32, 48, 64], 75),
            head_map: random.pick(&[HeadMap::Grouped, HeadMap::Tiled]),
            decay: unused,
            decay_rate: DecayRate::Rate,
            dt_bias: unused,
            gate: random.pick(&[
                DecayGate::Head,
                DecayGate::Channel,
                DecayGate::BoundedChannel { lower_bound: -3.0 },
            ]),
        };
        let delta = DeltaForm { value_heads: delta.key_heads * random.between(1, 2) as usize, ..delta };
        let groups = random.between(1, 2) as usize;
        let scan = ScanForm {
            heads: groups * random.between(1, 3) as usize,
            head_dim: size(random, &[16, 32, 64], 75),
            groups,
            state_dim: size(random, &[16, 64], 40),
            decay: unused,
            decay_rate: DecayRate::Rate,
            dt_bias: unused,
            skip: unused,
            dt_limits: TimeStepLimits { min: 0.01, max: random.pick(&[None, Some(1.0)]) },
        };
        [Form::Conv(conv), Form::Delta(delta), Form::Scan(scan)].map(|form| Self::new(form, random))
    }

    fn new(form: Form, random: &mut Random) -> Self {
        let (channels, kernel, heads, decays) = match &form {
            Form::Conv(conv) => (conv.width, conv.kernel, 0, 0),
            Form::Delta(form) => (0, 1, form.value_heads, form.decays()),
            Form::Scan(form) => (0, 1, form.heads, form.heads),
        };
        let bias = random.chance(50).then(|| numbers(random, channels));
        let conv = ConvWeights::new(&numbers(random, channels * kernel), kernel, bias);
        let rates = numbers(random, heads).into_iter().map(|rate| -0.01 - rate.abs()).collect();
        let (dt_bias, skip) = (numbers(random, decays), numbers(random, heads));
        Self { form, conv, heads: HeadWeights { rates, dt_bias, skip } }
    }

    /// Elements per token of each operand.
    fn widths(&self) -> Vec<usize> {
        match &self.form {
            Form::Conv(conv) => vec![conv.width],
            Form::Delta(form) => {
                let (keys, heads) = (form.key_heads * form.key_dim, form.value_heads);
                vec![keys, keys, heads * form.value_dim, form.decays(), heads]
            }
            Form::Scan(form) => {
                let groups = form.groups * form.state_dim;
                vec![form.heads * form.head_dim, groups, groups, form.heads]
            }
        }
    }

    /// Elements per token of the output.
    pub(super) fn output_width(&self) -> usize {
        match &self.form {
            Form::Conv(conv) => conv.width,
            Form::Delta(form) => form.value_heads * form.value_dim,
            Form::Scan(form) => form.heads * form.head_dim,
        }
    }

    /// The operands of these tokens, each a row per token.
    pub(super) fn operands(&self, tokens: &[u64]) -> Vec<Vec<f32>> {
        let mut operands = vec![Vec::new(); self.widths().len()];
        for token in tokens {
            let mut random = Random::new(*token);
            for (operand, width) in operands.iter_mut().zip(self.widths()) {
                operand.extend(numbers(&mut random, width));
            }
        }
        operands
    }

    /// A pool of states of this op. Slots hold NaN, which exposes reads of unwritten states.
    pub(super) fn pool(&self, config: StateConfig) -> StatePool {
        let facts = match &self.form {
            Form::Conv(conv) => {
                let history = (conv.kernel - 1) * conv.dilation;
                StateFacts { elements: history * conv.width, tail_elements: conv.width }
            }
            Form::Delta(form) => form.state(),
            Form::Scan(form) => form.state(),
        };
        let (slot, tail) = (0..facts.elements, 0..facts.tail_elements);
        let (slot_elements, tail_elements) = (slot.end, tail.end);
        let layout = StateLayout { spans: vec![StateSpan { slot, tail }], slot_elements, tail_elements };
        let pool = StatePool::new(layout, config).unwrap();
        for slot in 0..config.slots() {
            for at in 0..facts.elements {
                // SAFETY: within the slot; nothing else accesses the pool.
                unsafe { *pool.state(slot, StateId(0)).add(at) = f32::NAN };
            }
        }
        pool
    }

    /// Runs one step; returns the outputs of all its tokens.
    pub(super) fn run(&self, step: &CaseStep<'_>) -> Vec<f32> {
        let CaseStep { isa, threads, pool, inputs, tokens } = *step;
        let x = self.operands(tokens);
        let mut y = vec![0.0; tokens.len() * self.output_width()];
        let output_rows = DisjointRows::new(&mut y, self.output_width());
        let context = OpContext { threads, isa, pool, frozen: &[], state: StateId(0), inputs };
        // SAFETY: the slots and tails exist, and no two rows share one that is written.
        unsafe {
            match &self.form {
                Form::Conv(ConvForm { kernel, dilation, silu, width }) => {
                    let zeros = vec![0.0; *width];
                    let (kernel, dilation, silu, width) = (*kernel, *dilation, *silu, *width);
                    let (weights, x, zeros) = (&self.conv, &x[0], &zeros);
                    let conv = ShortConv { weights, kernel, dilation, silu, width, x, zeros };
                    short_conv::run(&context, &conv, &output_rows);
                }
                Form::Delta(form) => {
                    let mut prepared = vec![0.0; gated_delta::prepared_width(form) * inputs.count];
                    let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|n| &x[n][..]);
                    let operands = DeltaOperands { q, k, v, decay, beta };
                    gated_delta::run(&context, form, &self.heads, operands, &mut prepared, &output_rows);
                }
                Form::Scan(form) => {
                    let mut prepared = vec![0.0; selective_scan::prepared_width(form) * inputs.count];
                    let [x, b, c, dt] = [0, 1, 2, 3].map(|n| &x[n][..]);
                    let operands = ScanOperands { x, b, c, dt };
                    selective_scan::run(&context, form, &self.heads, operands, &mut prepared, &output_rows);
                }
            }
        }
        y
    }
}
