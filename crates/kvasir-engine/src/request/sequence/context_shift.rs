//! Context shift: a request whose context is full drops a part of it and continues.
//!
//! 1. The context holds `n_past` tokens and a new one. It keeps the first `n_keep` tokens of the
//!    prompt, and of the others drops the older half: `n_discard = (n_past - n_keep) / 2`.
//! 2. What is left is computed again at consecutive positions, as after a preemption. So an answer
//!    depends on its tokens alone: not on the cache, nor on what else runs.
//!
//! `F` is the prompt and all outputs. Since each shift drops at the same place, what is dropped is one
//! range of it: `Sequence::tokens = F[..n_keep] ++ F[n_keep + dropped..]`.
//!
//! Guarded by `tests/context_shift.rs`.

use crate::request::sequence::Sequence;
use kvasir_kv::Token;
use std::borrow::Cow;

/// A shift must drop at least 1/`LEAST_SHARE` of the context, since it recomputes the rest.
const LEAST_SHARE: u32 = 32;

/// What a request has dropped from its context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContextShift {
    /// The whole prompt.
    pub(crate) prompt: Vec<Token>,
    /// Leading tokens of the prompt that stay.
    pub(crate) keep: u32,
    /// The tokens dropped so far, which followed those.
    pub(crate) dropped: Vec<Token>,
}

impl Sequence {
    /// Drops the older half of the tokens after the kept prefix. Returns false, without a change,
    /// if the request does not shift or would drop less than 1/`LEAST_SHARE` of `context`.
    pub(crate) fn drop_half(&mut self, context: u32) -> bool {
        let Some(keep) = self.cold.params.context_shift else { return false };
        let keep = keep.min(self.prompt_len);
        // The newest token is not in the context yet.
        let discard = self.tokens.len().saturating_sub(1 + keep) / 2;
        if discard == 0 || discard < context / LEAST_SHARE {
            return false;
        }
        let prompt_len = self.prompt_len;
        let tokens = &mut self.tokens;
        let shift = self.cold.shift.get_or_insert_with(|| {
            let prompt = tokens.gather().iter().take(prompt_len as usize).copied().collect();
            Box::new(ContextShift { prompt, keep, dropped: Vec::new() })
        });
        let range = keep as usize..(keep + discard) as usize;
        tokens.edit(|all| shift.dropped.extend(all.drain(range)));
        self.dropped += discard;
        true
    }

    /// Leading prompt tokens that are still in the context.
    pub(crate) fn intact(&self) -> u32 {
        match (self.dropped, &self.cold.shift) {
            (1.., Some(shift)) => shift.keep,
            _ => self.prompt_len,
        }
    }

    /// Index of an output in [`Sequence::tokens`]; if dropped, that of the first output left.
    pub(crate) fn index_of_output(&self, output: u32) -> u32 {
        match self.dropped {
            0 => self.prompt_len + output,
            dropped => (self.prompt_len + output).saturating_sub(dropped).max(self.intact()),
        }
    }

    /// Appends up to `most` outputs from the `from`-th on to `to`, dropped ones included. Whether they
    /// were all.
    pub(crate) fn copy_outputs(&self, from: u32, most: usize, to: &mut Vec<Token>) -> bool {
        let until = self.outputs_len().min(from.saturating_add(most as u32));
        if let (1.., Some(shift)) = (self.dropped, &self.cold.shift) {
            // An output's place among the dropped tokens.
            let place = |output: u32| (self.prompt_len + output).saturating_sub(shift.keep) as usize;
            let dropped = place(from).min(shift.dropped.len())..place(until).min(shift.dropped.len());
            to.extend_from_slice(&shift.dropped[dropped]);
            if self.prompt_len + until <= shift.keep + self.dropped {
                return until == self.outputs_len();
            }
        }
        self.tokens.copy(self.index_of_output(from)..self.index_of_output(until), to);
        until == self.outputs_len()
    }

    /// All outputs, dropped ones included. Copies them if the context was shifted.
    pub(crate) fn all_outputs(&self) -> Cow<'_, [Token]> {
        match self.dropped {
            0 => self.tokens.from(self.prompt_len),
            _ => {
                let mut outputs = Vec::with_capacity(self.outputs_len() as usize);
                self.copy_outputs(0, usize::MAX, &mut outputs);
                Cow::Owned(outputs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::{Params, Request};
    use kvasir_testkit::Random;

    #[test]
    fn all_tokens_are_known_after_shifts() {
        let mut shifted = 0;
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let prompt: Vec<Token> = (0..random.between(1, 40)).map(|_| random.between(0, 99)).collect();
            let keep = random.pick(&[0, 1, 5, 39, u32::MAX]);
            let params = Params { context_shift: Some(keep), ..Params::default() };
            let keep = keep.min(prompt.len() as u32);
            let mut sequence = Sequence::new(Request { prompt: prompt.clone(), params, tag: 0 });
            let (mut all, mut dropped) = (prompt.clone(), 0);
            for _ in 0..200 {
                let token = random.between(0, 99);
                sequence.append(&[token]);
                all.push(token);
                if sequence.tokens.len() < 48 {
                    continue;
                }
                let n_past = all.len() as u32 - dropped - 1;
                let shifts = sequence.drop_half(48);
                assert_eq!(shifts, (n_past - keep) / 2 > 0, "seed {seed}");
                if !shifts {
                    break;
                }
                dropped += (n_past - keep) / 2;
                shifted += 1;
                let left = [&all[..keep as usize], &all[(keep + dropped) as usize..]].concat();
                assert_eq!(*sequence.tokens(), left, "seed {seed}");
            }
            let outputs = &all[prompt.len()..];
            assert_eq!((sequence.prompt(), &*sequence.all_outputs()), (&prompt[..], outputs), "seed {seed}");
            assert_eq!(sequence.outputs_len() as usize, outputs.len());
            for from in 0..=outputs.len() {
                let (most, mut part) = (random.between(0, 60) as usize, vec![7]);
                let is_all = sequence.copy_outputs(from as u32, most, &mut part);
                let to = outputs.len().min(from + most);
                assert_eq!((&part[1..], is_all), (&outputs[from..to], to == outputs.len()), "seed {seed}");
            }
            let last = sequence.tokens.len() - 1;
            assert_eq!(sequence.index_of_output(sequence.outputs_len() - 1), last);
        }
        assert!(shifted > 500, "{shifted}");
    }

    #[test]
    fn a_shift_that_frees_little_is_none() {
        let params = Params { context_shift: Some(u32::MAX), ..Params::default() };
        let full = |prompt: u32| {
            let prompt: Vec<Token> = (0..prompt).collect();
            let mut sequence = Sequence::new(Request { params: params.clone(), prompt, tag: 0 });
            while sequence.tokens.len() < 320 {
                sequence.append(&[7]);
            }
            sequence
        };
        assert!(full(299).drop_half(320) && !full(300).drop_half(320));
        let mut plain = full(10);
        plain.cold.params.context_shift = None;
        assert!(!plain.drop_half(320));
        assert_eq!(plain.tokens.len(), 320);
    }
}
