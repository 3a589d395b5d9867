//! Lazy constrained decoding of tool calls: a grammar applies from the start of a call; all other
//! text is free.
//!
//! A sequence alternates between two states:
//!
//! 1. *Text.* A [`Scanner`] reads the bytes of each token. Every token is allowed and no mask is
//!    made, with one exception: a token that would complete a call start and continue with bytes
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
//! `call_grammars/tests.rs` generates random answers and checks that every parsed call fits its
//! tool's schema.

#[cfg(test)]
mod tests;

use crate::grammar::{
    call_scanner::{CallSyntax, Opened, Scanner},
    lark::calls_grammar,
    mask_threads::{Helper, LookAhead, locked},
    matcher_watchdog::{MatcherWatchdog, Watched},
    vocabulary::{Refused, Vocabulary, bits_without, on_deep_stack},
};
use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use llguidance::{
    Matcher,
    toktrie::{SimpleVob, TokEnv, TokTrie},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

/// The compiled grammars of a set of tools in one dialect, shared by all requests that offer these
/// tools.
pub struct CallGrammars {
    syntax: CallSyntax,
    /// Matcher after a call start, one per grammar. Locked only to be cloned.
    starts: Vec<Mutex<Matcher>>,
    words: TokEnv,
    /// Control tokens that detokenization keeps, with their spelling.
    spelled: Vec<(Token, String)>,
    /// Text tokens that can complete a call start.
    closers: Vec<Token>,
    /// Cache: token mask of a scanner state, `None` if it excludes no token.
    exclusions: Mutex<HashMap<Scanner, Option<Arc<[u32]>>>>,
    /// Token mask that allows only end-of-sequence tokens.
    ends: Arc<[u32]>,
    helper: Arc<Helper>,
    watchdog: MatcherWatchdog,
}

/// Capacity of the mask cache, in scanner states.
const REMEMBERED: usize = 1024;
/// Text tokens between two checkpoints.
const STRIDE: usize = 64;

impl fmt::Debug for CallGrammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallGrammars").field("names", &self.syntax.names).finish_non_exhaustive()
    }
}

impl CallGrammars {
    /// Compiles the grammars that follow a call start. `spelled` are the control tokens that
    /// detokenization keeps.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        syntax: CallSyntax,
        spelled: Vec<(Token, String)>,
    ) -> Result<Self, Refused> {
        let (words, helper, watchdog) = vocabulary.parts();
        let mut starts = Vec::with_capacity(syntax.grammars.len());
        for ways in &syntax.grammars {
            let grammar = calls_grammar(ways, |text| vocabulary.literal(text)).map_err(Refused)?;
            starts.push(Mutex::new(vocabulary.start(grammar)?));
        }
        let closing = syntax.closers();
        let trie = words.tok_trie();
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
            words,
            spelled,
            exclusions: Mutex::default(),
            helper,
            watchdog,
        })
    }

    /// The constraint of one answer.
    pub fn constraint(self: &Arc<Self>, beginning: CallsBeginning) -> Constrained {
        let scanner = Scanner::new(&self.syntax, beginning.reasoning, beginning.is_reasoning);
        Constrained(Some(Arc::new(Triggered {
            grammars: self.clone(),
            scanner,
            behind_last: beginning.one_call.then_some(beginning.behind_last),
        })))
    }

    /// The bytes that a token adds to the detokenized answer.
    fn bytes(&self, token: Token) -> &[u8] {
        let bytes = self.words.tok_trie().token(token);
        if is_text(bytes) {
            bytes
        } else {
            let spelled = self.spelled.iter().find(|(id, _)| *id == token);
            spelled.map_or(&[], |(_, spelling)| spelling.as_bytes())
        }
    }

    /// A matcher that has consumed the bytes generated after the trigger. `None` if they do not fit
    /// the grammar.
    fn begin(&self, opened: &Opened) -> Option<Matcher> {
        let mut matcher = locked(self.starts.get(opened.grammar?)?).clone();
        let trie = self.words.tok_trie();
        let tokens = trie.greedy_tokenize(&opened.bytes);
        // `greedy_tokenize` skips bytes that no token spells.
        let is_whole = tokens.iter().map(|id| trie.token_len(*id)).sum::<usize>() == opened.bytes.len();
        let taken = if is_whole { matcher.try_consume_tokens(&tokens).ok() } else { None };
        (taken == Some(tokens.len())).then_some(matcher)
    }

    /// The cached token mask of a scanner state; `None` if every token is allowed.
    fn exclusion(&self, scanner: &Scanner) -> Option<Arc<[u32]>> {
        if let Some(found) = locked(&self.exclusions).get(scanner) {
            return found.clone();
        }
        let begins_none = |id: &Token| {
            let bytes = self.bytes(*id);
            let may_open = scanner.may_open(&self.syntax, bytes);
            let opened = may_open.then(|| scanner.clone().push(&self.syntax, bytes)).flatten();
            opened.is_some_and(|opened| self.begin(&opened).is_none())
        };
        let excluded: Vec<Token> = self.closers.iter().copied().filter(begins_none).collect();
        let mask =
            (!excluded.is_empty()).then(|| bits_without(self.words.tok_trie().vocab_size(), &excluded));
        let mut exclusions = locked(&self.exclusions);
        if exclusions.len() >= REMEMBERED {
            exclusions.clear();
        }
        exclusions.insert(scanner.clone(), mask.clone());
        mask
    }
}

impl Vocabulary {
    /// Compiles tool call grammars that apply from the start of a call. `spelled` are the control
    /// tokens that detokenization keeps.
    pub fn compile_calls(
        &self,
        syntax: CallSyntax,
        spelled: Vec<(Token, String)>,
    ) -> Result<CallGrammars, Refused> {
        on_deep_stack(|| CallGrammars::new(self, syntax, spelled))
    }
}

/// Control tokens have a marker byte in front of their spelling; unused ids have no bytes.
fn is_text(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| *first != TokTrie::SPECIAL_TOKEN_MARKER)
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
#[derive(Debug)]
struct Triggered {
    grammars: Arc<CallGrammars>,
    scanner: Scanner,
    behind_last: Option<BehindLast>,
}

impl Constraint for Triggered {
    fn follow(&self) -> Box<dyn Follower> {
        let state = State {
            grammars: self.grammars.clone(),
            behind_last: self.behind_last,
            taken: Vec::new(),
            checkpoints: vec![(0, self.scanner.clone())],
            place: Place::Text(self.scanner.clone()),
            mask: None,
            expected: Vec::new(),
            is_expecting: false,
        };
        Box::new(Following { state: Arc::new(Mutex::new(state)), bits: Vec::new() })
    }
}

/// The per-sequence follower.
#[derive(Debug)]
struct Following {
    state: Arc<Mutex<State>>,
    bits: Vec<u32>,
}

impl Follower for Following {
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
        if matches!(state.place, Place::Text(_)) && state.go_to(output) && state.is_answered() {
            return;
        }
        state.expected.clear();
        state.expected.extend_from_slice(output);
        state.is_expecting = true;
        let helper = state.grammars.helper.clone();
        drop(state);
        helper.ask(self.state.clone());
    }
}

/// Decoding state of a sequence.
enum Place {
    Text(Scanner),
    /// Inside a call; the matcher has consumed the tokens from index `from` on.
    Call {
        matcher: Box<Watched>,
        from: usize,
        scanner: Scanner,
        /// Bytes after the trigger within the same token.
        bytes: Vec<u8>,
    },
    /// Only the end of the answer is allowed.
    End,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(scanner) => write!(f, "Text({scanner:?})"),
            Self::Call { from, .. } => write!(f, "Call({from})"),
            Self::End => f.write_str("End"),
        }
    }
}

#[derive(Debug)]
struct State {
    grammars: Arc<CallGrammars>,
    behind_last: Option<BehindLast>,
    /// The output that `place` has consumed.
    taken: Vec<Token>,
    /// Scanner states by output length, ascending. The first is the initial state.
    checkpoints: Vec<(usize, Scanner)>,
    place: Place,
    /// Mask after `taken` inside a call, once computed.
    mask: Option<Arc<[u32]>>,
    /// The output announced for the next `allowed`.
    expected: Vec<Token>,
    is_expecting: bool,
}

impl State {
    /// Whether the next mask is already computed.
    fn is_answered(&self) -> bool {
        match &self.place {
            Place::Text(scanner) => locked(&self.grammars.exclusions).contains_key(scanner),
            Place::Call { .. } => self.mask.is_some(),
            Place::End => true,
        }
    }

    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        self.is_expecting = false;
        if !self.go_to(output) {
            return Allowed::Nothing;
        }
        match &mut self.place {
            Place::Text(scanner) => {
                self.mask = self.grammars.exclusion(scanner);
                self.mask.as_deref().map_or(Allowed::Any, Allowed::Only)
            }
            Place::End => Allowed::Only(&self.grammars.ends),
            Place::Call { matcher, .. } => {
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
        let goes_on = output.starts_with(&self.taken);
        let common = || self.taken.iter().zip(output).take_while(|(a, b)| a == b).count();
        let same = if goes_on { self.taken.len() } else { common() };
        if !goes_on && !self.take_back(same) {
            return false;
        }
        output[same..].iter().all(|token| self.take(*token))
    }

    /// Rolls back to the first `len` tokens.
    fn take_back(&mut self, len: usize) -> bool {
        self.mask = None;
        if let Place::Call { matcher, from, .. } = &mut self.place
            && len >= *from
            && !matcher.matcher().is_error()
            && matcher.work(|matcher| matcher.rollback(self.taken.len() - len)).is_ok()
        {
            self.taken.truncate(len);
            return true;
        }
        while self.checkpoints.len() > 1 && self.checkpoints.last().is_some_and(|(at, _)| *at > len) {
            self.checkpoints.pop();
        }
        let Some((at, scanner)) = self.checkpoints.last().cloned() else { return false };
        let again: Vec<Token> = self.taken.drain(at..).take(len - at).collect();
        self.place = Place::Text(scanner);
        again.into_iter().all(|token| self.take(token))
    }

    fn take(&mut self, token: Token) -> bool {
        match &mut self.place {
            Place::End => {}
            Place::Text(scanner) => {
                let opened = scanner.push(&self.grammars.syntax, self.grammars.bytes(token));
                let begun = opened.and_then(|opened| Some((self.grammars.begin(&opened)?, opened.bytes)));
                // Bytes that fit no call were masked out. If they appear anyway, they are text.
                if let Some((begun, bytes)) = begun {
                    let (from, scanner) = (self.taken.len() + 1, scanner.clone());
                    let matcher = Box::new(self.grammars.watchdog.watch(begun));
                    self.place = Place::Call { matcher, from, scanner, bytes };
                } else if self.checkpoints.last().is_none_or(|(at, _)| self.taken.len() + 1 >= at + STRIDE) {
                    self.checkpoints.push((self.taken.len() + 1, scanner.clone()));
                }
            }
            Place::Call { matcher, .. } => {
                let takes = |matcher: &mut Matcher| {
                    !matcher.is_stopped() && matches!(matcher.try_consume_tokens(&[token]), Ok(1))
                };
                if !matcher.work(takes) {
                    return false;
                }
            }
        }
        self.mask = None;
        self.taken.push(token);
        self.end_call();
        true
    }

    /// Leaves the call state once its grammar has matched as a whole.
    fn end_call(&mut self) {
        let Place::Call { matcher, scanner, from, bytes } = &mut self.place else { return };
        if matcher.matcher().is_error() || !matcher.matcher().is_stopped() {
            return;
        }
        let later = self.taken[*from..].iter().map(|token| self.grammars.bytes(*token));
        let mut text = std::iter::once(bytes.as_slice()).chain(later).flatten();
        let first = text.find(|byte| !byte.is_ascii_whitespace()).copied();
        let mut scanner = scanner.clone();
        // In harmony, a message to a function ends the turn.
        let behind = if self.grammars.syntax.channels { Some(BehindLast::End) } else { self.behind_last };
        self.place = match behind {
            Some(BehindLast::End) => Place::End,
            Some(BehindLast::Anything) => {
                scanner.close();
                Place::Text(scanner)
            }
            None => {
                scanner.resume(&self.grammars.syntax, first);
                Place::Text(scanner)
            }
        };
        if let Place::Text(scanner) = &self.place {
            self.checkpoints.push((self.taken.len(), scanner.clone()));
        }
    }
}

impl LookAhead for State {
    fn look_ahead(&mut self) {
        if self.is_expecting {
            let expected = std::mem::take(&mut self.expected);
            self.allowed(&expected);
            self.expected = expected;
        }
    }
}
