use super::{closed, ebnf, limits};
use llguidance::{
    JsonCompileOptions,
    api::{GrammarWithLexer, TopLevelGrammar},
    regex_to_lark,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// A form that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// What a grammar describes: Lark's notation, or EBNF with `::=`.
    Grammar(String),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// One of several texts.
    Choice(Vec<String>),
    /// Calls of tools, and nothing else.
    Calls(Calls),
}

/// How a model writes calls of tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// Before the first.
    pub begin: String,
    /// One call of each tool.
    pub calls: Vec<Vec<Part>>,
    /// Between two; none if there may be only one.
    pub separator: Option<String>,
    /// After the last.
    pub end: String,
}

/// A part of what an answer must consist of.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// This text; control tokens are written as their spelling.
    Text(String),
    /// JSON that a schema describes.
    Json(Value),
    /// One of these texts.
    OneOf(Vec<String>),
    /// Any text up to this mark, which is included.
    Until(String),
    /// This, or nothing.
    Optional(Vec<Part>),
    /// Some of these in their order, or none, with the text between two.
    Some(String, Vec<Vec<Part>>),
    /// A few line ends, or none.
    Gap,
}

/// White space between two pieces of JSON: a space, or a line end with an indent. Without an end to it a model may put out
/// nothing else.
const SPACE: &str = r"[ ]|\n[ \t]{0,40}";

impl Shape {
    /// The grammar, with `lead` in front; `literal` writes a text that may hold control tokens.
    pub(super) fn grammar(
        &self,
        lead: &[Part],
        literal: impl Fn(&str) -> String,
    ) -> Result<TopLevelGrammar, String> {
        let mut form = match self {
            Self::JsonObject => GrammarWithLexer::from_json_schema(json_schema(&json!({"type": "object"}))?),
            Self::JsonSchema(schema) => GrammarWithLexer::from_json_schema(json_schema(schema)?),
            Self::Regex(pattern) => {
                limits::check_text(pattern, limits::MAX_PATTERN)?;
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
        form.name = Some("form".into());
        if lead.is_empty() {
            return Ok(TopLevelGrammar::from_grammar(form));
        }
        let (mut body, mut rules) = (String::new(), String::new());
        parts(lead, "lead", &literal, &mut body, &mut rules)?;
        let top = GrammarWithLexer::from_lark(format!("start: {body}@form\n{rules}"));
        Ok(TopLevelGrammar { grammars: vec![top, form], max_tokens: None })
    }
}

/// Any text up to `close`, as a rule's body and the rule it needs.
fn until(name: &str, close: &str) -> String {
    match close.starts_with("<[") {
        // A control token is no text, so the text ends by itself.
        true => format!("/(?s:.*)/ {close}\n"),
        false => format!("{name}\n{name}[suffix={}]: /(?s:.*)/\n", close.trim()),
    }
}

/// The schema with how its JSON is written.
fn json_schema(schema: &Value) -> Result<Value, String> {
    limits::check_schema(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err("allows nothing".into()),
        Value::Object(_) => schema.clone(),
        _ => return Err("must be an object".into()),
    };
    closed::close(&mut schema);
    let options =
        JsonCompileOptions { whitespace_pattern: Some(SPACE.into()), ..JsonCompileOptions::default() };
    // Whatever the schema says there of its own is replaced: it could switch off what is checked.
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
        let mut rules = String::new();
        let mut names = Vec::new();
        for (i, call) in self.calls.iter().enumerate() {
            let name = format!("call_{i}");
            let mut body = String::new();
            parts(call, &name, literal, &mut body, &mut rules)?;
            let _ = writeln!(rules, "{name}: {body}");
            names.push(name);
        }
        let more = self.separator.as_ref().map(|separator| format!("({} call)*", literal(separator)));
        let (begin, end) = (literal(&self.begin), literal(&self.end));
        let (more, names) = (more.unwrap_or_default(), names.join(" | "));
        Ok(format!("start: {begin} call {more} {end}\ncall: {names}\n{rules}"))
    }
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
                some(&name, &literal(separator), &written, rules);
                if !written.is_empty() {
                    let _ = write!(body, "({name}_any_0)? ");
                }
            }
            Part::Gap => *body += "/\\n{0,4}/ ",
        }
    }
    Ok(())
}

/// Rules for some of these: `_any_n` begins with one from `n` on, `_more_n` goes on with them.
fn some(name: &str, separator: &str, items: &[String], rules: &mut String) {
    for (n, item) in items.iter().enumerate() {
        let (more, later) = match n + 1 == items.len() {
            true => (String::new(), String::new()),
            false => (format!("{name}_more_{}", n + 1), format!(" | {name}_any_{}", n + 1)),
        };
        let _ = writeln!(rules, "{name}_item_{n}: {item}");
        let _ = writeln!(rules, "{name}_any_{n}: {name}_item_{n} {more}{later}");
        // Nothing goes on with the first.
        if n > 0 {
            let _ = writeln!(rules, "{name}_more_{n}: ({separator} {name}_item_{n})? {more}");
        }
    }
}
