//! The stop rule: finds where a completion ends (stop sequence, EOS, stop token id, `max_tokens`,
//! model length).
//!
//! `FastStop` is a compact copy of the common stop conditions, for the decode fast path. It must be
//! conservative: whenever `FastStop::continues_after` is true, `find` must find no stop. The tests
//! below check this.

use crate::request::finish::Finish;
use crate::request::params::Params;
use kvasir_kv::Token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) keep: usize,
    pub(crate) finish: Finish,
}

/// Compact stop conditions for the decode fast path, read every step instead of the cold `Params`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastStop {
    /// A bit for each token that may end the request, by the token's remainder of 64: EOS tokens,
    /// stop ids and the last tokens of stop sequences.
    may_end: u64,
    cap: u32,
}

/// The bit of a token in [`FastStop::may_end`].
fn bit(token: Token) -> u64 {
    1 << (token % u64::BITS)
}

impl FastStop {
    pub(crate) fn of(params: &Params, context_left: u32) -> Self {
        let eos = if params.ignore_eos { &[][..] } else { &params.eos };
        let single = eos.iter().chain(&params.stop_ids).map(|token| bit(*token));
        // An empty sequence ends after any token.
        let runs = params.stop_sequences.iter().map(|run| run.last().map_or(u64::MAX, |last| bit(*last)));
        Self {
            may_end: single.chain(runs).fold(0, |all, one| all | one),
            cap: params.max_tokens.min(context_left),
        }
    }

    /// Most outputs: `min(max_tokens, context_left)`.
    pub(crate) fn cap(self) -> u32 {
        self.cap
    }

    /// Whether a request certainly continues after `token`, its `count`-th output. False means: ask
    /// `find`.
    pub(crate) fn continues_after(self, token: Token, count: u32) -> bool {
        self.may_end & bit(token) == 0 && count < self.cap
    }
}

/// The first stop among `outputs` from index `first` on.
///
/// The earliest position wins. At one position the priority is stop sequence, EOS, stop token id,
/// `max_tokens`, model length. Before `min_tokens` outputs only the limits apply. `context_left` is the
/// number of outputs until `max_model_len`.
pub(crate) fn find(outputs: &[Token], first: usize, params: &Params, context_left: u32) -> Option<Stop> {
    let cap = params.max_tokens.min(context_left) as usize;
    if cap == 0 {
        return Some(Stop { keep: 0, finish: limit(0, params) });
    }
    (first..outputs.len()).find_map(|i| {
        let keep = i + 1;
        let stopped = if i >= params.min_tokens as usize { by_token(&outputs[..keep], params) } else { None };
        let finish = stopped.or_else(|| (keep >= cap).then(|| limit(keep, params)));
        finish.map(|finish| Stop { keep, finish })
    })
}

/// Which length limit ends a completion of `keep` outputs; `max_tokens` wins.
fn limit(keep: usize, params: &Params) -> Finish {
    if keep >= params.max_tokens as usize { Finish::MaxTokens } else { Finish::ModelLength }
}

/// The token-based stop at the last of `outputs`; length limits are checked by the caller.
fn by_token(outputs: &[Token], params: &Params) -> Option<Finish> {
    let last = *outputs.last()?;
    if let Some(index) = params.stop_sequences.iter().position(|run| outputs.ends_with(run)) {
        return Some(Finish::StopSequence { index: index as u32 });
    }
    if !params.ignore_eos && params.eos.contains(&last) {
        return Some(Finish::Eos);
    }
    params.stop_ids.contains(&last).then_some(Finish::StopId(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Params {
        Params { eos: vec![2], max_tokens: 5, ..Params::default() }
    }

    fn at(outputs: &[Token], first: usize, params: &Params, context_left: u32) -> Option<(usize, String)> {
        find(outputs, first, params, context_left).map(|stop| (stop.keep, stop.finish.to_string()))
    }

    #[test]
    fn earliest_stop_wins_and_priority_breaks_ties() {
        let mut p = params();
        p.stop_sequences = vec![vec![7, 8]];
        p.stop_ids = vec![9, 2];
        assert_eq!(at(&[2, 7, 8], 0, &p, 99), Some((1, "eos".into())));
        assert_eq!(at(&[7, 8, 2], 0, &p, 99), Some((2, "stop_sequence".into())));
        p.stop_sequences = vec![vec![5, 2]];
        assert_eq!(at(&[5, 2], 0, &p, 99), Some((2, "stop_sequence".into())));
        assert_eq!(at(&[6, 2], 0, &p, 99), Some((2, "eos".into())));
        assert_eq!(at(&[6, 9], 0, &p, 99), Some((2, "stop_9".into())));
    }

    #[test]
    fn limits_are_hard_and_come_last() {
        let mut p = params();
        assert_eq!(at(&[4, 4, 4, 4, 4, 4, 4], 3, &p, 99), Some((5, "max_tokens".into())));
        assert_eq!(at(&[4, 4, 4], 0, &p, 3), Some((3, "model_length".into())));
        assert_eq!(at(&[4, 4, 4, 4, 2], 4, &p, 99), Some((5, "eos".into())));
        assert_eq!(at(&[4, 4, 4, 4, 4], 0, &p, 5), Some((5, "max_tokens".into())));
        p.max_tokens = 0;
        assert_eq!(at(&[4], 0, &p, 99), Some((0, "max_tokens".into())));
    }

    #[test]
    fn ignore_eos_leaves_the_stops_of_requests_and_min_tokens_limits() {
        let mut p = params();
        p.ignore_eos = true;
        p.stop_ids = vec![9];
        p.stop_sequences = vec![vec![3]];
        assert_eq!(at(&[2, 3], 0, &p, 99), Some((2, "stop_sequence".into())));
        assert_eq!(at(&[2, 9, 3], 0, &p, 99), Some((2, "stop_9".into())), "the request's own id");
        p.stop_ids = vec![2];
        assert_eq!(at(&[4, 2], 0, &p, 99), Some((2, "stop_2".into())), "although it is the model's, too");
        p.min_tokens = 5;
        assert_eq!(at(&[2, 9, 3, 3, 3], 0, &p, 99), Some((5, "max_tokens".into())));
    }

    #[test]
    fn fast_stop_is_conservative() {
        let others: [fn(&mut Params); 6] = [
            |_| {},
            |p| p.ignore_eos = true,
            |p| p.min_tokens = 3,
            |p| p.stop_ids = vec![4],
            |p| p.stop_sequences = vec![vec![5, 4]],
            |p| p.eos = vec![2, 4],
        ];
        let mut short = 0;
        for (change, context_left) in others.iter().flat_map(|change| [(change, 9), (change, 3)]) {
            let mut p = params();
            change(&mut p);
            for token in 2..7 {
                for count in 1..7 {
                    let outputs: Vec<Token> =
                        (0..count).map(|i| if i + 1 == count { token } else { 5 }).collect();
                    let continues_after = FastStop::of(&p, context_left).continues_after(token, count);
                    assert!(
                        !continues_after || find(&outputs, count as usize - 1, &p, context_left).is_none(),
                        "{p:?} {outputs:?}"
                    );
                    short += u32::from(continues_after);
                }
            }
        }
        assert!(short > 50, "the short way is taken");
    }

    #[test]
    fn requests_with_many_stops_take_the_short_way() {
        let mut p = params();
        (p.eos, p.stop_ids, p.stop_sequences) = (vec![2, 4], vec![6], vec![vec![5, 7], vec![90, 71]]);
        let continues = |p: &Params, token| FastStop::of(p, 99).continues_after(token, 1);
        assert!([1, 3, 5, 8, 90].iter().all(|token| continues(&p, *token)));
        assert!([2, 4, 6, 7, 71, 64 + 2].iter().all(|token| !continues(&p, *token)));
        p.ignore_eos = true;
        assert!(continues(&p, 2) && !continues(&p, 6));
        p.stop_sequences.push(Vec::new());
        assert!(!continues(&p, 3));
    }

    #[test]
    fn stop_sequences_span_steps_but_not_the_prompt() {
        let mut p = params();
        p.stop_sequences = vec![vec![7, 8]];
        assert_eq!(at(&[7, 8], 1, &p, 99), Some((2, "stop_sequence".into())));
        assert_eq!(at(&[8], 0, &p, 99), None);
    }
}
