//! Short convolution: causal, depthwise,
//! `y[t] = act(bias + Σ_j w[j] x[t - (kernel - 1 - j) dilation])`, where `act` is SiLU or the
//! identity. The state is the last `(kernel - 1) dilation` inputs, the oldest first.
//!
//! 1. Compute the outputs, in parallel over tokens; if these are few, also over parts of the
//!    channels. The inputs before a row's first input come from its state.
//! 2. Store the states. The slot `to` may be the slot `from`, so it is written last, its rows in
//!    ascending order: each row is copied from the same or a later row.
//! 3. Store the inputs of draft tokens in the tails.

use crate::isa::dispatch::per_isa;
use crate::recurrent::inputs::{RowInputs, Source};
use crate::recurrent::op_context::OpContext;
use crate::recurrent::weights::ConvWeights;
use crate::rowwise::sigmoid;
use crate::threads::rows::DisjointRows;
use kvasir_kv::Slot;
use std::ops::Range;

/// Up to this many inputs, the channels of each input are divided among work items.
const MAX_DIVIDED_INPUTS: usize = 16;
/// Channels of a work item.
const ITEM_CHANNELS: usize = 1024;
/// Channels whose sums stay in registers.
const BLOCK_CHANNELS: usize = 64;
/// Largest supported kernel size, in tokens.
pub(crate) const MAX_KERNEL: usize = 16;

/// A convolution over rows of `x` with `width` channels.
pub(crate) struct ShortConv<'a> {
    pub(crate) weights: &'a ConvWeights,
    pub(crate) kernel: usize,
    /// Distance in tokens between consecutive inputs of an output.
    pub(crate) dilation: usize,
    pub(crate) silu: bool,
    pub(crate) width: usize,
    pub(crate) x: &'a [f32],
    /// At least `width` zeros.
    pub(crate) zeros: &'a [f32],
}

impl ShortConv<'_> {
    /// Number of inputs in the state.
    fn history(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }
}

#[inline(always)]
fn activate(sum: f32, silu: bool) -> f32 {
    if silu { sum * sigmoid(sum) } else { sum }
}

#[inline(always)]
fn convolve_body(rows: &[&[f32]], taps: &[f32], bias: &[f32], first: usize, silu: bool, y: &mut [f32]) {
    let width = bias.len();
    let mut at = 0;
    while at + BLOCK_CHANNELS <= y.len() {
        let channel = first + at;
        let mut sums = [0.0f32; BLOCK_CHANNELS];
        sums.copy_from_slice(&bias[channel..channel + BLOCK_CHANNELS]);
        for (j, row) in rows.iter().enumerate() {
            let weights = &taps[j * width + channel..][..BLOCK_CHANNELS];
            let row = &row[channel..channel + BLOCK_CHANNELS];
            for n in 0..BLOCK_CHANNELS {
                sums[n] = weights[n].mul_add(row[n], sums[n]);
            }
        }
        let y = &mut y[at..at + BLOCK_CHANNELS];
        for n in 0..BLOCK_CHANNELS {
            y[n] = activate(sums[n], silu);
        }
        at += BLOCK_CHANNELS;
    }
    for at in at..y.len() {
        let channel = first + at;
        let terms = rows.iter().enumerate();
        let sum =
            terms.fold(bias[channel], |sum, (j, row)| taps[j * width + channel].mul_add(row[channel], sum));
        y[at] = activate(sum, silu);
    }
}

per_isa! {
    /// Outputs of one token for the channels from `first` on. `rows` are the inputs in its window,
    /// the oldest first, with all channels.
    convolve(rows: &[&[f32]], taps: &[f32], bias: &[f32], first: usize, silu: bool, y: &mut [f32]) => convolve_body
}

/// Finds the inputs of a convolution: in the operand `x`, in a tail, or in a state.
struct ConvInputs<'a> {
    conv: &'a ShortConv<'a>,
    context: OpContext<'a>,
}

impl ConvInputs<'_> {
    /// Input `at` of a row. Negative indices are the inputs in the state that the row reads.
    fn input(&self, row: &RowInputs, at: isize) -> *const f32 {
        let (OpContext { pool, state, .. }, width) = (self.context, self.conv.width);
        if let Ok(at) = usize::try_from(at) {
            return match row.source(at) {
                Source::Token(token) => self.conv.x[token * width..][..width].as_ptr(),
                Source::Tail(tail_row) => pool.tail_row(row.tail, tail_row, state),
            };
        }
        match row.from {
            Some(from) => {
                let place = self.conv.history() - at.unsigned_abs();
                self.context.state_from(from).wrapping_add(place * width)
            }
            None => self.conv.zeros[..width].as_ptr(),
        }
    }

    /// Computes the channels `part` of input `at` of a row.
    ///
    /// # Safety
    /// The slots of the row must exist, and nothing may write its state or tail.
    unsafe fn output(&self, row: &RowInputs, at: usize, part: Range<usize>, y: &mut [f32]) {
        let ShortConv { weights, kernel, dilation, silu, width, .. } = *self.conv;
        let mut rows = [&[][..]; MAX_KERNEL];
        for (j, place) in rows[..kernel].iter_mut().enumerate() {
            let distance = (kernel - 1 - j) * dilation;
            let input = self.input(row, at as isize - distance as isize);
            // SAFETY: an input has `width` channels, and nothing writes it now.
            *place = unsafe { std::slice::from_raw_parts(input, width) };
        }
        convolve(self.context.isa, &rows[..kernel], &weights.taps, &weights.bias, part.start, silu, y);
    }

    /// Stores the channels `part` of the state after the first `after` inputs of a row.
    ///
    /// # Safety
    /// The slots must exist, and no other thread may access these channels of `to`.
    unsafe fn store(&self, row: &RowInputs, after: usize, to: Slot, part: &Range<usize>) {
        let history = self.conv.history();
        let to = self.context.pool.state(to, self.context.state);
        for place in 0..history {
            let from = self.input(row, after as isize - history as isize + place as isize);
            let to = to.wrapping_add(place * self.conv.width + part.start);
            // SAFETY: both rows have these channels; `copy` permits that they are the same.
            unsafe { std::ptr::copy(from.wrapping_add(part.start), to, part.len()) };
        }
    }
}

/// Runs the op over all rows of a step.
///
/// # Safety
/// The slots and tails of `context.inputs` must exist, and a slot or tail that is written must
/// belong to one row. No other thread may access them, except to read those of frozen pools.
pub(crate) unsafe fn run(context: &OpContext<'_>, conv: &ShortConv<'_>, y: &DisjointRows<'_>) {
    let OpContext { threads, pool, state, inputs, .. } = *context;
    let conv_inputs = ConvInputs { conv, context: *context };
    let width = conv.width;
    let all = width.max(1);
    let part_width = if inputs.count <= MAX_DIVIDED_INPUTS { ITEM_CHANNELS.min(all) } else { all };
    let parts = width.div_ceil(part_width);
    let channels = |part: usize| part * part_width..width.min((part + 1) * part_width);
    // Items in the order of memory: parts of a token, then the next token.
    threads.each_in_order(inputs.count * parts, &|_, item| {
        let (input, part) = (item / parts, channels(item % parts));
        let row = inputs.row_of(input);
        let at = input - row.first_input;
        if let Source::Token(token) = row.source(at) {
            // SAFETY: only this item writes these outputs.
            let y = unsafe { y.part(token, part.start, part.len()) };
            // SAFETY: states and tails are written later.
            unsafe { conv_inputs.output(row, at, part, y) };
        }
    });
    let parts = width.div_ceil(ITEM_CHANNELS);
    threads.each(inputs.rows.len() * parts, &|_, item| {
        let (row, part) = (&inputs.rows[item / parts], item % parts);
        let part = part * ITEM_CHANNELS..width.min((part + 1) * ITEM_CHANNELS);
        for segment in inputs.segments(row) {
            for slot in segment.stores.into_iter().flatten().filter(|slot| !row.starts_from(*slot)) {
                // SAFETY: only this row uses the slot, and only this item these channels.
                unsafe { conv_inputs.store(row, segment.inputs.end, slot, &part) };
            }
        }
        // The update in place overwrites the old state, which all other stores read.
        for segment in inputs.segments(row) {
            for slot in segment.stores.into_iter().flatten().filter(|slot| row.starts_from(*slot)) {
                // SAFETY: as above.
                unsafe { conv_inputs.store(row, segment.inputs.end, slot, &part) };
            }
        }
        for (at, token) in row.drafts() {
            let x = &conv.x[token * width..][..width];
            let to = pool.tail_row(row.tail, at, state).wrapping_add(part.start);
            // SAFETY: only this row uses the tail, and these channels of its replayed inputs have
            // been read.
            unsafe { std::ptr::copy_nonoverlapping(x[part.clone()].as_ptr(), to, part.len()) };
        }
    });
}
