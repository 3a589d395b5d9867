//! Grammar compiler front end: a model's token vocabulary for llguidance, and compilation of
//! specifications into constraints.
//!
//! Compilation runs on a thread with a deep stack (`COMPILE_STACK`), under the watchdog's time
//! limit. It rejects grammars that allow no token or whose forced text has no end.

use crate::grammar::{
    answer_constraint::AnswerConstraint,
    mask_threads::MaskThreads,
    matcher_watchdog::MatcherWatchdog,
    rehearsal::rehearse,
    spec::{Part, Shape},
};
use kvasir_formats::Tokenizer;
use kvasir_kv::Token;
use kvasir_sample::Constrained;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{
    Cancelled, Matcher, ParserFactory,
    api::{StopReason, TopLevelGrammar},
    earley::SlicedBiasComputer,
};
use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    thread,
};

/// A model's vocabulary as a token trie, with the grammar compiler built on it.
pub struct Vocabulary {
    factory: ParserFactory,
    mask_threads: Arc<MaskThreads>,
    watchdog: MatcherWatchdog,
    /// Spellings of control tokens, longest first.
    specials: Vec<(String, Token)>,
}

/// Why a specification cannot be compiled or followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError(pub String);

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GrammarError {}

/// Stack size of the compile thread, in bytes of address space: enough for a rule in every few
/// bytes of the largest grammar.
const COMPILE_STACK: usize = 256 << 20;
/// Longest token in the trie, in bytes: the trie has a node per byte.
const MAX_TOKEN: usize = 1024;
/// Longest library message, in characters, that an error repeats.
const MAX_MESSAGE: usize = 300;

impl Vocabulary {
    /// The vocabulary of a model with `size` token ids whose answers end with one of `eos`. Spawns
    /// the mask threads.
    pub fn new(tokenizer: Arc<Tokenizer>, size: u32, eos: &[Token]) -> Result<Self, GrammarError> {
        let eos: Vec<Token> = eos.iter().copied().filter(|id| *id < size).collect();
        let Some(first) = eos.first() else {
            return Err(GrammarError("needs a model that says which token ends an answer".into()));
        };
        let mut specials = Vec::new();
        let mut tok_env = Vec::with_capacity(size as usize);
        for id in 0..size {
            let is_control = tokenizer.is_special(id) || eos.contains(&id);
            tok_env.push(if is_control {
                let spelling = tokenizer.id_to_token(id).unwrap_or_default();
                let word = [&[TokTrie::SPECIAL_TOKEN_MARKER], spelling.as_bytes()].concat();
                specials.push((spelling, id));
                word
            } else {
                tokenizer.bytes(id).filter(|bytes| is_text(bytes)).unwrap_or_default()
            });
        }
        specials.retain(|(spelling, _)| !spelling.is_empty());
        specials.sort_by_key(|(spelling, _)| std::cmp::Reverse(spelling.len()));
        let trie = TokTrie::from(&TokRxInfo::new(size, *first), &tok_env).with_eos_tokens(&eos);
        let is_exact = is_exact(&tokenizer);
        let tok_env: TokEnv = Arc::new(TokenizerAdapter { trie, tokenizer, is_exact });
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&tok_env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| GrammarError(short(&error.to_string())))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let threads = thread::available_parallelism().map_or(1, |n| n.get() / 4).clamp(1, 4);
        let mask_threads = MaskThreads::new(threads).map_err(|error| GrammarError(error.to_string()))?;
        Ok(Self {
            factory,
            mask_threads: Arc::new(mask_threads),
            watchdog: MatcherWatchdog::default(),
            specials,
        })
    }

    /// Compiles a specification, preceded by `lead`. Runs on a thread of its own, because long
    /// chains of rules recurse deeply. Rejects what cannot be followed or would allow nothing.
    pub fn compile(&self, shape: &Shape, lead: &[Part]) -> Result<Constrained, GrammarError> {
        self.compile_cancelable(shape, lead, &Arc::default())
    }

    /// [`compile`](Self::compile) with cancellation: setting `canceled` aborts the compilation and
    /// the mask computations of the constraint.
    pub fn compile_cancelable(
        &self,
        shape: &Shape,
        lead: &[Part],
        canceled: &Arc<AtomicBool>,
    ) -> Result<Constrained, GrammarError> {
        let watchdog = self.watchdog.for_request(canceled);
        let start = on_deep_stack(|| self.checked_start(shape, lead, &watchdog))?;
        let constraint = AnswerConstraint::new(start, self.mask_threads.clone(), watchdog);
        Ok(Constrained(Some(Arc::new(constraint))))
    }

    /// A matcher at the start of a specification, preceded by `lead`. Rejects what cannot be followed
    /// or would allow nothing.
    pub(super) fn checked_start(
        &self,
        shape: &Shape,
        lead: &[Part],
        watchdog: &MatcherWatchdog,
    ) -> Result<Matcher, GrammarError> {
        // Checks the specification alone first: behind `lead`, its errors would show only once it
        // begins.
        let alone = self.begin(shape, &[], watchdog)?;
        self.rehearse(&alone, watchdog)?;
        if lead.is_empty() { Ok(alone) } else { self.begin(shape, lead, watchdog) }
    }

    /// A matcher at the start of a specification.
    fn begin(
        &self,
        shape: &Shape,
        lead: &[Part],
        watchdog: &MatcherWatchdog,
    ) -> Result<Matcher, GrammarError> {
        let grammar = shape.grammar(lead, |text| self.literal(text)).map_err(GrammarError)?;
        self.start(grammar, watchdog)
    }

    /// A matcher at the start of a grammar. Rejects grammars that allow no token.
    pub(super) fn start(
        &self,
        grammar: TopLevelGrammar,
        watchdog: &MatcherWatchdog,
    ) -> Result<Matcher, GrammarError> {
        let mut start = watchdog.watch(Matcher::new(self.factory.create_parser(grammar)));
        let mask = start.work(Matcher::compute_mask).map_err(|error| grammar_error(&error.to_string()))?;
        let start = start.matcher().clone();
        if start.is_error() || mask.is_zero() {
            return Err(GrammarError(NOTHING.into()));
        }
        if let (1, Some(forced)) = (mask.num_set(), mask.first_bit_set()) {
            // Whether forced text has an end shows only at the second token.
            let mut second = watchdog.watch(start.clone());
            let continues = second.work(|matcher| {
                matcher.consume_token(forced as Token)?;
                matcher.compute_mask_or_eos()
            });
            continues.map_err(|_| GrammarError(ENDLESS.into()))?;
        }
        Ok(start)
    }

    /// Rejects a grammar whose masks exceed the library's limits within its first tokens.
    pub(super) fn rehearse(&self, start: &Matcher, watchdog: &MatcherWatchdog) -> Result<(), GrammarError> {
        let followed = rehearse(start, self.factory.tok_env().tok_trie(), watchdog);
        followed.map_err(|error| {
            if error == Cancelled.to_string() {
                GrammarError(ENDLESS.into())
            } else {
                GrammarError(format!("{TOO_MUCH}: {}", short(&error)))
            }
        })
    }

    /// What all followers share: token trie, mask threads, watchdog.
    pub(super) fn parts(&self) -> (TokEnv, Arc<MaskThreads>, MatcherWatchdog) {
        (self.factory.tok_env().clone(), self.mask_threads.clone(), self.watchdog.clone())
    }

    /// Quotes a text for a grammar: control tokens by id (`<[id]>`), the rest as string literals.
    pub(super) fn literal(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let here =
                |(spelling, id): &(String, Token)| Some((rest.find(spelling.as_str())?, spelling.len(), *id));
            let next = self
                .specials
                .iter()
                .filter_map(here)
                .min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len)));
            let (at, len, mark) =
                next.map_or((rest.len(), 0, String::new()), |(at, len, id)| (at, len, format!("<[{id}]> ")));
            if at > 0 {
                out += &format!("{} ", serde_json::Value::from(&rest[..at]));
            }
            out += &mark;
            rest = &rest[at + len..];
        }
        if out.is_empty() { "\"\"".into() } else { out }
    }
}

/// Runs a compilation on a thread with a deep stack. A panic becomes an error.
pub(crate) fn on_deep_stack<T: Send>(
    compile: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("forms".into()).stack_size(COMPILE_STACK);
        let job = thread.spawn_scoped(scope, compile);
        job.map_err(|error| GrammarError(error.to_string()))?
            .join()
            .unwrap_or_else(|_| Err(GrammarError("cannot be compiled".into())))
    })
}

/// Token mask of all ids below `size` except `excluded`.
pub(crate) fn bits_without(size: usize, excluded: &[Token]) -> Arc<[u32]> {
    let mut bits = vec![u32::MAX; size.div_ceil(32)];
    for id in excluded {
        if let Some(word) = bits.get_mut(*id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
    bits.into()
}

/// Whether a token belongs in the trie as text: bytes that collide with control tokens or are too
/// long are left out.
fn is_text(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| *first != TokTrie::SPECIAL_TOKEN_MARKER) && bytes.len() <= MAX_TOKEN
}

/// Whether encoding is byte-exact, so that forced text can be tokenized canonically.
fn is_exact(tokenizer: &Tokenizer) -> bool {
    let probe = "a {\"b\": 1}";
    let bytes =
        |ids: Vec<Token>| -> Vec<u8> { ids.iter().filter_map(|id| tokenizer.bytes(*id)).flatten().collect() };
    tokenizer.encode(probe, false).is_ok_and(|ids| bytes(ids) == probe.as_bytes())
}

/// Adapter of the tokenizer to llguidance.
struct TokenizerAdapter {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    is_exact: bool,
}

impl TokenizerEnv for TokenizerAdapter {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        let greedy = |text: &str| self.trie.greedy_tokenize(text.as_bytes());
        let whole = |text: &str| {
            if self.is_exact {
                self.tokenizer.encode(text, false).unwrap_or_else(|_| greedy(text))
            } else {
                greedy(text)
            }
        };
        self.trie.tokenize_with_greedy_fallback(bytes, whole)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_exact
    }
}

const NOTHING: &str = "matches nothing that this model can write";
const ENDLESS: &str =
    "cannot be followed: it is too ambiguous, or what it leaves no choice about is too long or has no end";

pub(super) const TOO_MUCH: &str = "cannot be followed within the limits of a token";

/// Maps a library error at the start of a grammar.
fn grammar_error(error: &str) -> GrammarError {
    // The library appends lines to its reason.
    let reason = error.lines().next().unwrap_or_default().trim();
    GrammarError(match error {
        _ if reason == StopReason::NoExtensionBias.to_string() => NOTHING.into(),
        _ if error == Cancelled.to_string() => ENDLESS.into(),
        _ => short(error),
    })
}

/// The first line of a library error, truncated; internal panics are not quoted. If it ends with a
/// colon, the line that states the cause is appended.
pub(super) fn short(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines.next() {
        Some(line) if !line.starts_with("panic") => {
            let why =
                if line.ends_with(':') { lines.find_map(|line| line.strip_prefix("error: ")) } else { None };
            let all = why.map_or_else(|| line.to_owned(), |why| format!("{line} {why}"));
            all.chars().take(MAX_MESSAGE).collect()
        }
        _ => "cannot be compiled".into(),
    }
}
