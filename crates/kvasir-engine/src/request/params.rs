//! Requests and their parameters: token limits, stop conditions, sampling, priority, fairness key,
//! tenant salt and session.

use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::SessionId;
use kvasir_kv::Token;
use kvasir_sample::{Constrained, Sampling};
use serde::{Deserialize, Serialize};

/// A pinned prefix of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Retains the K/V, until it ends or the slots are needed.
    pub session: SessionId,
    /// Prompt tokens; whole blocks of them are retained.
    pub len: u32,
}

/// Parameters of a request: limits, stop conditions, scheduling class and sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Hard limit on output tokens.
    pub max_tokens: u32,
    /// Stop tokens and stop sequences are ignored before this many outputs.
    pub min_tokens: u32,
    /// EOS tokens do not end it.
    pub ignore_eos: bool,
    /// EOS token ids, those of the model's configuration.
    pub eos: Vec<Token>,
    /// Stop token ids of the request.
    pub stop_ids: Vec<Token>,
    /// Stop sequences as token ids; matched within the outputs only.
    pub stop_sequences: Vec<Vec<Token>>,
    /// Higher is admitted first under `--order priority`.
    pub priority: i32,
    /// Client key, which `Order::Fair` gives a share.
    pub key: u64,
    /// Prefix-cache salt: requests share cached prefixes only within one salt (tenant isolation).
    pub salt: u64,
    /// Session whose retained K/V it continues from and leaves its own to.
    pub session: Option<SessionId>,
    /// Prefixes whose K/V stays, each under a session of its own, when the request ends: unmarked K/V
    /// is evicted first.
    pub pins: Vec<Pin>,
    /// Its next step needs its last token on the host, because the executor cannot keep it on the
    /// device. Never overlapped with itself.
    pub serial: bool,
    /// It has recurrent state besides its K/V and takes one of `Limits::state_slots`.
    pub stateful: bool,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Logit bias by token id.
    pub bias: Vec<(Token, f32)>,
    /// Most drafts per step; 0 turns speculative decoding off for it. None is as many as pay.
    pub max_drafts: Option<u32>,
    /// Context shift: number of leading prompt tokens to keep. When the context is full, the
    /// request drops the older half of the other tokens and continues. With `None` it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_shift: Option<u32>,
    /// Predicted output, which a suffix drafter proposes where it fits.
    pub prediction: Vec<Token>,
    /// Constrained decoding: the allowed outputs. Not written to traces.
    #[serde(skip)]
    pub constraint: Constrained,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            max_tokens: 64,
            min_tokens: 0,
            ignore_eos: false,
            eos: Vec::new(),
            stop_ids: Vec::new(),
            stop_sequences: Vec::new(),
            priority: 0,
            key: 0,
            salt: 0,
            session: None,
            pins: Vec::new(),
            serial: false,
            stateful: false,
            sampling: Sampling::default(),
            bias: Vec::new(),
            max_drafts: None,
            context_shift: None,
            prediction: Vec::new(),
            constraint: Constrained::default(),
        }
    }
}

impl Params {
    /// Validates all ranges and names the first parameter that is out of range.
    pub fn check(&self) -> Result<(), Refusal> {
        let s = &self.sampling;
        let in_range =
            |ok: bool, which: Parameter| if ok { Ok(()) } else { Err(Refusal::BadParameter(which)) };
        in_range(s.temperature.is_finite() && s.temperature >= 0.0, Parameter::Temperature)?;
        in_range(s.top_p > 0.0 && s.top_p <= 1.0, Parameter::TopP)?;
        in_range((0.0..=1.0).contains(&s.min_p), Parameter::MinP)?;
        in_range(
            s.repetition_penalty.is_finite() && s.repetition_penalty > 0.0,
            Parameter::RepetitionPenalty,
        )?;
        in_range(s.presence_penalty.is_finite(), Parameter::PresencePenalty)?;
        in_range(s.frequency_penalty.is_finite(), Parameter::FrequencyPenalty)?;
        in_range(self.bias.iter().all(|(_, add)| !add.is_nan()), Parameter::LogitBias)?;
        in_range(self.stop_sequences.iter().all(|run| !run.is_empty()), Parameter::Stop)?;
        in_range(self.min_tokens <= self.max_tokens, Parameter::MinTokens)
    }
}

/// A completion request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// The caller's tag, returned with every event.
    pub tag: u64,
    /// Prompt token ids.
    pub prompt: Vec<Token>,
    /// Its parameters.
    pub params: Params,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Params)) -> Result<(), Refusal> {
        let mut params = Params::default();
        change(&mut params);
        params.check()
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!(with(|p| p.sampling.temperature = 0.0), Ok(()));
        assert_eq!(with(|p| p.sampling.top_p = 0.01), Ok(()));
        assert_eq!(with(|p| p.sampling.top_k = 1), Ok(()));
        assert_eq!(with(|p| p.max_tokens = 0), Ok(()));
        let bad = |parameter| Err(Refusal::BadParameter(parameter));
        assert_eq!(with(|p| p.sampling.temperature = -1.0), bad(Parameter::Temperature));
        assert_eq!(with(|p| p.sampling.temperature = f32::NAN), bad(Parameter::Temperature));
        assert_eq!(with(|p| p.sampling.top_p = 0.0), bad(Parameter::TopP));
        assert_eq!(with(|p| p.sampling.top_p = 1.01), bad(Parameter::TopP));
        assert_eq!(with(|p| p.sampling.min_p = f32::NAN), bad(Parameter::MinP));
        assert_eq!(with(|p| p.sampling.repetition_penalty = 0.0), bad(Parameter::RepetitionPenalty));
        assert_eq!(with(|p| p.bias = vec![(1, f32::NAN)]), bad(Parameter::LogitBias));
        assert_eq!(with(|p| p.stop_sequences = vec![vec![]]), bad(Parameter::Stop));
        assert_eq!(with(|p| p.min_tokens = 65), bad(Parameter::MinTokens));
    }
}
