//! Drafters without a model: what followed earlier occurrences of the context is proposed again.
//!
//! - [`NgramDrafter`] looks the last n tokens up in prompt and output.
//! - [`SuffixDrafter`] finds the longest suffix that occurred before, in prompt and output, in the
//!   predicted output of the request, and in recent outputs of the same API key. Counts choose the
//!   continuation.
//!
//! Agents repeat files and tool results, which is where these win most. A long history is read in over
//! several steps. Then a step costs some microseconds, and allocates nothing.

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
/// Tokens of a prompt that are read in, at most: the newest ones. As many of a predicted output.
const MOST_HISTORY: usize = 1 << 18;
/// Tokens that are read in per step, of all requests together, so that a long history delays no step
/// by more than a few milliseconds. A request gets drafts once its history is read.
const READ_PER_STEP: usize = 2048;
/// Outputs that an index has room for before it grows.
const OUTPUTS_EXPECTED: usize = 4096;
/// Newest outputs of a request among which its context in the outputs of its key is looked for.
const MOST_CONTEXT: usize = 64;
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

/// The tokens of a request that are read into an index, one after the other: the newest part of its
/// prompt, its predicted output with some of the prompt behind, and its outputs.
struct Source<'a> {
    sequence: &'a Sequence,
    /// What comes before the outputs.
    before: [&'a [Token]; 3],
}

impl<'a> Source<'a> {
    fn new(sequence: &'a Sequence, prediction: &'a [Token]) -> Self {
        let newest = |tokens: &'a [Token], most| &tokens[tokens.len().saturating_sub(most)..];
        let prompt = newest(sequence.prompt(), MOST_HISTORY);
        let context = if prediction.is_empty() { 0 } else { PREDICTION_CONTEXT };
        let prediction = &prediction[..prediction.len().min(MOST_HISTORY)];
        Self { sequence, before: [prompt, prediction, newest(prompt, context)] }
    }

    /// Number of tokens before the outputs.
    fn before(&self) -> usize {
        self.before.iter().map(|part| part.len()).sum()
    }

    /// Tokens that an index needs room for at first. It grows if there are more outputs.
    fn room(&self) -> usize {
        self.before() + self.outputs_expected()
    }

    fn outputs_expected(&self) -> usize {
        (self.sequence.outputs_left() as usize + 1).min(OUTPUTS_EXPECTED)
    }

    /// Copies up to `most` tokens from the `read`-th on into `unread`. Whether they were all.
    fn copy(&self, mut read: usize, most: usize, unread: &mut Vec<Token>) -> bool {
        unread.clear();
        for part in self.before {
            let rest = &part[read.min(part.len())..];
            unread.extend(rest.iter().take(most - unread.len()));
            read -= part.len() - rest.len();
        }
        self.sequence.copy_outputs(read as u32, most - unread.len(), unread)
    }
}

/// What a drafter may still read in this step, and the memory for it.
#[derive(Debug, Default)]
struct Reading {
    budget: usize,
    unread: Vec<Token>,
}

impl Reading {
    fn begin_step(&mut self) {
        self.budget = READ_PER_STEP;
    }

    /// Copies what `read` has not counted yet into `unread`, as far as the budget goes. Whether it was
    /// all.
    fn read(&mut self, source: &Source, read: &mut usize) -> bool {
        let all = source.copy(*read, self.budget, &mut self.unread);
        *read += self.unread.len();
        self.budget -= self.unread.len();
        all
    }
}

/// Proposes what followed the newest earlier occurrence of the last n tokens.
#[derive(Debug)]
pub struct NgramDrafter {
    n: usize,
    width: u32,
    /// Per request its index, and the tokens that are in it.
    requests: HashMap<RequestId, (NgramIndex, usize)>,
    reading: Reading,
}

impl NgramDrafter {
    /// Matches `n` tokens and proposes up to `width`.
    pub fn new(n: usize, width: u32) -> Self {
        Self { n, width, requests: HashMap::new(), reading: Reading::default() }
    }
}

impl Drafter for NgramDrafter {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn begin_step(&mut self) {
        self.reading.begin_step();
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let n = self.n;
        let source = Source::new(sequence, &[]);
        let (index, read) = self.requests.entry(sequence.id()).or_insert_with(|| {
            let mut index = NgramIndex::new(n);
            index.reserve(source.room());
            (index, 0)
        });
        let all = self.reading.read(&source, read);
        self.reading.unread.iter().for_each(|token| index.push(*token));
        if !all {
            return;
        }
        proposal.tokens.extend(index.continuation().iter().take(self.width as usize));
        // The classes let each distance from the match learn its own acceptance.
        proposal
            .evidence
            .extend((0..proposal.tokens.len()).map(|i| Evidence::of_match(n as u32 + i as u32, 0.8)));
    }

    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        self.requests.retain(|id, _| lives(*id));
    }
}

/// What a suffix drafter has read of one request.
#[derive(Debug)]
struct RequestHistory {
    automaton: SuffixAutomaton,
    read: usize,
    key: u64,
    /// The context within the outputs of the key, with its length.
    context: (State, u32),
    /// Number of the key's generation to which `context` belongs.
    generation: u64,
    outputs: Vec<Token>,
}

impl RequestHistory {
    fn new(sequence: &Sequence, source: &Source) -> Self {
        let mut automaton = SuffixAutomaton::default();
        automaton.reserve(source.room());
        Self {
            context: (automaton.root(), 0),
            automaton,
            read: 0,
            key: sequence.params().key ^ sequence.params().salt.rotate_left(32),
            generation: u64::MAX,
            outputs: Vec::with_capacity(source.outputs_expected()),
        }
    }
}

/// Recent outputs of one API key.
#[derive(Debug, Default)]
struct KeyHistory {
    automaton: SuffixAutomaton,
    generation: u64,
    used: u64,
}

impl KeyHistory {
    /// The context that ends with a request's outputs so far.
    fn context(&self, outputs: &[Token]) -> (State, u32) {
        let newest = &outputs[outputs.len().saturating_sub(MOST_CONTEXT)..];
        newest
            .iter()
            .fold((self.automaton.root(), 0), |(state, len), token| self.automaton.follow(state, len, *token))
    }
}

/// Proposes what most often followed the longest suffix that occurred before.
#[derive(Debug)]
pub struct SuffixDrafter {
    width: u32,
    requests: HashMap<RequestId, RequestHistory>,
    keys: HashMap<u64, KeyHistory>,
    clock: u64,
    reading: Reading,
}

impl SuffixDrafter {
    /// Proposes up to `width` tokens.
    pub fn new(width: u32) -> Self {
        Self { width, requests: HashMap::new(), keys: HashMap::new(), clock: 0, reading: Reading::default() }
    }

    /// Adds an ended request's outputs to those of its key.
    fn publish(&mut self, request: &RequestHistory) {
        self.clock += 1;
        let key = self.keys.entry(request.key).or_default();
        key.used = self.clock;
        if key.automaton.len() > MOST_SHARED {
            key.automaton = SuffixAutomaton::default();
        }
        key.generation = self.clock;
        request.outputs.iter().chain(&[SEPARATOR]).for_each(|token| key.automaton.push(*token));
        if self.keys.len() > MOST_KEYS {
            let oldest = self.keys.iter().min_by_key(|(_, key)| key.used).map(|(id, _)| *id);
            oldest.map(|id| self.keys.remove(&id));
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

    fn begin_step(&mut self) {
        self.reading.begin_step();
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let source = Source::new(sequence, &sequence.params().prediction);
        let request =
            self.requests.entry(sequence.id()).or_insert_with(|| RequestHistory::new(sequence, &source));
        let outputs_from = source.before().saturating_sub(request.read);
        let all = self.reading.read(&source, &mut request.read);
        let unread = &self.reading.unread;
        unread.iter().for_each(|token| request.automaton.push(*token));
        let outputs = &unread[outputs_from.min(unread.len())..];
        request.outputs.extend_from_slice(outputs);
        let key = self.keys.get(&request.key);
        if let Some(key) = key {
            request.context = if key.generation == request.generation {
                let follow = |(state, len), token: &Token| key.automaton.follow(state, len, *token);
                outputs.iter().fold(request.context, follow)
            } else {
                // The key's outputs have changed: the context is found anew.
                request.generation = key.generation;
                key.context(&request.outputs)
            };
        }
        if !all {
            return;
        }
        let own = request.automaton.repeated_suffix();
        if let Some(key) = key.filter(|_| request.context.1 > own.1.max(LEAST_MATCH)) {
            continue_from(&key.automaton, request.context, self.width, proposal);
        }
        if proposal.tokens.is_empty() && own.1 >= LEAST_MATCH {
            continue_from(&request.automaton, own, self.width, proposal);
        }
    }

    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        let ended: Vec<RequestId> = self.requests.keys().copied().filter(|id| !lives(*id)).collect();
        for id in ended {
            if let Some(request) = self.requests.remove(&id) {
                self.publish(&request);
            }
        }
    }
}
