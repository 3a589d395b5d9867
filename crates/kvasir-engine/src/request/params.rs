//! Requests and their parameters: token limits, stop conditions, sampling, priority, fairness key,
//! tenant salt and session.

use crate::request::finish::{Parameter, Refusal};
use crate::request::ids::SessionId;
use crate::request::resumption::Resumption;
use kvasir_kv::{Position, Token};
use kvasir_sample::{Constrained, SamplerChain, Sampling};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    /// Client key; `Order::Fair` gives each key a fair share.
    pub key: u64,
    /// Prefix-cache salt: requests share cached prefixes only within one salt (tenant isolation).
    pub salt: u64,
    /// Session whose retained K/V it continues from and leaves its own to.
    pub session: Option<SessionId>,
    /// Positions of the prompt at which later prompts may diverge from it, such as ends of messages.
    /// With recurrent layers, a checkpoint of the state is stored at each, rounded down to whole
    /// blocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Position>,
    /// Prefixes whose K/V stays, each under a session of its own, when the request ends: unmarked K/V
    /// is evicted first.
    pub pins: Vec<Pin>,
    /// Its next step needs its last token on the host, because the executor cannot keep it on the
    /// device. Never overlapped with itself.
    pub serial: bool,
    /// Index of the first prompt token of token type 1 (the second text of a pair); 0 if there is
    /// none.
    pub second_text_start: u32,
    /// The request has a recurrent state and takes one of `Limits::state_slots`. Only replays of
    /// recorded cases set it: with a cache that has states, every request has one.
    pub stateful: bool,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// llama.cpp's samplers and their order, which replace the default processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<Arc<SamplerChain>>,
    /// Logit bias by token id.
    pub bias: Vec<(Token, f32)>,
    /// Most drafts per step; 0 disables speculative decoding for this request, `None` lets the
    /// engine choose. Requests with Mirostat have no drafts.
    pub max_drafts: Option<u32>,
    /// Report prefill progress after each step with a chunk of its prompt (`Outbox::progress`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompt_progress: bool,
    /// Context shift: number of leading prompt tokens to keep. When the context is full, the
    /// request drops the older half of the other tokens and continues. With `None` it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_shift: Option<u32>,
    /// Predicted output, which a suffix drafter proposes where it fits.
    pub prediction: Vec<Token>,
    /// Another engine will decode the request: the blocks of its prompt are exported as they are
    /// computed ([`Engine::export_kv`](crate::Engine::export_kv)), except those of this many
    /// leading tokens, which that engine has cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hand_off: Option<u32>,
    /// State of the request in another engine, from which it continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumption: Option<Box<Resumption>>,
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
            marks: Vec::new(),
            pins: Vec::new(),
            serial: false,
            second_text_start: 0,
            stateful: false,
            sampling: Sampling::default(),
            chain: None,
            bias: Vec::new(),
            max_drafts: None,
            prompt_progress: false,
            context_shift: None,
            prediction: Vec::new(),
            hand_off: None,
            resumption: None,
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
        in_range((0.0..=1.0).contains(&s.top_p), Parameter::TopP)?;
        in_range((0.0..=1.0).contains(&s.min_p), Parameter::MinP)?;
        in_range(
            s.repetition_penalty.is_finite() && s.repetition_penalty > 0.0,
            Parameter::RepetitionPenalty,
        )?;
        in_range(s.presence_penalty.is_finite(), Parameter::PresencePenalty)?;
        in_range(s.frequency_penalty.is_finite(), Parameter::FrequencyPenalty)?;
        if let Some(chain) = &self.chain {
            check_chain(chain)?;
        }
        in_range(self.bias.iter().all(|(_, add)| !add.is_nan()), Parameter::LogitBias)?;
        in_range(self.stop_sequences.iter().all(|run| !run.is_empty()), Parameter::Stop)?;
        in_range(self.min_tokens <= self.max_tokens, Parameter::MinTokens)
    }

    /// Most drafts per step, if limited; 0 with Mirostat, whose state has one value per output
    /// position, which rejected drafts would overwrite.
    pub fn draft_limit(&self) -> Option<u32> {
        let has_mirostat = self.chain.as_ref().is_some_and(|chain| chain.mirostat.is_some());
        if has_mirostat { Some(0) } else { self.max_drafts }
    }
}

/// Validates the parameters of llama.cpp's samplers.
fn check_chain(chain: &SamplerChain) -> Result<(), Refusal> {
    let dry = chain.dry.clone().unwrap_or_default();
    let mirostat = chain.mirostat.unwrap_or_default();
    let fraction = |value: f32| (0.0..=1.0).contains(&value);
    let amount = |value: f32| value.is_finite() && value >= 0.0;
    let checks = [
        (fraction(chain.typical_p), Parameter::TypicalP),
        (chain.top_n_sigma.is_finite(), Parameter::TopNSigma),
        (fraction(chain.xtc_probability), Parameter::XtcProbability),
        (fraction(chain.xtc_threshold), Parameter::XtcThreshold),
        (amount(chain.dynatemp_range), Parameter::DynatempRange),
        (amount(chain.dynatemp_exponent), Parameter::DynatempExponent),
        (amount(dry.multiplier), Parameter::DryMultiplier),
        (dry.base.is_finite() && dry.base >= 1.0, Parameter::DryBase),
        (amount(mirostat.tau), Parameter::MirostatTau),
        (amount(mirostat.eta), Parameter::MirostatEta),
    ];
    let failed = checks.into_iter().find(|(is_valid, _)| !is_valid);
    failed.map_or(Ok(()), |(_, which)| Err(Refusal::BadParameter(which)))
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

impl Request {
    /// The `i`-th sibling of this request, with consecutive tags and seeds. Only the first sibling
    /// computes prompt log-probabilities.
    pub fn sibling(&self, i: u32) -> Self {
        let mut sibling = self.clone();
        if i > 0 {
            sibling.tag = self.tag.wrapping_add(i.into());
            sibling.params.sampling.prompt_logprobs = None;
            sibling.params.sampling.seed = self.params.sampling.seed.wrapping_add(i.into());
        }
        sibling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_sample::{Dry, Mirostat};

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
        assert_eq!(with(|p| p.sampling.top_p = 0.0), Ok(()));
        assert_eq!(with(|p| p.sampling.top_p = -0.01), bad(Parameter::TopP));
        assert_eq!(with(|p| p.sampling.top_p = 1.01), bad(Parameter::TopP));
        assert_eq!(with(|p| p.sampling.min_p = f32::NAN), bad(Parameter::MinP));
        assert_eq!(with(|p| p.sampling.repetition_penalty = 0.0), bad(Parameter::RepetitionPenalty));
        assert_eq!(with(|p| p.bias = vec![(1, f32::NAN)]), bad(Parameter::LogitBias));
        assert_eq!(with(|p| p.stop_sequences = vec![vec![]]), bad(Parameter::Stop));
        assert_eq!(with(|p| p.min_tokens = 65), bad(Parameter::MinTokens));
        let chained = |change: fn(&mut SamplerChain)| {
            let mut chain = SamplerChain::default();
            change(&mut chain);
            with(|p| p.chain = Some(chain.into()))
        };
        assert_eq!(chained(|_| {}), Ok(()));
        assert_eq!(chained(|c| c.typical_p = f32::NAN), bad(Parameter::TypicalP));
        assert_eq!(chained(|c| c.xtc_probability = 1.5), bad(Parameter::XtcProbability));
        assert_eq!(chained(|c| c.dynatemp_range = f32::INFINITY), bad(Parameter::DynatempRange));
        assert_eq!(chained(|c| c.dry = Some(Dry { base: 0.5, ..Dry::default() })), bad(Parameter::DryBase));
        let negative = Mirostat { tau: -1.0, ..Mirostat::default() };
        assert_eq!(with(|p| p.chain = Some(mirostat(negative))), bad(Parameter::MirostatTau));
    }

    fn mirostat(mirostat: Mirostat) -> Arc<SamplerChain> {
        Arc::new(SamplerChain { mirostat: Some(mirostat), ..SamplerChain::default() })
    }

    #[test]
    fn mirostat_turns_drafts_off() {
        let drafts = Params { max_drafts: Some(3), ..Params::default() };
        assert_eq!(drafts.draft_limit(), Some(3));
        let chain = Some(mirostat(Mirostat::default()));
        assert_eq!(Params { chain, ..drafts }.draft_limit(), Some(0));
    }
}
