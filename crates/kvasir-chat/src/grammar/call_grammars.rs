//! Lazy constrained decoding of tool calls: a grammar applies from the start of a call; all other
//! text is free.
//!
//! A sequence alternates between two states:
//!
//! 1. *Text.* A [`CallScanner`] reads the bytes of each token. Every token is allowed and no mask
//!    is made, with one exception: a token that would complete a call start and continue with bytes
//!    that no call begins with. Such tokens are excluded, because the parser would read a call that
//!    no continuation could make valid. Their masks depend on the scanner state alone, and are
//!    cached by it.
//! 2. *Call.* A compiled grammar consumes the bytes after the trigger and then each token. Its
//!    masks are computed on helper threads. Once the grammar has matched as a whole, the scanner
//!    resumes.
//!
//! Invariant: the state is a function of the output alone. After a rollback (rejected drafts, a
//! step that runs again), the matcher rolls back inside a call; otherwise the scanner replays from
//! the last checkpoint.
//!
//! `call_grammars/tests/random_answers.rs` checks that calls parsed from random answers fit their
//! tools' schemas.

#[cfg(test)]
pub(super) mod tests;

use crate::grammar::{
    call_scanner::{CallScanner, CallStart, CallSyntax},
    lark::calls_grammar,
    mask_threads::{AnnouncedOutput, LookAhead, MaskThreads, locked},
    matcher_watchdog::{MatcherWatchdog, WatchedMatcher},
    token_text::{TokenText, is_text},
    vocabulary::{GrammarError, Vocabulary, bits_without, on_deep_stack},
};
use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use llguidance::{Matcher, toktrie::SimpleVob};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

/// The compiled grammars of a set of tools in one dialect, shared by all requests that offer these
/// tools.
pub struct CallGrammars {
    syntax: CallSyntax,
    /// Matcher after a call start, one per grammar. Locked only to be cloned.
    starts: Vec<Mutex<Matcher>>,
    text: TokenText,
    /// Text tokens that can complete a call start.
    closers: Vec<Token>,
    /// Cache: token mask of a scanner state, `None` if it excludes no token.
    masks: Mutex<HashMap<CallScanner, Option<Arc<[u32]>>>>,
    /// Token mask that allows only end-of-sequence tokens.
    ends: Arc<[u32]>,
    mask_threads: Arc<MaskThreads>,
    watchdog: MatcherWatchdog,
}

/// Capacity of the mask cache, in scanner states.
const MASK_CACHE_CAPACITY: usize = 1024;
/// Text tokens between two checkpoints.
const CHECKPOINT_INTERVAL: usize = 64;

impl fmt::Debug for CallGrammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallGrammars").field("names", &self.syntax.names).finish_non_exhaustive()
    }
}

impl CallGrammars {
    /// Compiles the grammars that follow a call start. `control_tokens` are the control tokens that
    /// detokenization keeps; `compiling` watches the compilation, for the request that needs it.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        syntax: CallSyntax,
        control_tokens: Vec<(Token, String)>,
        compiling: &MatcherWatchdog,
    ) -> Result<Self, GrammarError> {
        let (tok_env, mask_threads, watchdog) = vocabulary.parts();
        let mut starts = Vec::with_capacity(syntax.grammars.len());
        for layouts in &syntax.grammars {
            let grammar = calls_grammar(layouts, |text| vocabulary.literal(text)).map_err(GrammarError)?;
            let start = vocabulary.start(grammar, compiling)?;
            vocabulary.rehearse(&start, compiling)?;
            starts.push(Mutex::new(start));
        }
        let closing = syntax.closers();
        let trie = tok_env.tok_trie();
        let size = trie.vocab_size() as Token;
        let is_closer = |id: &Token| {
            let bytes = trie.token(*id);
            is_text(bytes) && bytes.iter().any(|byte| closing.contains(byte))
        };
        Ok(Self {
            closers: (0..size).filter(is_closer).collect(),
            ends: trie.eos_token_set().as_slice().into(),
            syntax,
            starts,
            text: TokenText::new(tok_env, control_tokens),
            masks: Mutex::default(),
            mask_threads,
            watchdog,
        })
    }

    /// The constraint of one answer. Setting `canceled` aborts a mask computation in progress.
    pub fn constraint(
        self: &Arc<Self>,
        beginning: CallsBeginning,
        canceled: &Arc<AtomicBool>,
    ) -> Constrained {
        let scanner = CallScanner::new(&self.syntax, beginning.reasoning, beginning.is_reasoning);
        Constrained(Some(Arc::new(LazyCallConstraint {
            grammars: self.clone(),
            scanner,
            behind_last: beginning.one_call.then_some(beginning.behind_last),
            watchdog: self.watchdog.for_request(canceled),
        })))
    }

    /// A matcher that has consumed the bytes generated after the trigger. `None` if they do not fit
    /// the grammar.
    fn begin(&self, start: &CallStart) -> Option<Matcher> {
        let mut matcher = locked(self.starts.get(start.grammar?)?).clone();
        let trie = self.text.trie();
        let tokens = trie.greedy_tokenize(&start.bytes);
        // `greedy_tokenize` skips bytes that no token spells.
        let is_whole = tokens.iter().map(|id| trie.token_len(*id)).sum::<usize>() == start.bytes.len();
        let consumed = if is_whole { matcher.try_consume_tokens(&tokens).ok() } else { None };
        (consumed == Some(tokens.len())).then_some(matcher)
    }

    /// The cached token mask of a scanner state; `None` if every token is allowed.
    fn text_mask(&self, scanner: &CallScanner) -> Option<Arc<[u32]>> {
        if let Some(found) = locked(&self.masks).get(scanner) {
            return found.clone();
        }
        let begins_none = |id: &Token| {
            let bytes = self.text.bytes(*id);
            let may_open = scanner.may_open(&self.syntax, bytes);
            let start = may_open.then(|| scanner.clone().push(&self.syntax, bytes)).flatten();
            start.is_some_and(|start| self.begin(&start).is_none())
        };
        let excluded: Vec<Token> = self.closers.iter().copied().filter(begins_none).collect();
        let mask = (!excluded.is_empty()).then(|| bits_without(self.text.trie().vocab_size(), &excluded));
        let mut masks = locked(&self.masks);
        if masks.len() >= MASK_CACHE_CAPACITY {
            masks.clear();
        }
        masks.insert(scanner.clone(), mask.clone());
        mask
    }
}

impl Vocabulary {
    /// Compiles tool call grammars that apply from the start of a call. `control_tokens` are the control
    /// tokens that detokenization keeps. Fails soon after `canceled` is set.
    pub fn compile_calls(
        &self,
        syntax: CallSyntax,
        control_tokens: Vec<(Token, String)>,
        canceled: &Arc<AtomicBool>,
    ) -> Result<CallGrammars, GrammarError> {
        let watchdog = self.parts().2.for_request(canceled);
        on_deep_stack(|| CallGrammars::new(self, syntax, control_tokens, &watchdog))
    }
}

/// Initial state of an answer that may hold calls.
#[derive(Clone, Copy, Debug)]
pub struct CallsBeginning {
    /// Start and end markers of the reasoning block, in which no call begins.
    pub reasoning: Option<(&'static str, &'static str)>,
    /// Whether the prompt ends inside the reasoning block.
    pub is_reasoning: bool,
    /// Allow at most one call.
    pub one_call: bool,
    /// What may follow that call.
    pub behind_last: BehindLast,
}

/// What may follow the last allowed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BehindLast {
    /// Only the end of the answer is allowed.
    End,
    /// Free text. Further calls in it are neither constrained nor kept by the parser.
    Anything,
}

/// The `Constraint` of one request over shared [`CallGrammars`].
struct LazyCallConstraint {
    grammars: Arc<CallGrammars>,
    scanner: CallScanner,
    behind_last: Option<BehindLast>,
    watchdog: MatcherWatchdog,
}

impl fmt::Debug for LazyCallConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyCallConstraint").field("grammars", &self.grammars).finish_non_exhaustive()
    }
}

impl Constraint for LazyCallConstraint {
    fn follow(&self) -> Box<dyn Follower> {
        let state = State {
            grammars: self.grammars.clone(),
            watchdog: self.watchdog.clone(),
            behind_last: self.behind_last,
            consumed: Vec::new(),
            checkpoints: vec![(0, self.scanner.clone())],
            mode: Mode::Text(self.scanner.clone()),
            mask: None,
            announced: AnnouncedOutput::default(),
        };
        Box::new(CallFollower { state: Arc::new(Mutex::new(state)), bits: Vec::new() })
    }
}

/// The per-sequence follower.
#[derive(Debug)]
struct CallFollower {
    state: Arc<Mutex<State>>,
    bits: Vec<u32>,
}

impl Follower for CallFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        let mut state = locked(&self.state);
        let mask = match state.allowed(output) {
            Allowed::Only(mask) => mask,
            Allowed::Any => return Allowed::Any,
            Allowed::Nothing => return Allowed::Nothing,
        };
        self.bits.clear();
        self.bits.extend_from_slice(mask);
        Allowed::Only(&self.bits)
    }

    fn expect(&mut self, output: &[Token]) {
        let mut state = locked(&self.state);
        // Scanning text inline is cheaper than waking a helper thread.
        if matches!(state.mode, Mode::Text(_)) && state.go_to(output) && state.is_answered() {
            return;
        }
        let mask_threads = state.grammars.mask_threads.clone();
        drop(state);
        mask_threads.announce(&self.state, output);
    }
}

/// Decoding state of a sequence.
enum Mode {
    Text(CallScanner),
    /// Inside a call; the matcher has consumed the tokens from index `from` on.
    Call {
        matcher: Box<WatchedMatcher>,
        from: usize,
        scanner: CallScanner,
        /// Bytes after the trigger within the same token.
        bytes: Vec<u8>,
    },
    /// Only the end of the answer is allowed.
    End,
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(scanner) => write!(f, "Text({scanner:?})"),
            Self::Call { from, .. } => write!(f, "Call({from})"),
            Self::End => f.write_str("End"),
        }
    }
}

struct State {
    grammars: Arc<CallGrammars>,
    watchdog: MatcherWatchdog,
    behind_last: Option<BehindLast>,
    /// The output that `mode` has consumed.
    consumed: Vec<Token>,
    /// Scanner states by output length, ascending. The first is the initial state.
    checkpoints: Vec<(usize, CallScanner)>,
    mode: Mode,
    /// Mask after `consumed` inside a call, once computed.
    mask: Option<Arc<[u32]>>,
    announced: AnnouncedOutput,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl State {
    /// Whether the next mask is already computed.
    fn is_answered(&self) -> bool {
        match &self.mode {
            Mode::Text(scanner) => locked(&self.grammars.masks).contains_key(scanner),
            Mode::Call { .. } => self.mask.is_some(),
            Mode::End => true,
        }
    }

    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        self.announced.withdraw();
        if !self.go_to(output) {
            return Allowed::Nothing;
        }
        match &mut self.mode {
            Mode::Text(scanner) => {
                self.mask = self.grammars.text_mask(scanner);
                self.mask.as_deref().map_or(Allowed::Any, Allowed::Only)
            }
            Mode::End => Allowed::Only(&self.grammars.ends),
            Mode::Call { matcher, .. } => {
                if self.mask.is_none() {
                    // A grammar that exceeds the matcher's limits fails here; the sequence ends
                    // with an error.
                    let mask: Option<SimpleVob> = matcher.work(Matcher::compute_mask_or_eos).ok();
                    self.mask = mask.filter(|mask| !mask.is_zero()).map(|mask| mask.as_slice().into());
                }
                self.mask.as_deref().map_or(Allowed::Nothing, Allowed::Only)
            }
        }
    }

    /// Moves the state to `output`: rolls back tokens that are not in it, then consumes the new
    /// ones. False if a call in it violates its grammar.
    fn go_to(&mut self, output: &[Token]) -> bool {
        // The common case is one more token, decided by a plain memory comparison.
        let continues = output.starts_with(&self.consumed);
        let common = || self.consumed.iter().zip(output).take_while(|(a, b)| a == b).count();
        let same = if continues { self.consumed.len() } else { common() };
        if !continues && !self.roll_back(same) {
            return false;
        }
        output[same..].iter().all(|token| self.take(*token))
    }

    /// Rolls back to the first `len` tokens.
    fn roll_back(&mut self, len: usize) -> bool {
        self.mask = None;
        if let Mode::Call { matcher, from, .. } = &mut self.mode
            && len >= *from
            && !matcher.matcher().is_error()
            && matcher.work(|matcher| matcher.rollback(self.consumed.len() - len)).is_ok()
        {
            self.consumed.truncate(len);
            return true;
        }
        while self.checkpoints.len() > 1 && self.checkpoints.last().is_some_and(|(at, _)| *at > len) {
            self.checkpoints.pop();
        }
        let Some((at, scanner)) = self.checkpoints.last().cloned() else { return false };
        let again: Vec<Token> = self.consumed.drain(at..).take(len - at).collect();
        self.mode = Mode::Text(scanner);
        again.into_iter().all(|token| self.take(token))
    }

    fn take(&mut self, token: Token) -> bool {
        match &mut self.mode {
            Mode::End => {}
            Mode::Text(scanner) => {
                let start = scanner.push(&self.grammars.syntax, self.grammars.text.bytes(token));
                let begun = start.and_then(|start| Some((self.grammars.begin(&start)?, start.bytes)));
                // Bytes that fit no call were masked out. If they appear anyway, they are text.
                if let Some((begun, bytes)) = begun {
                    let (from, scanner) = (self.consumed.len() + 1, scanner.clone());
                    let matcher = Box::new(self.watchdog.watch(begun));
                    self.mode = Mode::Call { matcher, from, scanner, bytes };
                } else if self
                    .checkpoints
                    .last()
                    .is_none_or(|(at, _)| self.consumed.len() + 1 >= at + CHECKPOINT_INTERVAL)
                {
                    self.checkpoints.push((self.consumed.len() + 1, scanner.clone()));
                }
            }
            Mode::Call { matcher, .. } => {
                let takes = |matcher: &mut Matcher| {
                    !matcher.is_stopped() && matches!(matcher.try_consume_tokens(&[token]), Ok(1))
                };
                if !matcher.work(takes) {
                    return false;
                }
            }
        }
        self.mask = None;
        self.consumed.push(token);
        self.end_call();
        true
    }

    /// Leaves the call state once its grammar has matched as a whole.
    fn end_call(&mut self) {
        let Mode::Call { matcher, scanner, from, bytes } = &mut self.mode else { return };
        if matcher.matcher().is_error() || !matcher.matcher().is_stopped() {
            return;
        }
        let later = self.consumed[*from..].iter().map(|token| self.grammars.text.bytes(*token));
        let mut text = std::iter::once(bytes.as_slice()).chain(later).flatten();
        let first = text.find(|byte| !byte.is_ascii_whitespace()).copied();
        let mut scanner = scanner.clone();
        // In harmony, a message to a function ends the turn.
        let behind = if self.grammars.syntax.channels { Some(BehindLast::End) } else { self.behind_last };
        self.mode = match behind {
            Some(BehindLast::End) => Mode::End,
            Some(BehindLast::Anything) => {
                scanner.close();
                Mode::Text(scanner)
            }
            None => {
                scanner.resume(&self.grammars.syntax, first);
                Mode::Text(scanner)
            }
        };
        if let Mode::Text(scanner) = &self.mode {
            self.checkpoints.push((self.consumed.len(), scanner.clone()));
        }
    }
}

impl LookAhead for State {
    fn announced(&mut self) -> &mut AnnouncedOutput {
        &mut self.announced
    }

    fn compute(&mut self, output: &[Token]) {
        self.allowed(output);
    }
}
