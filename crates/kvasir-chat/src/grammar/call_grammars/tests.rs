//! Scripted answers under tool call grammars: where any token is allowed, and which tokens are
//! masked elsewhere.

pub(in crate::grammar) mod random_answers;

use super::*;
use crate::dialect::ToolDialect;
use crate::tool::Tool;
use kvasir_formats::{TextFiles, Tokenizer};
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
