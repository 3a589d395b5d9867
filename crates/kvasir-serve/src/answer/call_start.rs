//! Finds where a tool call begins in the text of an answer, byte by byte as it is generated.
//!
//! The scanner reads text as the parsers of this module do, as far as the beginning of a call: reasoning first, then marks. From there
//! on a grammar decides ([`CallGrammars`](crate::form::CallGrammars)), and the scanner takes over again behind the call. The scanner's
//! state is small, comparable and a function of the bytes alone, so masks that depend on it can be cached by it.

use super::{
    json_text::{Named, named},
    python,
};
use crate::form::Calls;

/// Where calls begin in a dialect, and what must follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallSyntax {
    /// What may follow the beginning of a call: one of these. Openings refer to them by number.
    pub grammars: Vec<Vec<Calls>>,
    /// Marks that begin a call wherever they occur in text, and the number of the grammar behind each.
    pub openings: Vec<(&'static str, usize)>,
    /// Marks beside calls, which mean nothing.
    pub beside: Vec<&'static str>,
    /// A call that needs no mark where it begins the answer.
    pub bare: Option<(Bare, usize)>,
    /// How an object behind a call is read.
    pub next: Next,
    /// Calls are messages in channels.
    pub channels: bool,
    /// Names of the tools on offer.
    pub names: Vec<String>,
}

/// How a call without a mark begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// `{"name": "f"`: the grammar begins behind the brace.
    Json,
    /// `[f(`: the grammar begins behind the bracket.
    Python,
}

/// How an object behind a call is read, where calls have no mark at their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// As text.
    #[default]
    Text,
    /// As a further call if it begins as a bare one does.
    Bare,
    /// As a further call, whose grammar begins behind the brace.
    Call(usize),
}

/// The beginning of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The grammar to follow; none if the parser would read a call of a tool that is not on offer.
    pub grammar: Option<usize>,
    /// Bytes that came already and that the grammar must accept.
    pub bytes: Vec<u8>,
}

/// Where a scanner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Reasoning may begin the answer.
    Start,
    Reasoning,
    /// White space only, so far.
    Fresh,
    Text,
    /// Behind the bracket of what may be a call without a mark.
    Bare,
    /// Behind a call that has no mark at its end.
    Behind,
    /// Before a message in a channel.
    Header,
    /// In a message that is no call.
    Message,
    /// No call begins any more.
    Over,
}

/// Reads an answer up to the next call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scanner {
    place: Place,
    /// Bytes that are not decided yet.
    tail: Vec<u8>,
    /// What begins and ends reasoning.
    reasoning: Option<(&'static str, &'static str)>,
}

const TO_FUNCTION: &str = "to=functions.";
const MESSAGE: &str = "<|message|>";
/// What may stand between two calls without marks.
const BETWEEN: &[u8] = b"],; \n\r\t";

impl Scanner {
    /// At the beginning of an answer in which reasoning is marked so; `begun` when the prompt ends inside it.
    pub fn new(syntax: &CallSyntax, reasoning: Option<(&'static str, &'static str)>, begun: bool) -> Self {
        let place = match (syntax.channels, reasoning) {
            (true, _) => Place::Header,
            (false, Some(_)) if begun => Place::Reasoning,
            (false, Some(_)) => Place::Start,
            (false, None) => Place::Fresh,
        };
        Self { place, tail: Vec::new(), reasoning }
    }

    /// Behind a call that has ended. `first` is the first byte of its grammar's text, white space aside: a call that begins with the name
    /// itself is no object, and nothing that follows it belongs to it.
    pub fn resume(&mut self, syntax: &CallSyntax, first: Option<u8>) {
        let is_name = first.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        self.tail.clear();
        self.place = if is_name || syntax.next == Next::Text { Place::Text } else { Place::Behind };
    }

    /// Reads no further call.
    pub fn close(&mut self) {
        self.tail.clear();
        self.place = Place::Over;
    }

    /// Takes the bytes of one more token. Says if a call begins in them; the scanner waits then until it resumes.
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

    /// Whether the bytes of a token could complete the beginning of a call. A cheap test that may say yes too often.
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
            // The character that is not complete may be part of a name.
            return None;
        }
        let text = String::from_utf8_lossy(&self.tail);
        let found = match bare {
            Bare::Json => named(&format!("{{{text}")),
            Bare::Python => python::named(&text),
        };
        let is_offered = |name: &String| syntax.names.contains(name);
        match found {
            Named::Perhaps => None,
            Named::Name(name) if is_offered(&name) => {
                Some(Opened { grammar: Some(grammar), bytes: std::mem::take(&mut self.tail) })
            }
            // The parser reads a list of calls whatever their names are; an object counts only with a name that is on offer.
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
        let ends = super::harmony::ENDS.iter().copied();
        match ends.clone().filter_map(|end| Some((find(&self.tail, end)?, end))).min() {
            Some((at, end)) => {
                self.tail.drain(..at + end.len());
                self.place = Place::Header;
            }
            None => self.keep_start_of(ends),
        }
        None
    }

    /// Keeps only an end with which one of `marks` could begin.
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

    /// Completes the beginning of a call.
    fn closer(self) -> u8 {
        match self {
            Self::Json => b'"',
            Self::Python => b'(',
        }
    }
}

impl CallSyntax {
    /// Bytes of which a token must have one to complete the beginning of a call.
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

/// Length of the longest end of `bytes` with which `mark` could begin.
fn possible_start_of(bytes: &[u8], mark: &[u8]) -> usize {
    let most = bytes.len().min(mark.len().saturating_sub(1));
    (1..=most).rev().find(|n| mark.starts_with(&bytes[bytes.len() - n..])).unwrap_or(0)
}

/// Without the white space that begins it. An incomplete character is none.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    &bytes[text.len() - text.trim_start().len()..]
}
