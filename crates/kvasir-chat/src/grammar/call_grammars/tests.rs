//! Scripted and random answers under tool call grammars: what is free, what is masked, and that
//! every parsed call fits its tool's schema.
//!
//! `KVASIR_WORKLOADS` sets the number of random rounds.

use super::*;
use crate::answer::{CallConstraint, Choice, Delta, ParseOptions};
use crate::dialect::{ReasoningDialect, ToolDialect};
use crate::tool::Tool;
use kvasir_formats::{TextFiles, Tokenizer};
use kvasir_testkit::{
    Random,
    schemas::{misfit, schema},
};
use serde_json::{Value, json};
use std::{path::Path, sync::OnceLock};

pub(in crate::grammar) const EOS: Token = 505;
const SIZE: u32 = 512;
pub(in crate::grammar) const THINK: (&str, &str) = ("<think>", "</think>");

fn tokenizer() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-formats/tests/data/tokenizers/qwen");
    Arc::new(TextFiles::open(&folder).unwrap().tokenizer().unwrap())
}

fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| Vocabulary::new(tokenizer(), SIZE, &[EOS]).unwrap())
}

/// Tokens that extend across marker borders, on either side, added to the small tokenizer.
const LONG: &[&str] = &[
    "[{",
    "[{\"",
    "[\n",
    "[x",
    ">\n",
    ">{",
    "> {\"name\":",
    ">x",
    ">>",
    "</tool_call>\n",
    "=get",
    "=get>",
    "=got",
    "=1",
    "\",",
    "\"}",
    "\" :",
    "\"x",
    "(n",
    "()",
    "(\"",
    "(n=",
    "}}\n",
    "]\n```",
    "][{\"name\": \"",
    "][x",
    "functools[",
    "functools[{\"name\"",
    "functools[0",
    "{\"name\": \"now\"",
    "{\"name\": \"now\"}",
    "[now()]",
    "[now(1",
    "<tool_call>now",
    "<tool_call>{\"",
    "<tool_call>[",
    "s.get",
    "s.now<",
    "s. ",
    "\">",
    "\">\n",
    "\"/",
    " get\"",
];

/// A tokenizer with the `LONG` tokens and with control tokens for `marks`, its vocabulary, and the
/// control tokens.
pub(in crate::grammar) fn long(marks: &[&str]) -> (Arc<Tokenizer>, Vocabulary, Vec<(Token, String)>) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-formats/tests/data/tokenizers/qwen");
    let thread = std::thread::current().id();
    let to = std::env::temp_dir().join(format!("kvasir-long-tokens-{}-{thread:?}", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let file = to.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    added.retain(|token| !marks.contains(&token["content"].as_str().unwrap()));
    for (text, id) in LONG.iter().chain(marks).zip(SIZE..) {
        let is_mark = marks.contains(text);
        added.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": is_mark}));
    }
    std::fs::write(&file, json.to_string()).unwrap();
    let tokenizer = Arc::new(TextFiles::open(&to).unwrap().tokenizer().unwrap());
    std::fs::remove_dir_all(to).unwrap();
    let size = SIZE + (LONG.len() + marks.len()) as u32;
    let vocabulary = Vocabulary::new(tokenizer.clone(), size, &[EOS]).unwrap();
    let control_tokens =
        tokenizer.special_tokens().filter(|(_, text)| marks.contains(&text.as_str())).collect();
    (tokenizer, vocabulary, control_tokens)
}

pub(in crate::grammar) fn tool(name: &str, parameters: Value) -> Tool {
    let (parameters, schema) = (Some(parameters), String::new());
    Tool {
        name: name.into(),
        parameters,
        schema,
        source: Value::Null,
        strict: false,
        kind: Default::default(),
    }
}

fn grammars(dialect: ToolDialect, several: bool) -> Arc<CallGrammars> {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let schema = json!({"type": "object", "properties": {"n": number}, "required": ["n"]});
    let tools = [tool("get", schema), tool("now", json!({"type": "object", "properties": {}}))];
    let tools: Vec<&Tool> = tools.iter().collect();
    let control_tokens = tokenizer().special_tokens().filter(|(id, _)| *id != EOS).collect();
    Arc::new(
        vocabulary().compile_calls(dialect.syntax(&tools, several), control_tokens, &Arc::default()).unwrap(),
    )
}

fn beginning() -> CallsBeginning {
    CallsBeginning {
        reasoning: None,
        is_reasoning: false,
        one_call: false,
        behind_last: BehindLast::Anything,
    }
}

fn follower(grammars: &Arc<CallGrammars>, beginning: CallsBeginning) -> Box<dyn Follower> {
    grammars.constraint(beginning, &Arc::default()).0.unwrap().follow()
}

/// Token ids of a text, one per character, so that markers fall on token borders.
fn spelt(text: &str) -> Vec<Token> {
    let tokenizer = tokenizer();
    let one = |c: char| tokenizer.encode(&c.to_string(), false).unwrap();
    text.chars().flat_map(one).collect()
}

pub(in crate::grammar) fn is_allowed(follower: &mut Box<dyn Follower>, output: &[Token], id: Token) -> bool {
    match follower.allowed(output) {
        Allowed::Any => true,
        Allowed::Only(mask) => mask[id as usize / 32] >> (id % 32) & 1 == 1,
        Allowed::Nothing => false,
    }
}

#[test]
fn text_is_unmasked_and_calls_are_masked() {
    let grammars = grammars(ToolDialect::Hermes, true);
    let mut follower = follower(&grammars, beginning());
    let text = "a < b, <tool_cal <tool_call>";
    let call = "\n{\"name\": \"get\", \"arguments\": {\"n\": 7}}\n</tool_call>";
    let output = spelt(&format!("{text}{call} So."));
    let (from, to) = (spelt(text).len(), spelt(&format!("{text}{call}")).len());
    for len in 0..=output.len() {
        let is_masked = match follower.allowed(&output[..len]) {
            Allowed::Any => false,
            // A token that would complete the marker and continue with an invalid call is left out.
            Allowed::Only(mask) => mask.iter().map(|word| word.count_ones()).sum::<u32>() < SIZE / 2,
            Allowed::Nothing => panic!("nothing after {len} tokens"),
        };
        assert_eq!(is_masked, (from..to).contains(&len), "after {len} of {from}..{to}");
    }
}

#[test]
fn masks_depend_on_the_output_alone() {
    let grammars = grammars(ToolDialect::Hermes, true);
    let call = "<tool_call>{\"name\": \"get\", \"arguments\": {\"n\": 7}}</tool_call>";
    let output = spelt(&format!("{}{call}and{call}.", "x".repeat(150)));
    let of = |follower: &mut Box<dyn Follower>, len: usize| match follower.allowed(&output[..len]) {
        Allowed::Only(mask) => Some(mask.to_vec()),
        Allowed::Any => None,
        Allowed::Nothing => panic!("nothing after {len} tokens"),
    };
    let mut steady = follower(&grammars, beginning());
    let masks: Vec<_> = (0..=output.len()).map(|len| of(&mut steady, len)).collect();
    let mut jumping = follower(&grammars, beginning());
    for step in 0..300usize {
        let len = step * 7919 % (output.len() + 1);
        if step % 3 == 0 {
            jumping.expect(&output[..len]);
        }
        assert_eq!(of(&mut jumping, len), masks[len], "after {len} tokens");
    }
}

#[test]
fn tokens_across_a_call_start_must_fit_the_call() {
    let (tokenizer, vocabulary, _) = long(&[]);
    let now = tool("now", json!({"type": "object", "properties": {}}));
    for (dialect, before, kept, excluded) in [
        (ToolDialect::Phi4, "functools", &["[{", "[{\"", "(n"][..], &["[x", "[\n"][..]),
        (ToolDialect::Phi4, "So ", &["functools[{\"name\"", "[x"], &["functools[0"]),
        (ToolDialect::Hermes, "<tool_call", &[">\n", ">{", "> {\"name\":", "[x"], &[">x", ">>"]),
        (ToolDialect::Hermes, "", &["<tool_call>{\"", ">x"], &["<tool_call>[", "<tool_call>now"]),
        (ToolDialect::Glm45, "", &["<tool_call>now"], &["<tool_call>[", "<tool_call>{\""]),
        (ToolDialect::Llama3Json, "{\"name\": \"now", &["\","], &["\" :", "\"}", "\"x"]),
        (ToolDialect::Llama3Json, "{\"name\": \"other", &["\",", "\"}", "\"x"], &[]),
        (ToolDialect::Llama3Json, "", &["{\"name\": \"now\""], &["{\"name\": \"now\"}"]),
        (ToolDialect::Pythonic, "[now", &["()", "[x"], &["(n", "(\""]),
        (ToolDialect::Pythonic, "", &["[now()]"], &["[now(1"]),
        (ToolDialect::Harmony, "<|channel|>commentary to=function", &["s.now<"], &["s.get", "s. "]),
    ] {
        let grammars = Arc::new(
            vocabulary.compile_calls(dialect.syntax(&[&now], true), Vec::new(), &Arc::default()).unwrap(),
        );
        let mut follower = follower(&grammars, beginning());
        let one = |c: char| tokenizer.encode(&c.to_string(), false).unwrap();
        let output: Vec<Token> = before.chars().flat_map(one).collect();
        for (texts, want) in [(kept, true), (excluded, false)] {
            for text in texts {
                let at =
                    LONG.iter().position(|long| long == text).unwrap_or_else(|| panic!("no token {text:?}"));
                let is_kept = is_allowed(&mut follower, &output, SIZE + at as u32);
                assert_eq!(is_kept, want, "{dialect:?}: {text:?} behind {before:?}");
            }
        }
    }
}

#[test]
fn no_call_begins_in_reasoning() {
    let grammars = grammars(ToolDialect::Hermes, true);
    let beginning = CallsBeginning { reasoning: Some(THINK), ..beginning() };
    let mut follower = follower(&grammars, beginning);
    for (text, is_call) in [
        ("<think>or <tool_call>", false),
        ("<think>or <tool_call></think>", false),
        ("<think>so</think>\n<tool_call>", true),
        ("\n<tool_call>", true),
        ("<t<tool_call>", true),
    ] {
        let is_free = matches!(follower.allowed(&spelt(text)), Allowed::Any);
        assert_eq!(is_free, !is_call, "{text}");
    }
}

#[test]
fn a_single_call_may_end_the_answer() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let grammars = grammars(ToolDialect::Hermes, false);
    let only = |behind_last| CallsBeginning { one_call: true, behind_last, ..beginning() };
    let mut ends = follower(&grammars, only(BehindLast::End));
    let Allowed::Only(mask) = ends.allowed(&spelt(call)) else { panic!("no mask") };
    assert_eq!(
        (0..SIZE).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect::<Vec<_>>(),
        [EOS]
    );
    let mut continues = follower(&grammars, only(BehindLast::Anything));
    assert_eq!(continues.allowed(&spelt(&format!("{call} <tool_call>"))), Allowed::Any);
}

#[test]
fn unmarked_objects_are_calls_by_name() {
    let grammars = grammars(ToolDialect::Llama3Json, true);
    let mut follower = follower(&grammars, beginning());
    for (text, is_call) in [
        ("{\"name\": \"ge", false),
        ("{\"name\": \"get\"", true),
        (" {\"name\":\"get\"", true),
        ("{\"name\": \"Ada\", \"age\": 36", false),
        ("{\"parameters\": {}, \"name\": \"get\"", false),
        ("So {\"name\": \"get\"", false),
        ("{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"get\"", true),
        ("{\"name\": \"now\", \"parameters\": {}}; {\"a\": \"get\"", false),
    ] {
        let output = spelt(text);
        let masked = match follower.allowed(&output) {
            Allowed::Only(mask) => mask.iter().map(|word| word.count_ones()).sum::<u32>() < SIZE / 2,
            Allowed::Any => false,
            Allowed::Nothing => panic!("{text}"),
        };
        assert_eq!(masked, is_call, "{text}");
    }
}

#[test]
fn objects_after_a_call_continue_object_calls_only() {
    let grammars = grammars(ToolDialect::Mistral, true);
    let mut follower = follower(&grammars, beginning());
    let named = "[TOOL_CALLS]now[ARGS]{}";
    let listed = "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}]";
    for (text, is_call) in [(named, false), (listed, true)] {
        let is_free = follower.allowed(&spelt(&format!("{text} {{"))) == Allowed::Any;
        assert_eq!(is_free, !is_call, "{text}");
        assert_eq!(follower.allowed(&spelt(&format!("{text} So {{"))), Allowed::Any, "{text}");
    }
}

#[test]
fn lists_call_offered_functions_only() {
    let grammars = grammars(ToolDialect::Pythonic, true);
    let mut follower = follower(&grammars, beginning());
    let bracket = spelt("(")[0];
    for (text, may_call) in [("[get", true), ("[got", false), ("[1, got", true), ("x [got", true)] {
        assert_eq!(is_allowed(&mut follower, &spelt(text), bracket), may_call, "{text}");
    }
    assert!(!is_allowed(&mut follower, &spelt("[get("), spelt("]")[0]));
    assert!(is_allowed(&mut follower, &spelt("[get(n=1), now()"), spelt("]")[0]));
}

/// A random model: fragments of text and of call starts while the mask is open, any allowed token
/// otherwise.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    size: u32,
    eos: Token,
    bits: &'a [&'a str],
}

impl Writer<'_> {
    /// A random answer, and whether it ended by itself.
    fn write(
        &self,
        grammars: &CallGrammars,
        follower: &mut Box<dyn Follower>,
        random: &mut Random,
    ) -> (Vec<Token>, bool) {
        let mut output: Vec<Token> = Vec::new();
        let mut planned: Vec<Token> = Vec::new();
        while output.len() < 1500 {
            let (mask, is_free): (Vec<u32>, bool) = match follower.allowed(&output) {
                Allowed::Any => (vec![u32::MAX; self.size.div_ceil(32) as usize], true),
                Allowed::Only(mask) => {
                    let masks = locked(&grammars.masks);
                    (mask.to_vec(), masks.values().flatten().any(|excluding| **excluding == *mask))
                }
                Allowed::Nothing => panic!("nothing after {:?}", self.tokenizer.decode(&output, false)),
            };
            let may = |id: Token| mask[id as usize / 32] >> (id % 32) & 1 == 1;
            let allowed: Vec<Token> = (0..self.size).filter(|id| may(*id)).collect();
            if is_free && planned.is_empty() {
                match random.below(8) {
                    0 if output.len() > 20 => return (output, true),
                    // Any token, including ones that start or end a marker halfway.
                    0 | 1 => {}
                    _ => {
                        let bit = self.bits[random.below(self.bits.len() as u64) as usize];
                        let spelt = |c: char| self.tokenizer.encode(&c.to_string(), false).unwrap();
                        planned = match random.below(2) {
                            0 => bit.chars().flat_map(spelt).collect(),
                            _ => self.tokenizer.encode(bit, false).unwrap(),
                        };
                        planned.reverse();
                    }
                }
            }
            let next = planned.pop().filter(|id| is_free && may(*id));
            let next = next.unwrap_or_else(|| {
                planned.clear();
                allowed[random.below(allowed.len() as u64) as usize]
            });
            if next == self.eos {
                return (output, true);
            }
            output.push(next);
            if random.below(2) == 0 {
                follower.expect(&output);
            }
        }
        (output, false)
    }
}

/// The calls parsed from an answer.
fn read(reading: &ParseOptions, text: &str) -> Vec<(String, String)> {
    let mut choice = Choice::new(reading.clone());
    let mut deltas = choice.push(text);
    deltas.extend(choice.finish());
    let mut calls = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Content(_) | Delta::Reasoning(_) => {}
            Delta::CallBegin { name, .. } => calls.push((name, String::new())),
            Delta::CallArguments { index, text } => calls[index].1 += &text,
        }
    }
    calls
}

/// Random tools with random schemas.
pub(in crate::grammar) fn drawn_tools(dialect: ToolDialect, random: &mut Random) -> [Tool; 3] {
    let mut drawn = || match dialect {
        // Python argument names cannot be arbitrary text.
        ToolDialect::Pythonic | ToolDialect::Lfm2 => {
            let flags = json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3});
            let deep = json!({"type": "object", "properties": {"a": flags}});
            let city = json!({"type": "string", "maxLength": 9});
            let properties = json!({"city": city, "n": {"type": ["integer", "null"]}, "deep": deep});
            json!({"type": "object", "properties": properties, "required": ["n"]})
        }
        _ => schema(random),
    };
    let nothing = json!({"type": "object", "properties": {}});
    [tool("get", drawn()), tool("get_all", drawn()), tool("now", nothing)]
}

/// Fragments that answers are made of; half of them are call starts.
fn bits(dialect: ToolDialect, syntax: &CallSyntax) -> Vec<&'static str> {
    let mut bits = vec!["Let me see. ", "a < b", "\n", "{", "[", "[1, 2]", "<tool", "functools", "(", "; {"];
    bits.extend(["\"name\": \"get", "</tool_call>", "<think>", "</think>"]);
    let bare = ["{\"name\": \"get\"", "{\"name\": \"", "{\"parameters\": {}, \"name\": \"get\"}"];
    match dialect {
        ToolDialect::Harmony => {
            bits = vec![
                "<|channel|>commentary to=functions.",
                "<|start|>assistant<|channel|>analysis<|message|>",
            ];
            bits.extend([
                "hm to=functions.",
                "<|end|>",
                "<|start|>assistant to=functions.",
                "<|channel|>final<|message|>",
            ]);
        }
        ToolDialect::Llama3Json => bits.extend(bare),
        ToolDialect::Pythonic => bits.extend(["[get(", "[get", "[other", "[now()"]),
        _ => {}
    }
    let marks: Vec<&str> = syntax.openings.iter().map(|(mark, _)| *mark).collect();
    bits.extend(marks.iter().copied().cycle().take(if marks.is_empty() { 0 } else { 10 }));
    bits
}

/// Panics unless the call's arguments satisfy its tool's schema.
pub(in crate::grammar) fn check(dialect: &str, tools: &[Tool], call: &(String, String), text: &str) {
    let (name, arguments) = call;
    let tool = tools.iter().find(|tool| tool.name == *name);
    let tool = tool.unwrap_or_else(|| panic!("{dialect}: no tool {name}: {text}"));
    let value: Result<Value, _> = serde_json::from_str(arguments);
    let value = value.unwrap_or_else(|error| panic!("{dialect}: {error}: {arguments}: {text}"));
    let schema = tool.parameters.as_ref().unwrap();
    assert!(value.is_object(), "{dialect}: {text}");
    assert_eq!(misfit(schema, schema, &value), None, "{dialect}: {text}");
}

/// Property: every parsed call has arguments that satisfy its tool's schema.
#[test]
fn every_call_that_is_read_fits_its_tool() {
    let rounds: u32 = std::env::var("KVASIR_WORKLOADS").map_or(12, |rounds| rounds.parse().unwrap());
    let mut random = Random::new(3);
    for name in ToolDialect::names() {
        let dialect = ToolDialect::named(name).unwrap();
        // Markers are text in one model and control tokens in another.
        let marks: Vec<&str> = dialect.marks().into_iter().filter(|mark| mark.len() > 3).collect();
        let models = [long(&[]), long(&marks)];
        let mut read_calls = 0;
        for round in 0..rounds {
            let (tokenizer, vocabulary, control_tokens) = &models[round as usize / 2 % 2];
            let tools = drawn_tools(dialect, &mut random);
            let all: Vec<&Tool> = tools.iter().collect();
            let one_call = round % 4 == 3;
            let syntax = dialect.syntax(&all, !one_call);
            let bits = bits(dialect, &syntax);
            let grammars = vocabulary.compile_calls(syntax, control_tokens.clone(), &Arc::default());
            let grammars = Arc::new(grammars.unwrap_or_else(|why| panic!("{name}: {why}: {tools:?}")));
            let reasoning = match dialect {
                ToolDialect::Harmony => Some((ReasoningDialect::Harmony, false)),
                _ if round % 3 == 0 => Some((ReasoningDialect::Think, round % 2 == 0)),
                _ => None,
            };
            let beginning = CallsBeginning {
                reasoning: reasoning.map(|(dialect, _)| dialect.marks()),
                is_reasoning: reasoning.is_some_and(|(_, is_begun)| is_begun),
                one_call,
                behind_last: BehindLast::End,
            };
            let calls = Some((dialect, tools.to_vec().into()));
            let reading = ParseOptions {
                calls,
                reasoning,
                constrained: CallConstraint::FromMarker,
                one_call,
                ..ParseOptions::default()
            };
            let writer = Writer {
                tokenizer,
                size: vocabulary.parts().0.tok_trie().vocab_size() as u32,
                eos: EOS,
                bits: &bits,
            };
            for _ in 0..4 {
                let mut follower = follower(&grammars, beginning);
                let (output, is_whole) = writer.write(&grammars, &mut follower, &mut random);
                let text = tokenizer.decode(&output, false).unwrap();
                let mut calls = read(&reading, &text);
                if !is_whole {
                    calls.pop();
                }
                read_calls += calls.len();
                calls.iter().for_each(|call| check(name, &tools, call, &text));
            }
        }
        assert!(read_calls >= 20, "{name}: only {read_calls} calls");
    }
}
