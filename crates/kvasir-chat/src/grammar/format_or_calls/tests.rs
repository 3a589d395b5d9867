//! Scripted and random answers under a response format with calls as its alternative: each is
//! accepted whole, mixtures are refused, and the parser finds the calls that the grammar
//! constrained.
//!
//! `KVASIR_WORKLOADS` sets the number of random rounds.

use super::*;
use crate::answer::{CallConstraint, Choice, Delta, ParseOptions};
use crate::dialect::{ReasoningDialect, ToolDialect};
use crate::grammar::call_grammars::tests::random_answers::{check, random_tools};
use crate::grammar::call_grammars::tests::{EOS, THINK, is_allowed, long, tool};
use crate::tool::Tool;
use kvasir_formats::Tokenizer;
use kvasir_testkit::{
    Random,
    schemas::{misfit, schema},
};
use serde_json::{Value, json};

/// A model: tokenizer, vocabulary, and the control tokens that detokenization keeps.
type Model = (Arc<Tokenizer>, Vocabulary, Vec<(Token, String)>);

/// Two models of a dialect: markers are text in one, and control tokens in the other.
fn models(dialect: ToolDialect) -> [Model; 2] {
    let marks: Vec<&str> = dialect.marks().into_iter().filter(|mark| mark.len() > 3).collect();
    [long(&[]), long(&marks)]
}

fn tools() -> [Tool; 2] {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let schema = json!({"type": "object", "properties": {"n": number}, "required": ["n"]});
    [tool("get", schema), tool("now", json!({"type": "object", "properties": {}}))]
}

fn thought() -> Vec<Part> {
    let text = |text: &str| Part::Text(text.into());
    vec![Part::Optional(vec![text(THINK.0), Part::Until(THINK.1.into()), Part::Gap])]
}

/// Compiles a format beside calls, with the leads that chat answers have.
fn compile(
    (_, vocabulary, control_tokens): &Model,
    dialect: ToolDialect,
    shape: &Shape,
    tools: &[Tool],
    lead: &[Part],
) -> Arc<FormatOrCalls> {
    let calls = dialect.calls_only(&tools.iter().collect::<Vec<_>>(), true);
    let is_harmony = dialect == ToolDialect::Harmony;
    let heads = if is_harmony { Arc::default() } else { calls.heads() };
    let channel = [Part::Text("<|channel|>final<|message|>".into())];
    let format_lead: &[Part] = if is_harmony { &channel } else { lead };
    let format = vocabulary.compile_alternative(shape, format_lead, &Arc::default()).unwrap();
    let calls = vocabulary.compile_alternative(&Shape::Calls(calls), lead, &Arc::default()).unwrap();
    Arc::new(FormatOrCalls::new(vocabulary, format, calls, heads, control_tokens.clone()))
}

fn follower(
    grammars: &Arc<FormatOrCalls>,
    reasoning: Option<(&'static str, &'static str)>,
) -> Box<dyn Follower> {
    grammars.constraint(grammars.classifier(reasoning, false), &Arc::default()).0.unwrap().follow()
}

/// Whether the follower accepts the whole text, and the end of the answer behind it.
fn accepts(model: &Model, grammars: &Arc<FormatOrCalls>, text: &str) -> bool {
    let tokens = model.0.encode(text, false).unwrap();
    let mut follower = follower(grammars, Some(THINK));
    (0..tokens.len()).all(|at| is_allowed(&mut follower, &tokens[..at], tokens[at]))
        && is_allowed(&mut follower, &tokens, EOS)
}

/// Content and calls of an answer, fed in pieces of `size` bytes, cut at characters.
fn read(
    grammars: &FormatOrCalls,
    dialect: ToolDialect,
    tools: &[Tool],
    text: &str,
    size: usize,
) -> (String, Vec<(String, String)>) {
    let is_harmony = dialect == ToolDialect::Harmony;
    let reasoning = if is_harmony { ReasoningDialect::Harmony } else { ReasoningDialect::Think };
    let mut choice = Choice::new(ParseOptions {
        calls: Some((dialect, tools.to_vec().into())),
        reasoning: Some((reasoning, false)),
        constrained: CallConstraint::OrFormat(grammars.classifier(None, false)),
        ..ParseOptions::default()
    });
    let mut deltas = Vec::new();
    let mut from = 0;
    for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
        if at - from >= size || at == text.len() {
            deltas.extend(choice.push(&text[from..at]));
            from = at;
        }
    }
    deltas.extend(choice.finish());
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for delta in deltas {
        match delta {
            Delta::Content(text) => content += &text,
            Delta::Reasoning(_) => {}
            Delta::CallBegin { name, .. } => calls.push((name, String::new())),
            Delta::CallArguments { index, text } => calls[index].1 += &text,
        }
    }
    assert_eq!(choice.has_calls(), !calls.is_empty(), "{text}");
    (content, calls)
}

/// A call of `get` with this number, as an answer of the dialect.
fn call(dialect: ToolDialect, n: u32) -> String {
    let json = format!("{{\"n\": {n}}}");
    match dialect {
        ToolDialect::Hermes => {
            format!("<tool_call>\n{{\"name\": \"get\", \"arguments\": {json}}}\n</tool_call>")
        }
        ToolDialect::Llama3Json => format!("{{\"name\": \"get\", \"parameters\": {json}}}"),
        ToolDialect::Pythonic => format!("[get(n={n})]"),
        ToolDialect::Mistral => format!("[TOOL_CALLS]get[ARGS]{json}"),
        ToolDialect::DeepSeekV3 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{json}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ToolDialect::DeepSeekV31 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{json}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ToolDialect::DeepSeekV32 => format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n\
             <｜DSML｜parameter name=\"n\" string=\"false\">{n}</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             </｜DSML｜function_calls>"
        ),
        ToolDialect::DeepSeekV4 => format!(
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n\
             <｜DSML｜parameter name=\"n\" string=\"false\">{n}</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             </｜DSML｜tool_calls>"
        ),
        ToolDialect::Glm45 => {
            format!("<tool_call>get\n<arg_key>n</arg_key>\n<arg_value>{n}</arg_value>\n</tool_call>")
        }
        ToolDialect::Qwen3Coder => {
            format!(
                "<tool_call>\n<function=get>\n<parameter=n>\n{n}\n</parameter>\n</function>\n</tool_call>"
            )
        }
        ToolDialect::Phi4 => {
            format!("<|tool_call|>[{{\"name\": \"get\", \"arguments\": {json}}}]<|/tool_call|>")
        }
        ToolDialect::KimiK2 => format!(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{json}\
             <|tool_call_end|><|tool_calls_section_end|>"
        ),
        ToolDialect::Lfm2 => format!("<|tool_call_start|>[get(n={n})]<|tool_call_end|>"),
        ToolDialect::Gemma4 => format!("<|tool_call>call:get{{n:{n}}}<tool_call|>"),
        ToolDialect::Nemotron => {
            format!("<TOOLCALL>[{{\"name\": \"get\", \"arguments\": {json}}}]</TOOLCALL>")
        }
        ToolDialect::Harmony => {
            format!("<|channel|>commentary to=functions.get <|constrain|>json<|message|>{json}")
        }
    }
}

/// A formatted answer: in harmony it has a channel of its own.
fn formatted(dialect: ToolDialect, text: &str) -> String {
    let channel = if dialect == ToolDialect::Harmony { "<|channel|>final<|message|>" } else { "" };
    format!("{channel}{text}")
}

/// Every kind of format, with a text in it and one that is not.
fn shapes() -> [(Shape, &'static str, &'static str); 7] {
    let sky = json!({"type": "object", "properties": {"sky": {"enum": ["blue", "[get(n=1)]"]}}, "required": ["sky"]});
    let choice = ["blue", "grey"].map(String::from).to_vec();
    [
        (Shape::JsonObject, "{\"sky\": \"[get(\"}", "[1]"),
        (Shape::JsonSchema(sky), "{\"sky\": \"blue\"}", "{\"sky\": 1}"),
        (Shape::JsonSchema(json!({"type": "array", "items": {"type": "integer"}})), "[1, 2]", "[1, \"2\"]"),
        (Shape::Regex("the sky is (blue|grey)".into()), "the sky is grey", "the sky is"),
        (Shape::Choice(choice), "blue", "green"),
        (Shape::Grammar("start: \"(\" start \")\" | \"x\"".into()), "((x))", "((x)"),
        (Shape::Grammar("root ::= \"f\" digit+\ndigit ::= [0-9]".into()), "f12", "f"),
    ]
}

#[test]
fn format_and_calls_are_alternatives_in_every_dialect() {
    for name in ToolDialect::names() {
        let dialect = ToolDialect::named(name).unwrap();
        let tools = tools();
        for (model, has_control_tokens) in models(dialect).into_iter().zip([false, true]) {
            for (shape, good, bad) in shapes() {
                let grammars = compile(&model, dialect, &shape, &tools, &thought());
                let (text, bad) = (formatted(dialect, good), formatted(dialect, bad));
                let (one, wrong) = (call(dialect, 7), call(dialect, 77));
                let is = |text: &str| accepts(&model, &grammars, text);
                for accepted in [&text, &one] {
                    assert!(is(accepted), "{name} {shape:?}: {accepted}");
                    if dialect != ToolDialect::Harmony {
                        // No control token is part of reasoning.
                        let thought = if has_control_tokens { "so" } else { &one };
                        let behind = format!("<think>or {thought} and {text}</think>\n{accepted}");
                        assert!(is(&behind), "{name} {shape:?}: {behind}");
                    }
                }
                for refused in [
                    &bad,
                    &wrong,
                    &format!("{text}{one}"),
                    &format!("{text}\n{one}"),
                    &format!("{one}{text}"),
                    &format!("{one}\n{text}"),
                    &format!("I see. {one}"),
                    "",
                ] {
                    assert!(!is(refused), "{name} {shape:?}: {refused}");
                }
                // Without a marker, the call of another tool is an object like any other.
                let is_object = dialect == ToolDialect::Llama3Json && shape == Shape::JsonObject;
                assert_eq!(is(&one.replace("get", "other")), is_object, "{name} {shape:?}");
                for size in [1, 3, 1000] {
                    let as_text = read(&grammars, dialect, &tools, &text, size);
                    assert_eq!(as_text, (good.to_owned(), Vec::new()), "{name}");
                    let (content, calls) = read(&grammars, dialect, &tools, &one, size);
                    let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
                    assert_eq!((content.as_str(), calls.len()), ("", 1), "{name}: {one}");
                    assert_eq!((calls[0].0.as_str(), arguments), ("get", json!({"n": 7})), "{name}");
                }
            }
        }
    }
}

#[test]
fn an_object_is_a_call_only_in_the_form_of_one() {
    let dialect = ToolDialect::Llama3Json;
    let model = long(&[]);
    let (names, any) = (json!({"enum": ["get", "other"]}), json!({"type": "object"}));
    let properties = json!({"name": names, "parameters": any, "n": {"type": "integer"}});
    let schema = json!({"type": "object", "properties": properties, "required": ["name"]});
    let grammars = compile(&model, dialect, &Shape::JsonSchema(schema), &tools(), &[]);
    for (text, is_accepted, is_call) in [
        ("{\"name\": \"get\", \"parameters\": {\"n\": 7}}", true, true),
        // The form of a call, but arguments that the tool does not take.
        ("{\"name\": \"get\", \"parameters\": {\"n\": 77}}", false, true),
        ("{\"name\": \"get\", \"parameters\": {}}", false, true),
        ("{\"name\": \"get\", \"parameters\": {\"n\": 7}, \"n\": 1}", false, true),
        ("{\"name\": \"get\"}", true, false),
        ("{\"name\": \"get\", \"n\": 1}", true, false),
        ("{\"name\": \"other\", \"parameters\": {\"n\": 77}}", true, false),
        ("{\"name\":\"get\",\"parameters\":{\"n\":77}}", true, false),
    ] {
        assert_eq!(accepts(&model, &grammars, text), is_accepted, "{text}");
        let (content, calls) = read(&grammars, dialect, &tools(), text, 1);
        assert_eq!(!calls.is_empty(), is_call, "{text}");
        assert!(is_call || content == text, "{content}");
    }
}

#[test]
fn tokens_across_a_call_head_must_fit_the_call() {
    let model = long(&[]);
    let id = |text: &str| {
        let tokens = model.0.encode(text, false).unwrap();
        assert_eq!(tokens.len(), 1, "{text} is a token");
        tokens[0]
    };
    let anything = Shape::Regex("(?s:.*)".into());
    let now = [tool("now", json!({"type": "object", "properties": {}}))];
    for (dialect, before, text, is_accepted) in [
        (ToolDialect::Pythonic, "", "[now()]", true),
        (ToolDialect::Pythonic, "", "[now(1", false),
        (ToolDialect::Pythonic, "x", "[now(1", true),
        (ToolDialect::Pythonic, "[now", "(n=", false),
        (ToolDialect::Pythonic, "[now", "[x", true),
        (ToolDialect::Glm45, "", "<tool_call>now", true),
        (ToolDialect::Glm45, "<tool_call>now", ">x", false),
        (ToolDialect::Glm45, "<tool_call>", ">x", true),
    ] {
        let grammars = compile(&model, dialect, &anything, &now, &[]);
        let mut follower = follower(&grammars, None);
        let before: Vec<Token> =
            before.chars().flat_map(|c| model.0.encode(&c.to_string(), false).unwrap()).collect();
        assert_eq!(is_allowed(&mut follower, &before, id(text)), is_accepted, "{dialect:?}: {text}");
    }
}

#[test]
fn masks_depend_on_the_output_alone() {
    let dialect = ToolDialect::Hermes;
    let model = long(&[]);
    let (shape, text, _) = &shapes()[1];
    let grammars = compile(&model, dialect, shape, &tools(), &thought());
    let thinking = format!("<think>{}</think>\n", "so. ".repeat(60));
    for answer in [(*text).to_owned(), call(dialect, 7)] {
        let output = model.0.encode(&format!("{thinking}{answer}"), false).unwrap();
        let mask = |follower: &mut Box<dyn Follower>, len: usize| match follower.allowed(&output[..len]) {
            Allowed::Only(mask) => mask.to_vec(),
            Allowed::Any | Allowed::Nothing => panic!("no mask after {len} tokens"),
        };
        let mut steady = follower(&grammars, Some(THINK));
        let masks: Vec<_> = (0..=output.len()).map(|len| mask(&mut steady, len)).collect();
        let mut jumping = follower(&grammars, Some(THINK));
        let other = model.0.encode(&format!("{thinking}{{\"sky\": \"[get"), false).unwrap();
        for step in 0..200usize {
            let len = step * 7919 % (output.len() + 1);
            match step % 3 {
                0 => jumping.expect(&output[..len]),
                1 => drop(jumping.allowed(&other)),
                _ => {}
            }
            assert_eq!(mask(&mut jumping, len), masks[len], "after {len} tokens");
        }
    }
}

#[test]
fn markers_within_a_format_are_text() {
    for (dialect, marker) in
        [(ToolDialect::Hermes, "<tool_call>"), (ToolDialect::Mistral, "[TOOL_CALLS]get[ARGS]{}")]
    {
        let model = long(&[]);
        let grammars = compile(&model, dialect, &Shape::JsonObject, &tools(), &[]);
        let text = format!("{{\"sky\": {}}}", json!(marker));
        assert!(accepts(&model, &grammars, &text), "{text}");
        assert_eq!(read(&grammars, dialect, &tools(), &text, 1), (text, Vec::new()));
    }
}

#[test]
fn a_truncated_call_yields_no_text() {
    for (dialect, marker) in [
        (ToolDialect::Hermes, "<tool_call>"),
        (ToolDialect::Glm45, "<tool_call>"),
        (ToolDialect::Mistral, "[TOOL_CALLS]"),
        (ToolDialect::DeepSeekV31, "<｜tool▁calls▁begin｜>"),
        (ToolDialect::KimiK2, "<|tool_calls_section_begin|>"),
        (ToolDialect::Qwen3Coder, "<tool_call>"),
        (ToolDialect::Pythonic, "[get("),
    ] {
        let model = long(&[]);
        let grammars = compile(&model, dialect, &shapes()[1].0, &tools(), &[]);
        let whole = call(dialect, 7);
        for end in (marker.len()..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
            let (content, _) = read(&grammars, dialect, &tools(), &whole[..end], 1);
            assert_eq!(content, "", "{dialect:?}: {}", &whole[..end]);
        }
        // Before the marker is whole, it may be the beginning of formatted text.
        let cut = &marker[..marker.len() - 1];
        assert_eq!(read(&grammars, dialect, &tools(), cut, 1).0, cut, "{dialect:?}");
    }
}

#[test]
fn reasoning_that_is_not_separated_is_text() {
    let dialect = ToolDialect::Hermes;
    let grammars = compile(&long(&[]), dialect, &shapes()[1].0, &tools(), &thought());
    let thinking = "<think>or <tool_call>\n{\"name\": \"get\", \"arguments\": </think>\n";
    for (answer, content, calls) in
        [("{\"sky\": \"blue\"}", "{\"sky\": \"blue\"}", 0), (call(dialect, 7).as_str(), "", 1)]
    {
        let mut choice = Choice::new(ParseOptions {
            calls: Some((dialect, tools().to_vec().into())),
            constrained: CallConstraint::OrFormat(grammars.classifier(Some(THINK), false)),
            ..ParseOptions::default()
        });
        let text = format!("{thinking}{answer}");
        let deltas = text.chars().flat_map(|c| choice.push(&c.to_string())).collect::<Vec<_>>();
        let deltas = deltas.into_iter().chain(choice.finish());
        let (mut read, mut begun) = (String::new(), 0);
        for delta in deltas {
            match delta {
                Delta::Content(text) => read += &text,
                Delta::CallBegin { .. } => begun += 1,
                _ => {}
            }
        }
        assert_eq!((read, begun), (format!("{thinking}{content}"), calls));
    }
}

/// An answer of random tokens that begins with `head`, if it ends by itself.
fn write(
    model: &Model,
    grammars: &FormatOrCalls,
    follower: &mut Box<dyn Follower>,
    mut head: &[u8],
    random: &mut Random,
) -> Option<Vec<Token>> {
    let mut output: Vec<Token> = Vec::new();
    while output.len() < 600 {
        let Allowed::Only(mask) = follower.allowed(&output) else {
            panic!("nothing after {:?}", model.0.decode(&output, false));
        };
        let may = |id: Token| mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        let allowed: Vec<Token> = (0..mask.len() as Token * 32).filter(|id| may(*id)).collect();
        let bytes = |id: &Token| grammars.text.bytes(*id);
        let of_head: Vec<Token> = allowed
            .iter()
            .copied()
            .filter(|id| {
                !bytes(id).is_empty() && (head.starts_with(bytes(id)) || bytes(id).starts_with(head))
            })
            .collect();
        let among = if head.is_empty() { &allowed } else { &of_head };
        assert!(!among.is_empty(), "no {head:?} after {:?}", model.0.decode(&output, false));
        let next = among[random.below(among.len() as u64) as usize];
        head = &head[bytes(&next).len().min(head.len())..];
        if next == EOS {
            return Some(output);
        }
        output.push(next);
        if random.below(2) == 0 {
            follower.expect(&output);
        }
    }
    None
}

/// Property: an answer either consists of calls that fit their tools, or fits the format's schema.
#[test]
fn every_answer_fits_its_format_or_its_tools() {
    let rounds: u32 = std::env::var("KVASIR_WORKLOADS").map_or(8, |rounds| rounds.parse().unwrap());
    let mut random = Random::new(5);
    for name in ToolDialect::names() {
        let dialect = ToolDialect::named(name).unwrap();
        let models = models(dialect);
        let (mut formatted, mut called) = (0, 0);
        for round in 0..rounds {
            let model = &models[round as usize % 2];
            let tools = random_tools(dialect, &mut random);
            let format = schema(&mut random);
            let shape = Shape::JsonSchema(format.clone());
            let grammars = compile(model, dialect, &shape, &tools, &[]);
            for walk in 0..6 {
                let head = match (walk % 2, dialect) {
                    (0, _) => String::new(),
                    (_, ToolDialect::Harmony) => "<|channel|>commentary to=functions.now".into(),
                    _ => grammars.heads[random.below(3) as usize].clone(),
                };
                let mut follower = follower(&grammars, Some(THINK));
                let Some(output) = write(model, &grammars, &mut follower, head.as_bytes(), &mut random)
                else {
                    continue;
                };
                let text = model.0.decode(&output, false).unwrap();
                let (content, calls) = read(&grammars, dialect, &tools, &text, 1 + walk);
                if calls.is_empty() {
                    formatted += 1;
                    let value: Result<Value, _> = serde_json::from_str(&content);
                    let value = value.unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
                    assert_eq!(misfit(&format, &format, &value), None, "{name}: {text}");
                } else {
                    called += 1;
                    assert_eq!(content, "", "{name}: {text}");
                    calls.iter().for_each(|call| check(name, &tools, call, &text));
                }
            }
        }
        assert!(formatted >= 5 && called >= 5, "{name}: {formatted} formatted, {called} calls");
    }
}
