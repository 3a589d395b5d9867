//! Short convolution: causal, depthwise, `y[t] = act(bias + Σ_j w[j] x[t - kernel + 1 + j])`.
//!
//! 1. Outputs, in parallel over tokens; of few tokens, over parts of the channels, too. Inputs
//!    before a sequence's first are the rows of its state.
//! 2. States: the last `kernel - 1` inputs before each store. The slot `to` may be the slot `from`,
//!    so it is written last, in ascending order of rows: a row never moves to a later place.
//! 3. Tails: the inputs of draft tokens.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::inputs::{RowInputs, Source, StateInputs};
use crate::recurrent::weights::ConvWeights;
use crate::rowwise::sigmoid;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use kvasir_kv::Slot;
use kvasir_program::StateId;
use std::ops::Range;

/// Up to this many inputs, work items are parts of the channels.
const FEW_INPUTS: usize = 16;
/// Channels of a part.
const PART: usize = 1024;
/// Channels that are summed in registers.
const CHANNELS: usize = 64;
/// Widest supported kernel.
pub(crate) const MAX_KERNEL: usize = 16;

/// A convolution over rows of `x` with `width` channels.
pub(crate) struct ShortConv<'a> {
    pub(crate) weights: &'a ConvWeights,
    pub(crate) kernel: usize,
    pub(crate) silu: bool,
    pub(crate) width: usize,
    pub(crate) x: &'a [f32],
    /// At least `width` zeros.
    pub(crate) zeros: &'a [f32],
}

#[inline(always)]
fn activate(sum: f32, silu: bool) -> f32 {
    if silu { sum * sigmoid(sum) } else { sum }
}

#[inline(always)]
fn convolve_body(rows: &[&[f32]], taps: &[f32], bias: &[f32], first: usize, silu: bool, y: &mut [f32]) {
    let width = bias.len();
    let mut at = 0;
    while at + CHANNELS <= y.len() {
        let channel = first + at;
        let mut sums = [0.0f32; CHANNELS];
        sums.copy_from_slice(&bias[channel..channel + CHANNELS]);
        for (j, row) in rows.iter().enumerate() {
            let weights = &taps[j * width + channel..][..CHANNELS];
            let row = &row[channel..channel + CHANNELS];
            for n in 0..CHANNELS {
                sums[n] = weights[n].mul_add(row[n], sums[n]);
            }
        }
        let y = &mut y[at..at + CHANNELS];
        for n in 0..CHANNELS {
            y[n] = activate(sums[n], silu);
        }
        at += CHANNELS;
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
    /// Outputs of one token for the channels from `first` on. `rows` are its inputs, the oldest
    /// first, whole rows.
    convolve(rows: &[&[f32]], taps: &[f32], bias: &[f32], first: usize, silu: bool, y: &mut [f32]) => convolve_body
}

/// The rows that a convolution reads: of the step, of a tail, and of the state.
struct InputRows<'a> {
    conv: &'a ShortConv<'a>,
    pool: &'a StatePool,
    state: StateId,
}

impl InputRows<'_> {
    /// Input `at` of a row; a negative one is in the state before the first input.
    fn input(&self, row: &RowInputs, at: isize) -> *const f32 {
        let width = self.conv.width;
        if let Ok(at) = usize::try_from(at) {
            return match row.source(at) {
                Source::Token(token) => self.conv.x[token * width..][..width].as_ptr(),
                Source::Tail(tail_row) => self.pool.tail_row(row.tail, tail_row, self.state),
            };
        }
        let history = self.conv.kernel - 1;
        match row.from {
            Some(slot) => {
                let place = history - at.unsigned_abs();
                self.pool.state(slot, self.state).wrapping_add(place * width)
            }
            None => self.conv.zeros[..width].as_ptr(),
        }
    }

    /// Computes the channels `part` of input `at` of a row.
    ///
    /// # Safety
    /// The slots of the row must exist, and nothing may write its state or tail.
    unsafe fn output(&self, isa: Isa, row: &RowInputs, at: usize, part: Range<usize>, y: &mut [f32]) {
        let ShortConv { weights, kernel, silu, width, .. } = *self.conv;
        let mut rows = [&[][..]; MAX_KERNEL];
        for (j, place) in rows[..kernel].iter_mut().enumerate() {
            let input = self.input(row, at as isize + j as isize - (kernel as isize - 1));
            // SAFETY: a whole row, which nothing writes now.
            *place = unsafe { std::slice::from_raw_parts(input, width) };
        }
        convolve(isa, &rows[..kernel], &weights.taps, &weights.bias, part.start, silu, y);
    }

    /// Stores the state after the first `after` inputs of a row, in some channels.
    ///
    /// # Safety
    /// The slots must exist, and no other thread may access these channels of `to`.
    unsafe fn store(&self, row: &RowInputs, after: usize, to: Slot, part: &Range<usize>) {
        let history = self.conv.kernel - 1;
        let to = self.pool.state(to, self.state);
        for place in 0..history {
            let from = self.input(row, after as isize - history as isize + place as isize);
            let to = to.wrapping_add(place * self.conv.width + part.start);
            // SAFETY: whole rows; `copy` permits that both are the same.
            unsafe { std::ptr::copy(from.wrapping_add(part.start), to, part.len()) };
        }
    }
}

/// Runs the op over all rows of a step.
///
/// # Safety
/// The slots and tails of `rows` must exist, and a slot that is written must belong to one row. No
/// other thread may access them.
pub(crate) unsafe fn run(
    (threads, isa): (&ThreadPool, Isa),
    (pool, state): (&StatePool, StateId),
    rows: &StateInputs,
    conv: &ShortConv<'_>,
    y: &DisjointRows<'_>,
) {
    let inputs = InputRows { conv, pool, state };
    let width = conv.width;
    let part_width = if rows.inputs <= FEW_INPUTS { PART.min(width.max(1)) } else { width.max(1) };
    let parts = width.div_ceil(part_width);
    let channels = |part: usize| part * part_width..width.min((part + 1) * part_width);
    // Items in the order of memory: parts of a token, then the next token.
    threads.each_in_order(rows.inputs * parts, &|_, item| {
        let (input, part) = (item / parts, channels(item % parts));
        let row = rows.row_of(input);
        let at = input - row.first_input;
        if let Source::Token(token) = row.source(at) {
            // SAFETY: this item has these outputs; states and tails are written later.
            let y = unsafe { y.part(token, part.start, part.len()) };
            // SAFETY: as above.
            unsafe { inputs.output(isa, row, at, part, y) };
        }
    });
    let parts = width.div_ceil(PART);
    threads.each(rows.rows.len() * parts, &|_, item| {
        let (row, part) = (&rows.rows[item / parts], item % parts);
        let part = part * PART..width.min((part + 1) * PART);
        for segment in rows.segments(row) {
            for slot in segment.stores.into_iter().flatten().filter(|slot| Some(*slot) != row.from) {
                // SAFETY: the slot is this row's; this item has the channels.
                unsafe { inputs.store(row, segment.inputs.end, slot, &part) };
            }
        }
        // In place: after all stores that read the old state.
        for segment in rows.segments(row) {
            for slot in segment.stores.into_iter().flatten().filter(|slot| Some(*slot) == row.from) {
                // SAFETY: as above.
                unsafe { inputs.store(row, segment.inputs.end, slot, &part) };
            }
        }
        for (at, token) in row.drafts() {
            let x = &conv.x[token * width..][..width];
            let to = pool.tail_row(row.tail, at, state).wrapping_add(part.start);
            // SAFETY: the tail is this row's, and this item's channels of its replay have been read.
            unsafe { std::ptr::copy_nonoverlapping(x[part.clone()].as_ptr(), to, part.len()) };
        }
    });
}
