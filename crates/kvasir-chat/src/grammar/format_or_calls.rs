//! Constraint of an answer that is either in the response format or consists of tool calls: two
//! compiled grammars as alternatives.
//!
//! Each alternative has a matcher of its own, so that the terminals of one cannot shadow those of the
//! other. An [`AnswerClassifier`] reads the text as the parser does:
//!
//! 1. *Undecided.* The mask is the union of both masks, without the tokens of the format that would
//!    complete a call head and continue with bytes that no call has.
//! 2. *Decided.* The mask is that of the one grammar.
//!
//! Harmony has no heads: the channel of a message tells calls from text, in its grammar and in its
//! parser, so the answer stays undecided.
//!
//! Invariant: the state follows from the output alone. The classifier replays from the last
//! checkpoint after a rollback. `format_or_calls/tests.rs` checks both alternatives for every dialect.

#[cfg(test)]
mod tests;

use crate::grammar::{
    answer_classifier::{AnswerClassifier, AnswerKind},
    mask_threads::{AnnouncedOutput, LookAhead, MaskThreads, locked},
    matcher_state::MatcherState,
    matcher_watchdog::MatcherWatchdog,
    spec::{Calls, Part, Shape},
    token_text::TokenText,
    vocabulary::{GrammarError, Vocabulary, on_deep_stack},
};
use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use llguidance::Matcher;
use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

/// Tokens between two checkpoints of the classifier.
const CHECKPOINT_INTERVAL: usize = 64;

/// A grammar at its start, compiled and checked.
#[derive(Clone)]
pub(crate) struct CompiledGrammar(Arc<Mutex<Matcher>>);

/// The compiled alternatives of an answer, shared by all requests with this format and these tools.
pub(crate) struct FormatOrCalls {
    format: CompiledGrammar,
    calls: CompiledGrammar,
    /// Texts with which calls begin; none if channels tell calls from text.
    heads: Arc<[String]>,
    text: TokenText,
    mask_threads: Arc<MaskThreads>,
    watchdog: MatcherWatchdog,
}

impl fmt::Debug for FormatOrCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormatOrCalls").field("heads", &self.heads).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Compiles one alternative, preceded by `lead`.
    pub(crate) fn compile_alternative(
        &self,
        shape: &Shape,
        lead: &[Part],
        canceled: &Arc<AtomicBool>,
    ) -> Result<CompiledGrammar, GrammarError> {
        let watchdog = self.parts().2.for_request(canceled);
        let start = on_deep_stack(|| self.checked_start(shape, lead, &watchdog))?;
        Ok(CompiledGrammar(Arc::new(Mutex::new(start))))
    }
}

impl FormatOrCalls {
    /// Combines two alternatives of one vocabulary. `heads` are the texts with which calls begin,
    /// `control_tokens` the control tokens that detokenization keeps.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        format: CompiledGrammar,
        calls: CompiledGrammar,
        heads: Arc<[String]>,
        control_tokens: Vec<(Token, String)>,
    ) -> Self {
        let (tok_env, mask_threads, watchdog) = vocabulary.parts();
        let text = TokenText::new(tok_env, control_tokens);
        Self { format, calls, heads, text, mask_threads, watchdog }
    }

    /// A classifier at the start of an answer. `reasoning` holds the markers of the reasoning block, if
    /// the text has one; `is_reasoning` is true when the prompt ends inside it.
    pub(crate) fn classifier(
        &self,
        reasoning: Option<(&'static str, &'static str)>,
        is_reasoning: bool,
    ) -> AnswerClassifier {
        AnswerClassifier::new(self.heads.clone(), reasoning, is_reasoning)
    }

    /// The constraint of one answer, with the classifier at its start. Setting `canceled` aborts a
    /// mask computation in progress.
    pub(crate) fn constraint(
        self: &Arc<Self>,
        classifier: AnswerClassifier,
        canceled: &Arc<AtomicBool>,
    ) -> Constrained {
        let classifier = (!self.heads.is_empty()).then_some(classifier);
        let watchdog = self.watchdog.for_request(canceled);
        Constrained(Some(Arc::new(FormatOrCallsConstraint { grammars: self.clone(), classifier, watchdog })))
    }
}

impl Calls {
    /// The texts with which a run of these calls begins: the literal text in front of the first call,
    /// and that call's first part.
    pub(crate) fn heads(&self) -> Arc<[String]> {
        let head = |call: &Vec<Part>| match call.first() {
            Some(Part::Text(text)) => format!("{}{text}", self.begin),
            _ => self.begin.clone(),
        };
        self.calls.iter().map(head).collect()
    }
}

/// The `Constraint` of one request over shared [`FormatOrCalls`].
struct FormatOrCallsConstraint {
    grammars: Arc<FormatOrCalls>,
    classifier: Option<AnswerClassifier>,
    watchdog: MatcherWatchdog,
}

impl fmt::Debug for FormatOrCallsConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormatOrCallsConstraint").field("grammars", &self.grammars).finish_non_exhaustive()
    }
}

impl Constraint for FormatOrCallsConstraint {
    fn follow(&self) -> Box<dyn Follower> {
        let matcher = |grammar: &CompiledGrammar| MatcherState::new(grammar.0.clone(), self.watchdog.clone());
        let state = State {
            format: matcher(&self.grammars.format),
            calls: matcher(&self.grammars.calls),
            kind: self.classifier.clone().map(KindHistory::new),
            grammars: self.grammars.clone(),
            announced: AnnouncedOutput::default(),
        };
        Box::new(FormatOrCallsFollower { state: Arc::new(Mutex::new(state)), bits: Vec::new() })
    }
}

/// The per-sequence follower.
#[derive(Debug)]
struct FormatOrCallsFollower {
    state: Arc<Mutex<State>>,
    bits: Vec<u32>,
}

impl Follower for FormatOrCallsFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        if locked(&self.state).allowed(output, &mut self.bits) {
            Allowed::Only(&self.bits)
        } else {
            Allowed::Nothing
        }
    }

    fn expect(&mut self, output: &[Token]) {
        let mask_threads = locked(&self.state).grammars.mask_threads.clone();
        mask_threads.announce(&self.state, output);
    }
}

/// State of one sequence.
#[derive(Debug)]
struct State {
    grammars: Arc<FormatOrCalls>,
    format: MatcherState,
    calls: MatcherState,
    /// `None` if channels tell calls from text.
    kind: Option<KindHistory>,
    announced: AnnouncedOutput,
}

impl State {
    /// Writes the token mask after `output` to `bits`. False if no token is allowed.
    fn allowed(&mut self, output: &[Token], bits: &mut Vec<u32>) -> bool {
        self.announced.withdraw();
        bits.clear();
        let classifier = self.kind.as_mut().map(|kind| kind.after(output, &self.grammars.text));
        let kind = classifier.and_then(AnswerClassifier::kind);
        if kind != Some(AnswerKind::Calls)
            && let Some(mask) = self.format.allowed(output)
        {
            bits.extend_from_slice(mask.as_slice());
        }
        if kind == Some(AnswerKind::Format) {
            return !bits.is_empty();
        }
        let calls = self.calls.allowed(output).map(|mask| mask.as_slice()).unwrap_or_default();
        bits.resize(bits.len().max(calls.len()), 0);
        if let (None, Some(classifier)) = (kind, classifier) {
            remove_broken_heads(bits, calls, classifier, &self.grammars.text);
        }
        bits.iter_mut().zip(calls).for_each(|(word, calls)| *word |= calls);
        bits.iter().any(|word| *word != 0)
    }
}

/// Clears the bits of tokens that complete a call head but are not in the mask of calls.
fn remove_broken_heads(bits: &mut [u32], calls: &[u32], classifier: &AnswerClassifier, text: &TokenText) {
    for (at, word) in bits.iter_mut().enumerate() {
        let mut left = *word & !calls.get(at).copied().unwrap_or_default();
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let token = at as Token * u32::BITS + bit;
            if (token as usize) < text.trie().vocab_size() && classifier.completes_head(text.bytes(token)) {
                *word &= !(1 << bit);
            }
        }
    }
}

impl LookAhead for State {
    fn announced(&mut self) -> &mut AnnouncedOutput {
        &mut self.announced
    }

    fn compute(&mut self, output: &[Token]) {
        // The matchers keep their masks; the union of both is cheap.
        self.allowed(output, &mut Vec::new());
    }
}

/// The classifier of one sequence, with checkpoints for rollbacks.
#[derive(Debug)]
struct KindHistory {
    /// The output that `classifier` has read.
    read: Vec<Token>,
    classifier: AnswerClassifier,
    /// Classifiers by output length, ascending. The first is at the start.
    checkpoints: Vec<(usize, AnswerClassifier)>,
}

impl KindHistory {
    fn new(classifier: AnswerClassifier) -> Self {
        Self { read: Vec::new(), checkpoints: vec![(0, classifier.clone())], classifier }
    }

    /// The classifier after `output`.
    fn after(&mut self, output: &[Token], text: &TokenText) -> &AnswerClassifier {
        let mut same = self.read.iter().zip(output).take_while(|(a, b)| a == b).count();
        if same < self.read.len() {
            while self.checkpoints.len() > 1 && self.checkpoints.last().is_some_and(|(at, _)| *at > same) {
                self.checkpoints.pop();
            }
            if let Some((at, classifier)) = self.checkpoints.last() {
                (same, self.classifier) = (*at, classifier.clone());
            }
            self.read.truncate(same);
        }
        for token in &output[same..] {
            self.read.push(*token);
            if self.classifier.kind().is_some() {
                continue;
            }
            self.classifier.push(text.bytes(*token));
            let last = self.checkpoints.last().map_or(0, |(at, _)| *at);
            if self.classifier.kind().is_some() || self.read.len() >= last + CHECKPOINT_INTERVAL {
                self.checkpoints.push((self.read.len(), self.classifier.clone()));
            }
        }
        &self.classifier
    }
}
