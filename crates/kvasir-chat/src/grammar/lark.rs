//! Translates structured output specifications to llguidance grammars (Lark notation).

use crate::grammar::{
    closed_objects, ebnf, limits,
    spec::{Calls, Part, Raw, Shape},
};
use llguidance::{
    JsonCompileOptions,
    api::{GrammarWithLexer, TopLevelGrammar},
    regex_to_lark,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// White space between JSON tokens: a space, or a line break with indentation. It is bounded,
/// because a model may otherwise emit white space forever.
const SPACE: &str = r"[ ]|\n[ \t]{0,40}";

impl Shape {
    /// Builds the grammar, preceded by `lead`. `literal` quotes a text that may hold control
    /// tokens.
    pub(super) fn grammar(
        &self,
        lead: &[Part],
        literal: impl Fn(&str) -> String,
    ) -> Result<TopLevelGrammar, String> {
        let mut grammar = match self {
            Self::JsonObject => GrammarWithLexer::from_json_schema(json_schema(&json!({"type": "object"}))?),
            Self::JsonSchema(schema) => GrammarWithLexer::from_json_schema(json_schema(schema)?),
            Self::Regex(pattern) => {
                limits::check_text(pattern, limits::MAX_PATTERN)?;
                limits::check_escapes(pattern)?;
                GrammarWithLexer::from_lark(format!("start: /{}/", regex_to_lark(pattern, "")))
            }
            Self::Grammar(text) => {
                limits::check_grammar(text)?;
                GrammarWithLexer::from_lark(if ebnf::is_ebnf(text) {
                    ebnf::to_lark(text)?
                } else {
                    text.clone()
                })
            }
            Self::Choice(texts) => GrammarWithLexer::from_lark(choice(texts)?),
            Self::Calls(calls) => GrammarWithLexer::from_lark(calls.lark(&literal)?),
        };
        grammar.name = Some("form".into());
        if lead.is_empty() {
            return Ok(TopLevelGrammar::from_grammar(grammar));
        }
        let (mut body, mut rules) = (String::new(), String::new());
        parts(lead, "lead", &literal, &mut body, &mut rules)?;
        let top = GrammarWithLexer::from_lark(format!("start: {body}@form\n{rules}"));
        Ok(TopLevelGrammar { grammars: vec![top, grammar], max_tokens: None })
    }
}

/// Any text up to `close`, as a rule body and the rule that it needs.
fn until(name: &str, close: &str) -> String {
    if close.starts_with("<[") {
        // A control token never matches text, so the text ends by itself.
        format!("/(?s:.*)/ {close}\n")
    } else {
        format!("{name}\n{name}[suffix={}]: /(?s:.*)/\n", close.trim())
    }
}

/// Checks and closes a schema, and sets the white space of its JSON.
fn json_schema(schema: &Value) -> Result<Value, String> {
    limits::check_schema(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err("allows nothing".into()),
        Value::Object(_) => schema.clone(),
        _ => return Err("must be an object".into()),
    };
    closed_objects::close(&mut schema);
    let options =
        JsonCompileOptions { whitespace_pattern: Some(SPACE.into()), ..JsonCompileOptions::default() };
    // Overrides options within the schema: they could disable checks.
    options.apply_to(&mut schema);
    Ok(schema)
}

fn choice(texts: &[String]) -> Result<String, String> {
    if texts.is_empty() || texts.len() > limits::MAX_CHOICES {
        return Err(format!("must have 1 to {} texts", limits::MAX_CHOICES));
    }
    if texts.iter().map(String::len).sum::<usize>() > limits::MAX_BYTES {
        return Err(format!("may have at most {} bytes", limits::MAX_BYTES));
    }
    if texts.iter().any(String::is_empty) {
        return Err("must not have an empty text".into());
    }
    let quoted: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}\n", quoted.join(" | ")))
}

impl Calls {
    fn lark(&self, literal: &impl Fn(&str) -> String) -> Result<String, String> {
        Ok(format!("start: {}", self.rules("call", literal)?))
    }

    /// The body of a rule for the whole run, then the rules that it needs, whose names begin with
    /// `call`.
    fn rules(&self, call: &str, literal: &impl Fn(&str) -> String) -> Result<String, String> {
        let mut rules = String::new();
        let mut names = Vec::new();
        for (i, parts_of_call) in self.calls.iter().enumerate() {
            let name = format!("{call}_{i}");
            let mut body = String::new();
            parts(parts_of_call, &name, literal, &mut body, &mut rules)?;
            let _ = writeln!(rules, "{name}: {body}");
            names.push(name);
        }
        let more = self.separator.as_ref().map(|separator| format!("({} {call})*", literal(separator)));
        let (begin, end) = (literal(&self.begin), literal(&self.end));
        let (more, names) = (more.unwrap_or_default(), names.join(" | "));
        Ok(format!("{begin} {call} {more} {end}\n{call}: {names}\n{rules}"))
    }
}

/// The grammar of calls in any of these layouts. `literal` quotes a text that may hold control
/// tokens.
pub(crate) fn calls_grammar(
    layouts: &[Calls],
    literal: impl Fn(&str) -> String,
) -> Result<TopLevelGrammar, String> {
    let mut text = String::from("start: ");
    let mut rules = String::new();
    for (n, calls) in layouts.iter().enumerate() {
        let _ = write!(text, "{}way_{n}", if n > 0 { " | " } else { "" });
        let _ = writeln!(rules, "way_{n}: {}", calls.rules(&format!("call{n}"), &literal)?);
    }
    Ok(TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(format!("{text}\n{rules}"))))
}

fn parts(
    list: &[Part],
    name: &str,
    literal: &impl Fn(&str) -> String,
    body: &mut String,
    rules: &mut String,
) -> Result<(), String> {
    for (i, part) in list.iter().enumerate() {
        let name = format!("{name}_{i}");
        match part {
            Part::Text(text) => *body += &literal(text),
            Part::Json(schema) => {
                let _ = writeln!(rules, "{name}: %json {}", json_schema(schema)?);
                let _ = write!(body, "{name} ");
            }
            Part::OneOf(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                let _ = write!(body, "({}) ", texts.join(" | "));
            }
            Part::Until(close) => {
                let _ = write!(rules, "{name}: {}", until(&format!("{name}_text"), &literal(close)));
                let _ = write!(body, "{name} ");
            }
            Part::Optional(inner) => {
                let mut optional = String::new();
                parts(inner, &name, literal, &mut optional, rules)?;
                let _ = write!(body, "({optional})? ");
            }
            Part::Some(separator, items) => {
                let mut written = Vec::with_capacity(items.len());
                for (n, item) in items.iter().enumerate() {
                    let mut one = String::new();
                    parts(item, &format!("{name}_{n}"), literal, &mut one, rules)?;
                    written.push(one);
                }
                ordered_subset(&name, &literal(separator), &written, rules);
                if !written.is_empty() {
                    let _ = write!(body, "({name}_any_0)? ");
                }
            }
            Part::Gap => *body += "/\\n{0,4}/ ",
            Part::Space => {
                let _ = write!(body, "/({SPACE})?/ ");
            }
            Part::Regex(pattern) => {
                let _ = write!(body, "/{pattern}/ ");
            }
            Part::Raw(raw) => {
                let _ = writeln!(rules, "{}", raw.rules(&name, &literal(&raw.end)));
                let _ = write!(body, "{name} ");
            }
            Part::Either(options) => {
                let mut written = Vec::with_capacity(options.len());
                for (n, option) in options.iter().enumerate() {
                    let mut one = String::new();
                    parts(option, &format!("{name}_{n}"), literal, &mut one, rules)?;
                    written.push(one);
                }
                let _ = write!(body, "({}) ", written.join(" | "));
            }
            Part::Many(inner) => {
                let mut one = String::new();
                parts(inner, &name, literal, &mut one, rules)?;
                let _ = write!(body, "({one})* ");
            }
        }
    }
    Ok(())
}

impl Raw {
    /// The rule `name` and its terminals. `end` is the end marker in grammar notation.
    fn rules(&self, name: &str, end: &str) -> String {
        let terminal = name.to_uppercase();
        let is_token = end.starts_with("<[");
        // A control token never matches text, so it need not be excluded.
        let own = (!is_token).then_some(&self.end);
        let mut without: Vec<String> = self.without.iter().chain(own).map(|mark| escaped(mark)).collect();
        without.sort();
        without.dedup();
        let mut text = self.patterns.iter().map(|pattern| format!("/{pattern}/")).collect::<Vec<_>>();
        if text.is_empty() {
            text.push("/(?s:.*)/".into());
        }
        if !without.is_empty() {
            text.push(format!("~/(?s:.*)({})(?s:.*)/", without.join("|")));
        }
        let text = text.join(" & ");
        let pad =
            if self.pad.is_empty() { String::new() } else { Value::from(self.pad.as_str()).to_string() };
        if is_token {
            format!("{terminal}_TEXT: {text}\n{terminal}: {terminal}_TEXT {pad}\n{name}: {terminal} {end}")
        } else {
            format!("{terminal}_TEXT: {text}\n{terminal}: {terminal}_TEXT {pad} {end}\n{name}: {terminal}")
        }
    }
}

/// Constraints of a string schema on unquoted text, as regular expressions in Lark's notation. A
/// pattern with top-level alternatives and rarer `format`s are ignored.
pub(crate) fn text_patterns(schema: &Value) -> Vec<String> {
    let bound = |key: &str| schema[key].as_u64();
    let length = match (bound("minLength"), bound("maxLength")) {
        (None, None) => None,
        (low, None) => Some(format!("(?s:.{{{},}})", low.unwrap_or(0))),
        (low, Some(high)) => Some(format!("(?s:.{{{},{high}}})", low.unwrap_or(0))),
    };
    let pattern =
        schema["pattern"].as_str().filter(|pattern| !has_top_alternatives(pattern)).map(|pattern| {
            let (before, inner) = pattern.strip_prefix('^').map_or(("(?s:.*)", pattern), |inner| ("", inner));
            let anchored = inner.strip_suffix('$').filter(|inner| !inner.ends_with('\\'));
            let (inner, after) = anchored.map_or((inner, "(?s:.*)"), |inner| (inner, ""));
            format!("{before}({}){after}", regex_to_lark(inner, "d"))
        });
    let format = schema["format"].as_str().and_then(format_pattern);
    length.into_iter().chain(pattern).chain(format).collect()
}

/// The regular expression of a `format`, if it is enforced for unquoted text.
fn format_pattern(format: &str) -> Option<String> {
    const DATE: &str = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
    const TIME: &str =
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([zZ]|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    Some(match format {
        "date" => DATE.into(),
        "time" => TIME.into(),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".into(),
        "ipv4" => format!("({BYTE}\\.){{3}}{BYTE}"),
        "email" => "[a-zA-Z0-9._%+\\-]+@[a-zA-Z0-9\\-]+(\\.[a-zA-Z0-9\\-]+)*".into(),
        _ => return None,
    })
}

fn has_top_alternatives(pattern: &str) -> bool {
    let (mut depth, mut is_escaped) = (0i32, false);
    pattern.chars().any(|c| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '|' => return depth == 0,
            _ => {}
        }
        false
    })
}

/// Escapes a literal for a regular expression between slashes.
fn escaped(text: &str) -> String {
    // A backslash before `<` or `>` would be a word boundary.
    let is_plain = |c: char| !c.is_ascii_punctuation() || matches!(c, '<' | '>' | '_' | '"' | '=');
    text.chars().fold(String::new(), |mut out, c| {
        if !is_plain(c) {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

/// Rules of an ordered subset: `_any_n` starts with an item from `n` on, `_more_n` continues from
/// `n`.
fn ordered_subset(name: &str, separator: &str, items: &[String], rules: &mut String) {
    for (n, item) in items.iter().enumerate() {
        let (more, later) = if n + 1 == items.len() {
            (String::new(), String::new())
        } else {
            (format!("{name}_more_{}", n + 1), format!(" | {name}_any_{}", n + 1))
        };
        let _ = writeln!(rules, "{name}_item_{n}: {item}");
        let _ = writeln!(rules, "{name}_any_{n}: {name}_item_{n} {more}{later}");
        // Nothing continues with the first item.
        if n > 0 {
            let _ = writeln!(rules, "{name}_more_{n}: ({separator} {name}_item_{n})? {more}");
        }
    }
}
