//! Drafters without a model: what followed earlier occurrences of the context is proposed again.
//!
//! - [`NgramDrafter`] looks the last n tokens up in prompt and output.
//! - [`SuffixDrafter`] finds the longest suffix that occurred before, in prompt and output, in the
//!   predicted output of the request, and in recent outputs of the same API key. Counts choose the
//!   continuation.
//!
//! Agents repeat files and tool results, which is where these win most. A step costs some
//! microseconds, and allocates nothing once a request's history is read in.

use crate::request::ids::RequestId;
use crate::request::proposal::{Evidence, Proposal};
use crate::request::sequence::Sequence;
use crate::speculation::drafter::Drafter;
use kvasir_draft::{NgramIndex, State, SuffixAutomaton};
use kvasir_kv::Token;
use std::collections::HashMap;

/// Default number of drafts per step.
pub const MOST_DRAFTS: u32 = 16;
/// Default n of n-grams.
pub const NGRAM: usize = 3;
/// Tokens of a request's history that are read in, at most: the newest ones.
const MOST_HISTORY: usize = 1 << 18;
/// Output tokens that are kept per API key, about.
const MOST_SHARED: u32 = 1 << 16;
/// API keys whose outputs are kept.
const MOST_KEYS: usize = 64;
/// Context below which a match is taken for chance.
const LEAST_MATCH: u32 = 2;
/// Probability, all before it included, below which a draft is not worth proposing.
const LEAST_SHARE: f32 = 0.03;
/// Tokens of the prompt that are repeated behind the predicted output, so that the first outputs
/// find it.
const PREDICTION_CONTEXT: usize = 16;
/// Ends a request's outputs among those of its key. No model has this id.
const SEPARATOR: Token = Token::MAX;

/// Copies the tokens of a sequence from `read` on into `unread`, and counts them as read.
fn read_new(sequence: &Sequence, read: &mut u32, unread: &mut Vec<Token>) {
    unread.clear();
    let from = std::mem::replace(read, sequence.tokens.len());
    sequence.tokens.copy(from..sequence.tokens.len(), unread);
}

/// The newest part of a prompt.
fn history(prompt: &[Token]) -> &[Token] {
    &prompt[prompt.len().saturating_sub(MOST_HISTORY)..]
}

/// Proposes what followed the newest earlier occurrence of the last n tokens.
#[derive(Debug)]
pub struct NgramDrafter {
    n: usize,
    width: u32,
    /// Per request its index, and the tokens of the sequence that are in it.
    requests: HashMap<RequestId, (NgramIndex, u32)>,
    unread: Vec<Token>,
}

impl NgramDrafter {
    /// Matches `n` tokens and proposes up to `width`.
    pub fn new(n: usize, width: u32) -> Self {
        Self { n, width, requests: HashMap::new(), unread: Vec::new() }
    }
}

impl Drafter for NgramDrafter {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let n = self.n;
        let (index, read) = self.requests.entry(sequence.id()).or_insert_with(|| {
            let mut index = NgramIndex::new(n);
            index.reserve(history(sequence.prompt()).len() + sequence.outputs_left() as usize + 1);
            history(sequence.prompt()).iter().for_each(|token| index.push(*token));
            (index, sequence.prompt_len())
        });
        read_new(sequence, read, &mut self.unread);
        self.unread.iter().for_each(|token| index.push(*token));
        let found = index.continuation().iter().take(self.width as usize);
        proposal.tokens.extend(found);
        // The further from the match, the less sure.
        proposal
            .evidence
            .extend((0..proposal.tokens.len()).map(|i| Evidence::of_match(n as u32 + i as u32, 0.8)));
    }

    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        self.requests.retain(|id, _| lives(*id));
    }
}

/// What a suffix drafter knows of one request.
#[derive(Debug)]
struct Known {
    own: SuffixAutomaton,
    read: u32,
    key: u64,
    /// The context within the outputs of the key, with its length.
    context: (State, u32),
    /// Number of the shared outputs' generation to which `context` belongs.
    generation: u64,
    outputs: Vec<Token>,
}

/// Recent outputs of one API key.
#[derive(Debug, Default)]
struct Shared {
    automaton: SuffixAutomaton,
    generation: u64,
    used: u64,
}

/// Proposes what most often followed the longest suffix that occurred before.
#[derive(Debug)]
pub struct SuffixDrafter {
    width: u32,
    requests: HashMap<RequestId, Known>,
    shared: HashMap<u64, Shared>,
    clock: u64,
    unread: Vec<Token>,
}

impl SuffixDrafter {
    /// Proposes up to `width` tokens.
    pub fn new(width: u32) -> Self {
        Self { width, requests: HashMap::new(), shared: HashMap::new(), clock: 0, unread: Vec::new() }
    }

    fn know(sequence: &Sequence) -> Known {
        let (prompt, prediction) = (history(sequence.prompt()), &sequence.params().prediction[..]);
        let mut own = SuffixAutomaton::default();
        let left = (sequence.outputs_left() as usize + 1).min(MOST_HISTORY);
        own.reserve(prompt.len() + prediction.len() + PREDICTION_CONTEXT + left);
        prompt.iter().for_each(|token| own.push(*token));
        if !prediction.is_empty() {
            prediction.iter().for_each(|token| own.push(*token));
            prompt[prompt.len().saturating_sub(PREDICTION_CONTEXT)..]
                .iter()
                .for_each(|token| own.push(*token));
        }
        let context = (own.root(), 0);
        let key = sequence.params().key ^ sequence.params().salt.rotate_left(32);
        Known {
            own,
            read: sequence.prompt_len(),
            key,
            context,
            generation: u64::MAX,
            outputs: Vec::with_capacity(left),
        }
    }

    /// Adds a request's outputs to those of its key.
    fn share(&mut self, known: &Known) {
        self.clock += 1;
        let shared = self.shared.entry(known.key).or_default();
        shared.used = self.clock;
        if shared.automaton.len() > MOST_SHARED {
            shared.automaton = SuffixAutomaton::default();
        }
        shared.generation = self.clock;
        known.outputs.iter().chain(&[SEPARATOR]).for_each(|token| shared.automaton.push(*token));
        if self.shared.len() > MOST_KEYS {
            let oldest = self.shared.iter().min_by_key(|(_, shared)| shared.used).map(|(key, _)| *key);
            oldest.map(|key| self.shared.remove(&key));
        }
    }
}

/// Appends the likeliest continuation of a context of `len` tokens.
fn continue_from(automaton: &SuffixAutomaton, at: (State, u32), width: u32, proposal: &mut Proposal) {
    let ((mut state, mut len), mut share) = (at, 1.0);
    while proposal.tokens.len() < width as usize {
        let Some((token, next, own)) = automaton.likeliest(state) else { return };
        share *= own;
        if token == SEPARATOR || share < LEAST_SHARE {
            return;
        }
        proposal.tokens.push(token);
        proposal.evidence.push(Evidence::of_match(len, own));
        (state, len) = (next, len + 1);
    }
}

impl Drafter for SuffixDrafter {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let known = self.requests.entry(sequence.id()).or_insert_with(|| Self::know(sequence));
        read_new(sequence, &mut known.read, &mut self.unread);
        let shared = self.shared.get(&known.key);
        if let Some(shared) = shared.filter(|shared| shared.generation != known.generation) {
            known.generation = shared.generation;
            // The outputs have changed: the context is found anew, from the last tokens.
            known.context = (shared.automaton.root(), 0);
            for token in &known.outputs[known.outputs.len().saturating_sub(64)..] {
                known.context = shared.automaton.follow(known.context.0, known.context.1, *token);
            }
        }
        for token in &self.unread {
            known.own.push(*token);
            known.outputs.push(*token);
            if let Some(shared) = shared {
                known.context = shared.automaton.follow(known.context.0, known.context.1, *token);
            }
        }
        let own = known.own.repeated_suffix();
        match shared {
            Some(shared) if known.context.1 > own.1.max(LEAST_MATCH) => {
                let mut at = known.context;
                // The end of an output has no continuation; a shorter context may have one.
                while shared.automaton.likeliest(at.0).is_none() {
                    let Some(shorter) = shared.automaton.shorter(at.0) else { return };
                    at = shorter;
                }
                continue_from(&shared.automaton, at, self.width, proposal);
            }
            _ if own.1 >= LEAST_MATCH => continue_from(&known.own, own, self.width, proposal),
            _ => {}
        }
    }

    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        let ended: Vec<RequestId> = self.requests.keys().copied().filter(|id| !lives(*id)).collect();
        for id in ended {
            if let Some(known) = self.requests.remove(&id) {
                self.share(&known);
            }
        }
    }
}
