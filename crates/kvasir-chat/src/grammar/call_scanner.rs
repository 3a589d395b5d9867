//! Streaming detector of tool call starts: scans generated text token by token, byte by byte.
//!
//! The scanner reads text as this module's parsers do, up to the start of a call: reasoning block
//! first, then call markers. From there a grammar constrains decoding
//! ([`CallGrammars`](crate::grammar::call_grammars::CallGrammars)); the scanner resumes after the
//! call.
//!
//! States: `Start` (a reasoning block may open) → `Reasoning` → `Fresh` (only white space so far) →
//! `Text`; `Unmarked` and `AfterCall` for dialects with unmarked calls; `Header` and `Message` for
//! harmony channels; `Closed` after `close`.
//!
//! Invariants: the state is small, `Eq + Hash` and a function of the bytes alone, so token masks
//! are cached by it. The scanner and the parser must agree where a call begins.
//! `grammar/call_grammars/tests/random_answers.rs` guards both.

use crate::grammar::spec::Calls;
use crate::scan::json_prefix::{ScannedName, named};
use crate::scan::python_calls;

/// The trigger syntax of a tool call dialect: which markers start a call and which grammar follows
/// each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallSyntax {
    /// Grammars of a call after its start, each a list of alternatives. `openings`, `unmarked` and
    /// `next` refer to them by index.
    pub grammars: Vec<Vec<Calls>>,
    /// Markers that start a call anywhere in text, with the index of the grammar that follows.
    pub openings: Vec<(&'static str, usize)>,
    /// Decorative markers around calls. They carry no meaning and are skipped.
    pub decoration: Vec<&'static str>,
    /// An unmarked call at the start of the answer, with the index of its grammar.
    pub unmarked: Option<(Unmarked, usize)>,
    /// How a JSON object right after a call is read.
    pub next: NextObject,
    /// Calls are messages in harmony channels.
    pub channels: bool,
    /// Names of the tools offered in the request.
    pub names: Vec<String>,
}

/// How an unmarked call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmarked {
    /// `{"name": "f"`: the grammar starts after the brace.
    Json,
    /// `[f(`: the grammar starts after the bracket.
    Python,
}

/// How a JSON object right after a call is read, in dialects whose calls have no end marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextObject {
    /// As plain text.
    #[default]
    Text,
    /// As another call if it begins like an unmarked one.
    Unmarked,
    /// As another call, whose grammar (by index) starts after the brace.
    Call(usize),
}

/// A detected tool call start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStart {
    /// Index of the grammar to follow; `None` if the parser would read a call of a tool that is not
    /// offered.
    pub grammar: Option<usize>,
    /// Bytes generated after the trigger. The grammar must accept them first.
    pub bytes: Vec<u8>,
}

/// State of a `CallScanner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// A reasoning block may open the answer.
    Start,
    Reasoning,
    /// Only white space so far.
    Fresh,
    Text,
    /// After the bracket of a possible unmarked call.
    Unmarked,
    /// After a call that has no end marker.
    AfterCall,
    /// In the header of a channel message.
    Header,
    /// In a channel message that is not a call.
    Message,
    /// Closed: no further call is detected.
    Closed,
}

/// Streaming state machine that reads an answer up to the next tool call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallScanner {
    state: State,
    /// Bytes not classified yet: a possible prefix of a marker or name.
    tail: Vec<u8>,
    /// Start and end markers of the reasoning block.
    reasoning: Option<(&'static str, &'static str)>,
}

pub(crate) const TO_FUNCTION: &str = "to=functions.";
pub(crate) const MESSAGE: &str = "<|message|>";
/// Markers that end a message.
pub(crate) const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
/// Separators between two unmarked calls.
const BETWEEN: &[u8] = b"],; \n\r\t";

impl CallScanner {
    /// A scanner at the start of an answer. `reasoning` holds the start and end markers; `begun` is
    /// true when the prompt ends inside the reasoning block.
    pub fn new(syntax: &CallSyntax, reasoning: Option<(&'static str, &'static str)>, begun: bool) -> Self {
        let state = match (syntax.channels, reasoning) {
            (true, _) => State::Header,
            (false, Some(_)) if begun => State::Reasoning,
            (false, Some(_)) => State::Start,
            (false, None) => State::Fresh,
        };
        Self { state, tail: Vec::new(), reasoning }
    }

    /// Resumes after a finished call. `first` is the first non-space byte that the grammar matched.
    /// A call that begins with its bare name is not an object, so nothing after it continues the
    /// call.
    pub fn resume(&mut self, syntax: &CallSyntax, first: Option<u8>) {
        let is_name = first.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        self.tail.clear();
        self.state = if is_name || syntax.next == NextObject::Text { State::Text } else { State::AfterCall };
    }

    /// Stops detection: the rest of the answer is text.
    pub fn close(&mut self) {
        self.tail.clear();
        self.state = State::Closed;
    }

    /// Feeds the bytes of one token. Returns the call start if they complete one; the scanner then
    /// waits for `resume`.
    pub fn push(&mut self, syntax: &CallSyntax, bytes: &[u8]) -> Option<CallStart> {
        if self.state == State::Closed {
            return None;
        }
        self.tail.extend_from_slice(bytes);
        loop {
            let state = self.state;
            let start = match state {
                State::Start => self.start(),
                State::Reasoning => self.reason(),
                State::Fresh => self.fresh(syntax),
                State::Text => self.text(syntax),
                State::Unmarked => self.unmarked(syntax),
                State::AfterCall => self.after_call(syntax),
                State::Header => self.header(),
                State::Message => self.message(),
                State::Closed => None,
            };
            if start.is_some() || state == self.state {
                return start;
            }
        }
    }

    /// Whether a token's bytes could complete a call start. A cheap over-approximation: false
    /// positives are possible, false negatives are not.
    pub fn may_open(&self, syntax: &CallSyntax, bytes: &[u8]) -> bool {
        let has = |closer: u8| bytes.contains(&closer);
        let has_mark = || syntax.openings.iter().any(|(mark, _)| mark.bytes().last().is_some_and(has));
        let bracket = syntax.unmarked.map(|(unmarked, _)| unmarked.bracket());
        match self.state {
            State::Text => has_mark(),
            State::Unmarked => {
                syntax.unmarked.is_some_and(|(unmarked, _)| has(unmarked.closer())) || has_mark()
            }
            State::Fresh => has_mark() || bracket.is_some() && trimmed(bytes).first().copied() == bracket,
            State::AfterCall => has(b'{') || has_mark(),
            State::Header | State::Message => has(b'.'),
            State::Start | State::Reasoning => true,
            State::Closed => false,
        }
    }

    fn start(&mut self) -> Option<CallStart> {
        let text = trimmed(&self.tail);
        match self.reasoning {
            Some((open, _)) if text.starts_with(open.as_bytes()) => {
                let taken = self.tail.len() - text.len() + open.len();
                self.tail.drain(..taken);
                self.state = State::Reasoning;
            }
            Some((open, _)) if open.as_bytes().starts_with(text) => {}
            _ => self.state = State::Fresh,
        }
        None
    }

    fn reason(&mut self) -> Option<CallStart> {
        let (_, close) = self.reasoning?;
        match find(&self.tail, close) {
            Some(at) => {
                self.tail.drain(..at + close.len());
                self.state = State::Fresh;
            }
            None => self.keep_start_of([close].into_iter()),
        }
        None
    }

    fn fresh(&mut self, syntax: &CallSyntax) -> Option<CallStart> {
        let Some((unmarked, _)) = syntax.unmarked else {
            self.state = State::Text;
            return None;
        };
        let text = trimmed(&self.tail);
        let space = self.tail.len() - text.len();
        match text.first() {
            None => self.tail.clear(),
            Some(first) if *first == unmarked.bracket() => {
                self.tail.drain(..=space);
                self.state = State::Unmarked;
            }
            Some(_) => self.state = State::Text,
        }
        None
    }

    fn unmarked(&mut self, syntax: &CallSyntax) -> Option<CallStart> {
        let Some((unmarked, grammar)) = syntax.unmarked else {
            self.state = State::Text;
            return None;
        };
        if std::str::from_utf8(&self.tail).is_err_and(|error| error.error_len().is_none()) {
            // An incomplete UTF-8 character may be part of a name.
            return None;
        }
        let text = String::from_utf8_lossy(&self.tail);
        let found = match unmarked {
            Unmarked::Json => named(&format!("{{{text}")),
            Unmarked::Python => python_calls::named(&text),
        };
        let is_offered = |name: &String| syntax.names.contains(name);
        match found {
            ScannedName::Incomplete => None,
            ScannedName::Name(name) if is_offered(&name) => {
                Some(CallStart { grammar: Some(grammar), bytes: std::mem::take(&mut self.tail) })
            }
            // The parser reads a Python list of calls with any names; a JSON object counts only
            // with an offered name.
            ScannedName::Name(_) if unmarked == Unmarked::Python => {
                Some(CallStart { grammar: None, bytes: std::mem::take(&mut self.tail) })
            }
            ScannedName::Name(_) | ScannedName::Other => {
                self.state = State::Text;
                None
            }
        }
    }

    fn text(&mut self, syntax: &CallSyntax) -> Option<CallStart> {
        let openings = syntax.openings.iter().map(|(mark, grammar)| (*mark, Some(*grammar)));
        let marks = openings.chain(syntax.decoration.iter().map(|mark| (*mark, None)));
        loop {
            let found =
                marks.clone().filter_map(|(mark, grammar)| Some((find(&self.tail, mark)?, mark, grammar)));
            match found.min_by_key(|(at, mark, _)| (*at, std::cmp::Reverse(mark.len()))) {
                None => {
                    self.keep_start_of(marks.clone().map(|(mark, _)| mark));
                    return None;
                }
                Some((at, mark, grammar)) => {
                    self.tail.drain(..at + mark.len());
                    if grammar.is_some() {
                        return Some(CallStart { grammar, bytes: std::mem::take(&mut self.tail) });
                    }
                }
            }
        }
    }

    fn after_call(&mut self, syntax: &CallSyntax) -> Option<CallStart> {
        let space = self.tail.iter().take_while(|byte| BETWEEN.contains(byte)).count();
        self.tail.drain(..space);
        match (self.tail.first(), syntax.next) {
            (None, _) => {}
            (Some(b'{'), NextObject::Unmarked) => {
                self.tail.remove(0);
                self.state = State::Unmarked;
            }
            (Some(b'{'), NextObject::Call(grammar)) => {
                self.tail.remove(0);
                return Some(CallStart { grammar: Some(grammar), bytes: std::mem::take(&mut self.tail) });
            }
            (Some(_), _) => self.state = State::Text,
        }
        None
    }

    fn header(&mut self) -> Option<CallStart> {
        match (find(&self.tail, TO_FUNCTION), find(&self.tail, MESSAGE)) {
            (Some(to), message) if message.is_none_or(|message| to < message) => {
                self.tail.drain(..to + TO_FUNCTION.len());
                return Some(CallStart { grammar: Some(0), bytes: std::mem::take(&mut self.tail) });
            }
            (_, Some(message)) => {
                self.tail.drain(..message + MESSAGE.len());
                self.state = State::Message;
            }
            (_, None) => self.keep_start_of([TO_FUNCTION, MESSAGE].into_iter()),
        }
        None
    }

    fn message(&mut self) -> Option<CallStart> {
        let ends = ENDS.iter().copied();
        match ends.clone().filter_map(|end| Some((find(&self.tail, end)?, end))).min() {
            Some((at, end)) => {
                self.tail.drain(..at + end.len());
                self.state = State::Header;
            }
            None => self.keep_start_of(ends),
        }
        None
    }

    /// Drops everything but the longest suffix that could be the prefix of one of `marks`.
    fn keep_start_of<'m>(&mut self, marks: impl Iterator<Item = &'m str>) {
        let kept = marks.map(|mark| possible_start_of(&self.tail, mark.as_bytes())).max().unwrap_or(0);
        self.tail.drain(..self.tail.len() - kept);
    }
}

impl Unmarked {
    fn bracket(self) -> u8 {
        match self {
            Self::Json => b'{',
            Self::Python => b'[',
        }
    }

    /// The byte that completes the call start.
    fn closer(self) -> u8 {
        match self {
            Self::Json => b'"',
            Self::Python => b'(',
        }
    }
}

impl CallSyntax {
    /// Bytes that can complete a call start. A token without any of them cannot trigger one.
    pub fn closers(&self) -> Vec<u8> {
        let marks = self.openings.iter().filter_map(|(mark, _)| mark.bytes().last());
        let unmarked = self.unmarked.map(|(unmarked, _)| unmarked.closer());
        let next = matches!(self.next, NextObject::Call(_)).then_some(b'{');
        let channel = self.channels.then_some(b'.');
        marks.chain(unmarked).chain(next).chain(channel).collect()
    }
}

fn find(bytes: &[u8], mark: &str) -> Option<usize> {
    let (first, rest) = mark.as_bytes().split_first()?;
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.map(|(at, _)| at).find(|at| bytes[at + 1..].starts_with(rest))
}

/// Length of the longest suffix of `bytes` that is a proper prefix of `mark`.
fn possible_start_of(bytes: &[u8], mark: &[u8]) -> usize {
    let max = bytes.len().min(mark.len().saturating_sub(1));
    (1..=max).rev().find(|n| mark.starts_with(&bytes[bytes.len() - n..])).unwrap_or(0)
}

/// Trims leading white space. An incomplete UTF-8 character is not white space.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    &bytes[text.len() - text.trim_start().len()..]
}
