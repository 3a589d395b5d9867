//! Random answers under tool call grammars: every parsed call fits its tool's schema.
//!
//! `KVASIR_WORKLOADS` sets the number of random rounds.

use super::*;
use crate::answer::{CallConstraint, Choice, Delta, ParseOptions};
use crate::dialect::ReasoningDialect;
use kvasir_testkit::{
    Random,
    schemas::{misfit, schema},
};

/// A random model. It generates fragments of text and of call starts where the grammar allows any
/// text, and a random allowed token elsewhere.
struct RandomModel<'a> {
    tokenizer: &'a Tokenizer,
    vocab_size: u32,
    eos: Token,
    fragments: &'a [&'a str],
}

impl RandomModel<'_> {
    /// Generates an answer; returns its tokens and whether it ended before the length limit.
    fn generate(
        &self,
        grammars: &CallGrammars,
        follower: &mut Box<dyn Follower>,
        random: &mut Random,
    ) -> (Vec<Token>, bool) {
        let mut output: Vec<Token> = Vec::new();
        // Tokens of the current fragment, the next one last.
        let mut planned: Vec<Token> = Vec::new();
        while output.len() < 1500 {
            let (mask, is_free): (Vec<u32>, bool) = match follower.allowed(&output) {
                Allowed::Any => (vec![u32::MAX; self.vocab_size.div_ceil(32) as usize], true),
                Allowed::Only(mask) => {
                    let masks = locked(&grammars.masks);
                    (mask.to_vec(), masks.values().flatten().any(|excluding| **excluding == *mask))
                }
                Allowed::Nothing => panic!("no token fits after {:?}", self.tokenizer.decode(&output, false)),
            };
            let may = |id: Token| mask[id as usize / 32] >> (id % 32) & 1 == 1;
            let allowed: Vec<Token> = (0..self.vocab_size).filter(|id| may(*id)).collect();
            if is_free && planned.is_empty() {
                match random.below(8) {
                    0 if output.len() > 20 => return (output, true),
                    // Any token, including ones that start or end a marker halfway.
                    0 | 1 => {}
                    _ => {
                        let fragment = self.fragments[random.below(self.fragments.len() as u64) as usize];
                        let encode_char = |c: char| self.tokenizer.encode(&c.to_string(), false).unwrap();
                        planned = match random.below(2) {
                            0 => fragment.chars().flat_map(encode_char).collect(),
                            _ => self.tokenizer.encode(fragment, false).unwrap(),
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
fn parsed_calls(options: &ParseOptions, text: &str) -> Vec<(String, String)> {
    let mut choice = Choice::new(options.clone());
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
pub(in crate::grammar) fn random_tools(dialect: ToolDialect, random: &mut Random) -> [Tool; 3] {
    let mut random_schema = || match dialect {
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
    [tool("get", random_schema()), tool("get_all", random_schema()), tool("now", nothing)]
}

/// Fragments that answers consist of; about half of them are call starts.
fn fragments(dialect: ToolDialect, syntax: &CallSyntax) -> Vec<&'static str> {
    let mut fragments =
        vec!["Let me see. ", "a < b", "\n", "{", "[", "[1, 2]", "<tool", "functools", "(", "; {"];
    fragments.extend(["\"name\": \"get", "</tool_call>", "<think>", "</think>"]);
    let bare = ["{\"name\": \"get\"", "{\"name\": \"", "{\"parameters\": {}, \"name\": \"get\"}"];
    match dialect {
        ToolDialect::Harmony => {
            fragments = vec![
                "<|channel|>commentary to=functions.",
                "<|start|>assistant<|channel|>analysis<|message|>",
            ];
            fragments.extend([
                "hm to=functions.",
                "<|end|>",
                "<|start|>assistant to=functions.",
                "<|channel|>final<|message|>",
            ]);
        }
        ToolDialect::Llama3Json => fragments.extend(bare),
        ToolDialect::Pythonic => fragments.extend(["[get(", "[get", "[other", "[now()"]),
        _ => {}
    }
    let marks: Vec<&str> = syntax.openings.iter().map(|(mark, _)| *mark).collect();
    fragments.extend(marks.iter().copied().cycle().take(if marks.is_empty() { 0 } else { 10 }));
    fragments
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
fn parsed_calls_fit_the_schemas_of_their_tools() {
    let rounds: u32 = std::env::var("KVASIR_WORKLOADS").map_or(12, |rounds| rounds.parse().unwrap());
    let mut random = Random::new(3);
    for name in ToolDialect::names() {
        let dialect = ToolDialect::named(name).unwrap();
        // Markers are text in one model and control tokens in another.
        let marks: Vec<&str> = dialect.marks().into_iter().filter(|mark| mark.len() > 3).collect();
        let models = [long(&[]), long(&marks)];
        let mut call_count = 0;
        for round in 0..rounds {
            let (tokenizer, vocabulary, control_tokens) = &models[round as usize / 2 % 2];
            let tools = random_tools(dialect, &mut random);
            let all: Vec<&Tool> = tools.iter().collect();
            let one_call = round % 4 == 3;
            let syntax = dialect.syntax(&all, !one_call);
            let fragments = fragments(dialect, &syntax);
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
            let options = ParseOptions {
                calls,
                reasoning,
                constrained: CallConstraint::FromMarker,
                one_call,
                ..ParseOptions::default()
            };
            let model = RandomModel {
                tokenizer,
                vocab_size: vocabulary.parts().0.tok_trie().vocab_size() as u32,
                eos: EOS,
                fragments: &fragments,
            };
            for _ in 0..4 {
                let mut follower = follower(&grammars, beginning);
                let (output, is_complete) = model.generate(&grammars, &mut follower, &mut random);
                let text = tokenizer.decode(&output, false).unwrap();
                let mut calls = parsed_calls(&options, &text);
                if !is_complete {
                    calls.pop();
                }
                call_count += calls.len();
                calls.iter().for_each(|call| check(name, &tools, call, &text));
            }
        }
        assert!(call_count >= 20, "{name}: only {call_count} calls");
    }
}
