//! The toy model: modular arithmetic on KV slots. `Toy::alone` computes a request's output without
//! a cache, as the reference.

use crate::toy::Toy;
use kvasir_kv::Token;

const PRIME: u128 = (1 << 61) - 1;
/// F before any slot is folded in.
pub(crate) const START: u64 = 1;
/// The recurrent state before the first token.
pub(crate) const STATE_START: u64 = 3;
/// End-of-sequence token.
const EOS: Token = 2;

/// One fold step: `(a * 1000003 + b * 7919 + 12345) mod (2^61 − 1)`.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    ((u128::from(a) * 1_000_003 + u128::from(b) * 7919 + 12345) % PRIME) as u64
}

/// The token sampled from F: EOS for one value in 29, else a token from 10 to 49.
pub(crate) fn sample(f: u64) -> Token {
    match f % 29 {
        0 => EOS,
        _ => 10 + (f % 40) as Token,
    }
}

/// The layer groups that the toy model has in addition to full attention.
///
/// - For each window of width w: `F = mix(F, W)` before `e = mix(F, t)`, where `W` folds the values
///   of the w − 1 preceding positions, like F.
/// - With a recurrent state: `S = mix(S, e)`, starting from `S = 3`; the output is
///   `sample(mix(mix(F, e), S))`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToyShape {
    /// Widths of the sliding windows in positions, at least 1.
    pub windows: Vec<u32>,
    /// Whether the model has a recurrent state.
    pub state: bool,
}

impl ToyShape {
    /// The reference output for `prompt`; see [`Toy::alone`].
    pub fn alone(&self, prompt: &[Token], max_tokens: u32, ignore_eos: bool) -> Vec<Token> {
        self.continued(&mut Vec::new(), prompt, max_tokens, ignore_eos)
    }

    /// The reference output of a request with context shift: a full context of `context` tokens
    /// keeps its first `keep` prompt tokens and drops half of the others. The remaining tokens are
    /// then a new prompt. Also returns the number of dropped tokens.
    pub fn shifting(
        &self,
        prompt: &[Token],
        max_tokens: u32,
        ignore_eos: bool,
        keep: u32,
        context: u32,
    ) -> (Vec<Token>, u32) {
        let (mut tokens, mut answer, mut dropped) = (prompt.to_vec(), Vec::new(), 0);
        let keep = keep.min(prompt.len() as u32);
        loop {
            // A prompt that fills the context still generates one token.
            let room = context.saturating_sub(tokens.len() as u32).max(1);
            let room = room.min(max_tokens - answer.len() as u32);
            let more = self.alone(&tokens, room, ignore_eos);
            let has_stopped = !ignore_eos && more.last() == Some(&EOS);
            answer.extend_from_slice(&more);
            tokens.extend(more);
            let discard = (tokens.len() as u32).saturating_sub(1 + keep) / 2;
            let is_done = has_stopped || answer.len() as u32 == max_tokens;
            if is_done || discard == 0 || discard < context / 32 {
                return (answer, dropped);
            }
            tokens.drain(keep as usize..(keep + discard) as usize);
            dropped += discard;
        }
    }

    /// The outputs after slots that hold `values`, and then `rest`. Appends the new values.
    fn continued(
        &self,
        values: &mut Vec<u64>,
        rest: &[Token],
        max_tokens: u32,
        ignore_eos: bool,
    ) -> Vec<Token> {
        // A step starts from F = 1 and folds in every stored slot; carrying F along gives the same
        // value.
        let mut full = values.iter().fold(START, |f, value| mix(f, *value));
        let mut state = values.iter().fold(STATE_START, |state, value| mix(state, *value));
        let mut feed = |token: Token| {
            let window = |width: &u32| {
                let first = values.len().saturating_sub(*width as usize - 1);
                values[first..].iter().fold(START, |f, value| mix(f, *value))
            };
            let f = self.windows.iter().map(window).fold(full, mix);
            let value = mix(f, token.into());
            values.push(value);
            full = mix(full, value);
            state = mix(state, value);
            let f = mix(f, value);
            if self.state { mix(f, state) } else { f }
        };
        let mut outputs = Vec::new();
        let mut last = rest.iter().map(|token| feed(*token)).last().unwrap_or(START);
        while outputs.len() < max_tokens as usize {
            let token = sample(last);
            outputs.push(token);
            if token == EOS && !ignore_eos {
                break;
            }
            if outputs.len() < max_tokens as usize {
                last = feed(token);
            }
        }
        outputs
    }
}

impl Toy {
    /// The end-of-sequence token of the toy model.
    pub const EOS: Token = EOS;

    /// The reference output for `prompt`: at most `max_tokens` tokens, up to and including
    /// [`Toy::EOS`] unless it is ignored.
    pub fn alone(prompt: &[Token], max_tokens: u32, ignore_eos: bool) -> Vec<Token> {
        ToyShape::default().alone(prompt, max_tokens, ignore_eos)
    }

    /// The reference output of a request that shifts its full context; see [`ToyShape::shifting`].
    pub fn shifting(
        prompt: &[Token],
        max_tokens: u32,
        ignore_eos: bool,
        keep: u32,
        context: u32,
    ) -> (Vec<Token>, u32) {
        ToyShape::default().shifting(prompt, max_tokens, ignore_eos, keep, context)
    }

    /// The reference output after slots that hold `values`, however these were computed, and then
    /// `rest`; EOS does not end it. Appends the values of `rest` and of the outputs but the last.
    pub fn after(values: &mut Vec<u64>, rest: &[Token], max_tokens: u32) -> Vec<Token> {
        ToyShape::default().continued(values, rest, max_tokens, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_is_the_recorded_model() {
        // Completions of recorded case toy-roomy-200001.
        assert_eq!(Toy::alone(&[103], 11, false), [33, 44, 30, 10, 15, 27, 37, 19, 19, 28, 33]);
        assert_eq!(Toy::alone(&[100; 6], 3, false), [14, 47, 28]);
        assert_eq!(
            Toy::alone(&[102, 100, 101, 100, 102, 103, 101, 102, 103, 102], 6, false),
            [48, 39, 30, 44, 16, 2]
        );
    }
}
