//! [`SuffixDrafter`]: finds the longest suffix that occurred before, in prompt and output, in the
//! predicted output of the request, and in recent outputs of the same API key. Counts choose the
//! continuation.

use crate::request::ids::RequestId;
use crate::request::proposal::{Evidence, Proposal};
use crate::request::sequence::Sequence;
use crate::speculation::drafter::Drafter;
use crate::speculation::lookup::history::{Reading, Source};
use crate::speculation::lookup::suffix_automaton::{State, SuffixAutomaton};
use kvasir_kv::Token;
use std::collections::HashMap;

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
/// Ends a request's outputs among those of its key. No model has this id.
const SEPARATOR: Token = Token::MAX;

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
