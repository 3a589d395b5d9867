//! Streaming detector of tool call starts: scans generated text token by token, byte by byte.
//!
//! The scanner reads text as this module's parsers do, up to the start of a call: reasoning block
//! first, then call markers. From there a grammar constrains decoding
//! ([`CallGrammars`](crate::grammar::call_grammars::CallGrammars)); the scanner resumes after the call.
//!
//! States: `Start` (a reasoning block may open) → `Reasoning` → `Fresh` (only white space so far) →
//! `Text`; `Bare` and `Behind` for dialects with unmarked calls; `Header` and `Message` for harmony
//! channels; `Over` after `close`.
//!
//! Invariants: the state is small, `Eq + Hash` and a function of the bytes alone, so token masks
//! are cached by it. The scanner and the parser must agree where a call begins.
//! `every_call_that_is_read_fits_its_tool` in `grammar/call_grammars/tests.rs` guards both.

use crate::{
    grammar::spec::Calls,
    scan::{
        json_prefix::{Named, named},
        python_calls,
    },
};

/// The trigger syntax of a tool call dialect: which markers start a call and which grammar follows
/// each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallSyntax {
    /// Grammars of a call after its start, each a list of alternatives. `openings`, `bare` and
    /// `next` refer to them by index.
    pub grammars: Vec<Vec<Calls>>,
    /// Markers that start a call anywhere in text, with the index of the grammar that follows.
    pub openings: Vec<(&'static str, usize)>,
    /// Decorative markers around calls. They carry no meaning and are skipped.
    pub beside: Vec<&'static str>,
    /// An unmarked call at the start of the answer, with the index of its grammar.
    pub bare: Option<(Bare, usize)>,
    /// How a JSON object right after a call is read.
    pub next: Next,
    /// Calls are messages in harmony channels.
    pub channels: bool,
    /// Names of the tools offered in the request.
    pub names: Vec<String>,
}

/// How an unmarked call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// `{"name": "f"`: the grammar starts after the brace.
    Json,
    /// `[f(`: the grammar starts after the bracket.
    Python,
}

/// How a JSON object right after a call is read, in dialects whose calls have no end marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// As plain text.
    #[default]
    Text,
    /// As another call if it begins like an unmarked one.
    Bare,
    /// As another call, whose grammar (by index) starts after the brace.
    Call(usize),
}

/// A detected tool call start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Index of the grammar to follow; `None` if the parser would read a call of a tool that is not
    /// offered.
    pub grammar: Option<usize>,
    /// Bytes generated after the trigger. The grammar must accept them first.
    pub bytes: Vec<u8>,
}

/// State of a `Scanner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// A reasoning block may open the answer.
    Start,
    Reasoning,
    /// Only white space so far.
    Fresh,
    Text,
    /// After the bracket of a possible unmarked call.
    Bare,
    /// After a call that has no end marker.
    Behind,
    /// In the header of a channel message.
    Header,
    /// In a channel message that is not a call.
    Message,
    /// Closed: no further call is detected.
    Over,
}

/// Streaming state machine that reads an answer up to the next tool call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scanner {
    place: Place,
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

impl Scanner {
    /// A scanner at the start of an answer. `reasoning` holds the start and end markers; `begun` is
    /// true when the prompt ends inside the reasoning block.
    pub fn new(syntax: &CallSyntax, reasoning: Option<(&'static str, &'static str)>, begun: bool) -> Self {
        let place = match (syntax.channels, reasoning) {
            (true, _) => Place::Header,
            (false, Some(_)) if begun => Place::Reasoning,
            (false, Some(_)) => Place::Start,
            (false, None) => Place::Fresh,
        };
        Self { place, tail: Vec::new(), reasoning }
    }

    /// Resumes after a finished call. `first` is the first non-space byte that the grammar matched.
    /// A call that begins with its bare name is not an object, so nothing after it continues the
    /// call.
    pub fn resume(&mut self, syntax: &CallSyntax, first: Option<u8>) {
        let is_name = first.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        self.tail.clear();
        self.place = if is_name || syntax.next == Next::Text { Place::Text } else { Place::Behind };
    }

    /// Stops detection: the rest of the answer is text.
    pub fn close(&mut self) {
        self.tail.clear();
        self.place = Place::Over;
    }

    /// Feeds the bytes of one token. Returns the call start if they complete one; the scanner then
    /// waits for `resume`.
    pub fn push(&mut self, syntax: &CallSyntax, bytes: &[u8]) -> Option<Opened> {
        if self.place == Place::Over {
            return None;
        }
        self.tail.extend_from_slice(bytes);
        loop {
            let place = self.place;
            let opened = match place {
                Place::Start => self.start(),
                Place::Reasoning => self.reason(),
                Place::Fresh => self.fresh(syntax),
                Place::Text => self.text(syntax),
                Place::Bare => self.bare(syntax),
                Place::Behind => self.behind(syntax),
                Place::Header => self.header(),
                Place::Message => self.message(),
                Place::Over => None,
            };
            if opened.is_some() || place == self.place {
                return opened;
            }
        }
    }

    /// Whether a token's bytes could complete a call start. A cheap over-approximation: false
    /// positives are possible, false negatives are not.
    pub fn may_open(&self, syntax: &CallSyntax, bytes: &[u8]) -> bool {
        let has = |closer: u8| bytes.contains(&closer);
        let has_mark = || syntax.openings.iter().any(|(mark, _)| mark.bytes().last().is_some_and(has));
        let bracket = syntax.bare.map(|(bare, _)| bare.bracket());
        match self.place {
            Place::Text => has_mark(),
            Place::Bare => syntax.bare.is_some_and(|(bare, _)| has(bare.closer())) || has_mark(),
            Place::Fresh => has_mark() || bracket.is_some() && trimmed(bytes).first().copied() == bracket,
            Place::Behind => has(b'{') || has_mark(),
            Place::Header | Place::Message => has(b'.'),
            Place::Start | Place::Reasoning => true,
            Place::Over => false,
        }
    }

    fn start(&mut self) -> Option<Opened> {
        let said = trimmed(&self.tail);
        match self.reasoning {
            Some((open, _)) if said.starts_with(open.as_bytes()) => {
                let taken = self.tail.len() - said.len() + open.len();
                self.tail.drain(..taken);
                self.place = Place::Reasoning;
            }
            Some((open, _)) if open.as_bytes().starts_with(said) => {}
            _ => self.place = Place::Fresh,
        }
        None
    }

    fn reason(&mut self) -> Option<Opened> {
        let (_, close) = self.reasoning?;
        match find(&self.tail, close) {
            Some(at) => {
                self.tail.drain(..at + close.len());
                self.place = Place::Fresh;
            }
            None => self.keep_start_of([close].into_iter()),
        }
        None
    }

    fn fresh(&mut self, syntax: &CallSyntax) -> Option<Opened> {
        let Some((bare, _)) = syntax.bare else {
            self.place = Place::Text;
            return None;
        };
        let said = trimmed(&self.tail);
        let space = self.tail.len() - said.len();
        match said.first() {
            None => self.tail.clear(),
            Some(first) if *first == bare.bracket() => {
                self.tail.drain(..=space);
                self.place = Place::Bare;
            }
            Some(_) => self.place = Place::Text,
        }
        None
    }

    fn bare(&mut self, syntax: &CallSyntax) -> Option<Opened> {
        let Some((bare, grammar)) = syntax.bare else {
            self.place = Place::Text;
            return None;
        };
        if std::str::from_utf8(&self.tail).is_err_and(|error| error.error_len().is_none()) {
            // An incomplete UTF-8 character may be part of a name.
            return None;
        }
        let text = String::from_utf8_lossy(&self.tail);
        let found = match bare {
            Bare::Json => named(&format!("{{{text}")),
            Bare::Python => python_calls::named(&text),
        };
        let is_offered = |name: &String| syntax.names.contains(name);
        match found {
            Named::Perhaps => None,
            Named::Name(name) if is_offered(&name) => {
                Some(Opened { grammar: Some(grammar), bytes: std::mem::take(&mut self.tail) })
            }
            // The parser reads a Python list of calls with any names; a JSON object counts only
            // with an offered name.
            Named::Name(_) if bare == Bare::Python => {
                Some(Opened { grammar: None, bytes: std::mem::take(&mut self.tail) })
            }
            Named::Name(_) | Named::Other => {
                self.place = Place::Text;
                None
            }
        }
    }

    fn text(&mut self, syntax: &CallSyntax) -> Option<Opened> {
        let openings = syntax.openings.iter().map(|(mark, grammar)| (*mark, Some(*grammar)));
        let marks = openings.chain(syntax.beside.iter().map(|mark| (*mark, None)));
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
                        return Some(Opened { grammar, bytes: std::mem::take(&mut self.tail) });
                    }
                }
            }
        }
    }

    fn behind(&mut self, syntax: &CallSyntax) -> Option<Opened> {
        let space = self.tail.iter().take_while(|byte| BETWEEN.contains(byte)).count();
        self.tail.drain(..space);
        match (self.tail.first(), syntax.next) {
            (None, _) => {}
            (Some(b'{'), Next::Bare) => {
                self.tail.remove(0);
                self.place = Place::Bare;
            }
            (Some(b'{'), Next::Call(grammar)) => {
                self.tail.remove(0);
                return Some(Opened { grammar: Some(grammar), bytes: std::mem::take(&mut self.tail) });
            }
            (Some(_), _) => self.place = Place::Text,
        }
        None
    }

    fn header(&mut self) -> Option<Opened> {
        match (find(&self.tail, TO_FUNCTION), find(&self.tail, MESSAGE)) {
            (Some(to), message) if message.is_none_or(|message| to < message) => {
                self.tail.drain(..to + TO_FUNCTION.len());
                return Some(Opened { grammar: Some(0), bytes: std::mem::take(&mut self.tail) });
            }
            (_, Some(message)) => {
                self.tail.drain(..message + MESSAGE.len());
                self.place = Place::Message;
            }
            (_, None) => self.keep_start_of([TO_FUNCTION, MESSAGE].into_iter()),
        }
        None
    }

    fn message(&mut self) -> Option<Opened> {
        let ends = ENDS.iter().copied();
        match ends.clone().filter_map(|end| Some((find(&self.tail, end)?, end))).min() {
            Some((at, end)) => {
                self.tail.drain(..at + end.len());
                self.place = Place::Header;
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

impl Bare {
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
        let bare = self.bare.map(|(bare, _)| bare.closer());
        let next = matches!(self.next, Next::Call(_)).then_some(b'{');
        let channel = self.channels.then_some(b'.');
        marks.chain(bare).chain(next).chain(channel).collect()
    }
}

fn find(bytes: &[u8], mark: &str) -> Option<usize> {
    let (first, rest) = mark.as_bytes().split_first()?;
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.map(|(at, _)| at).find(|at| bytes[at + 1..].starts_with(rest))
}

/// Length of the longest suffix of `bytes` that is a proper prefix of `mark`.
fn possible_start_of(bytes: &[u8], mark: &[u8]) -> usize {
    let most = bytes.len().min(mark.len().saturating_sub(1));
    (1..=most).rev().find(|n| mark.starts_with(&bytes[bytes.len() - n..])).unwrap_or(0)
}

/// Trims leading white space. An incomplete UTF-8 character is not white space.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    &bytes[text.len() - text.trim_start().len()..]
}
