//! [`SuffixAutomaton`]: all substrings of a growing token sequence, with how often each occurs and
//! which token most often follows it.
//!
//! A state stands for the substrings that end at the same places. Its suffix link leads to the
//! longest suffix that also ends elsewhere, so the link of the newest state is the longest suffix of
//! the whole sequence that occurred before: the context to draft from.
//!
//! Appending takes constant time, amortized, plus at most `MOST_LINKS` suffix links along which
//! counts are raised. On shorter suffixes than those the counts stay too low, which matters only in
//! sequences that repeat one token.
//!
//! `tests.rs` compares it with a search of the whole sequence.

use kvasir_kv::Token;

/// A state of the automaton: a set of substrings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u32);

/// The empty substring.
const ROOT: u32 = 0;
/// No state, or no edge.
const NONE: u32 = u32::MAX;
/// Suffix links along which one append raises counts.
const MOST_LINKS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Length of its longest substring.
    len: u32,
    /// Suffix link.
    link: u32,
    /// Occurrences of its substrings.
    count: u32,
    /// The state that most often follows, and the token on the way there; `NONE` if nothing follows.
    best: u32,
    best_token: Token,
    /// First edge of its list.
    edge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    token: Token,
    /// Next edge of the same state.
    next: u32,
}

/// All substrings of a token sequence, with counts.
#[derive(Clone, Debug)]
pub(crate) struct SuffixAutomaton {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    targets: Targets,
    last: u32,
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        let root = Node { len: 0, link: NONE, count: 0, best: NONE, best_token: 0, edge: NONE };
        Self { nodes: vec![root], edges: Vec::new(), targets: Targets::default(), last: ROOT }
    }
}

impl SuffixAutomaton {
    /// Reserves memory for `tokens` more tokens, so that appending them does not reallocate.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.nodes.reserve(2 * tokens);
        self.edges.reserve(3 * tokens);
        self.targets.reserve(3 * tokens);
    }

    /// Length of the sequence, in tokens.
    pub(crate) fn len(&self) -> u32 {
        self.nodes[self.last as usize].len
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: Token) {
        let before = self.last;
        self.extend(token);
        let mut state = self.last;
        for _ in 0..=MOST_LINKS {
            let node = &mut self.nodes[state as usize];
            node.count += 1;
            if node.link == NONE {
                break;
            }
            state = node.link;
        }
        // Every suffix of the sequence before is now followed by the token once more.
        let mut from = before;
        for _ in 0..=MOST_LINKS {
            if let Some(to) = self.targets.get(from, token) {
                let best = self.nodes[from as usize].best;
                let most = if best == NONE { 0 } else { self.nodes[best as usize].count };
                if self.nodes[to as usize].count >= most {
                    let node = &mut self.nodes[from as usize];
                    (node.best, node.best_token) = (to, token);
                }
            }
            from = self.nodes[from as usize].link;
            if from == NONE {
                break;
            }
        }
    }

    /// The construction step of Blumer and others, by way of suffix links.
    fn extend(&mut self, token: Token) {
        let new = self.add(self.len() + 1, NONE);
        let mut at = self.last;
        self.last = new;
        while at != NONE && self.targets.get(at, token).is_none() {
            self.connect(at, token, new);
            at = self.nodes[at as usize].link;
        }
        if at == NONE {
            self.nodes[new as usize].link = ROOT;
            return;
        }
        let Some(found) = self.targets.get(at, token) else { return };
        let len = self.nodes[at as usize].len + 1;
        if self.nodes[found as usize].len == len {
            self.nodes[new as usize].link = found;
            return;
        }
        let clone = self.add(len, self.nodes[found as usize].link);
        let Node { count, best, best_token, mut edge, .. } = self.nodes[found as usize];
        (self.nodes[clone as usize].count, self.nodes[clone as usize].best) = (count, best);
        self.nodes[clone as usize].best_token = best_token;
        while edge != NONE {
            let Edge { token, next } = self.edges[edge as usize];
            if let Some(to) = self.targets.get(found, token) {
                self.connect(clone, token, to);
            }
            edge = next;
        }
        self.nodes[found as usize].link = clone;
        self.nodes[new as usize].link = clone;
        while at != NONE && self.targets.get(at, token) == Some(found) {
            self.targets.set(at, token, clone);
            let node = &mut self.nodes[at as usize];
            if node.best == found {
                node.best = clone;
            }
            at = node.link;
        }
    }

    fn add(&mut self, len: u32, link: u32) -> u32 {
        self.nodes.push(Node { len, link, count: 0, best: NONE, best_token: 0, edge: NONE });
        self.nodes.len() as u32 - 1
    }

    fn connect(&mut self, from: u32, token: Token, to: u32) {
        let next = self.nodes[from as usize].edge;
        self.nodes[from as usize].edge = self.edges.len() as u32;
        self.edges.push(Edge { token, next });
        self.targets.set(from, token, to);
    }

    /// The longest suffix of the sequence that occurred before, and its length.
    pub(crate) fn repeated_suffix(&self) -> (State, u32) {
        match self.nodes[self.last as usize].link {
            NONE => (State(ROOT), 0),
            link => (State(link), self.nodes[link as usize].len),
        }
    }

    /// The token that most often followed a substring, with the substring that it completes and its
    /// share of the occurrences; `None` if nothing followed. Of equals, the newest one.
    pub(crate) fn likeliest(&self, state: State) -> Option<(Token, State, f32)> {
        let node = &self.nodes[state.0 as usize];
        if node.best == NONE {
            return None;
        }
        let share = self.nodes[node.best as usize].count as f32 / node.count.max(1) as f32;
        Some((node.best_token, State(node.best), share.min(1.0)))
    }

    /// Follows a context by one token: the longest suffix of `context + token` that occurs in the
    /// sequence, with its length. `len` is the length of the context's match.
    pub(crate) fn follow(&self, state: State, len: u32, token: Token) -> (State, u32) {
        let (mut at, mut len) = (state.0, len);
        loop {
            if let Some(to) = self.targets.get(at, token) {
                return (State(to), len + 1);
            }
            at = self.nodes[at as usize].link;
            if at == NONE {
                return (State(ROOT), 0);
            }
            len = self.nodes[at as usize].len;
        }
    }

    /// The empty context.
    pub(crate) fn root(&self) -> State {
        State(ROOT)
    }
}

/// Where the edges lead: a hash table with open addressing, from state and token to state.
#[derive(Clone, Debug, Default)]
struct Targets {
    /// State, token, target; a free place has the state `NONE`.
    places: Vec<(u32, Token, u32)>,
    used: usize,
}

impl Targets {
    fn reserve(&mut self, more: usize) {
        let wanted = ((self.used + more) * 2).next_power_of_two().max(16);
        if wanted > self.places.len() {
            let old = std::mem::replace(&mut self.places, vec![(NONE, 0, 0); wanted]);
            self.used = 0;
            old.into_iter().filter(|place| place.0 != NONE).for_each(|(s, t, to)| self.insert(s, t, to));
        }
    }

    /// The place of a key, or the free place where it belongs.
    fn place(&self, state: u32, token: Token) -> usize {
        let mask = self.places.len() - 1;
        let key = u64::from(state) << 32 | u64::from(token);
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        while self.places[at].0 != NONE && (self.places[at].0, self.places[at].1) != (state, token) {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, state: u32, token: Token) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let (found, _, to) = self.places[self.place(state, token)];
        (found != NONE).then_some(to)
    }

    fn set(&mut self, state: u32, token: Token, to: u32) {
        if (self.used + 1) * 2 > self.places.len() {
            self.reserve(self.used + 1);
        }
        self.insert(state, token, to);
    }

    fn insert(&mut self, state: u32, token: Token, to: u32) {
        let at = self.place(state, token);
        self.used += usize::from(self.places[at].0 == NONE);
        self.places[at] = (state, token, to);
    }
}
