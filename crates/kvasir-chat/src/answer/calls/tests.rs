//! Tests of the streaming tool call parsers: every dialect, read whole and under every split of the
//! text.

use crate::answer::calls::*;
use serde_json::{Value, json};

fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.into(),
        parameters: Some(json!({"type": "object", "properties": properties})),
        schema: String::new(),
        source: Value::Null,
        kind: Default::default(),
        strict: false,
    };
    [
        tool(
            "get",
            json!({"city": {"type": "string"}, "n": {"type": "integer"}, "deep": {"type": "object"}}),
        ),
        tool("now", json!({})),
        tool("send", json!({"zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}})),
    ]
    .into()
}

type Sum = (String, Vec<(String, String)>);

/// Concatenated text and calls of an answer fed in pieces.
fn in_pieces(dialect: ToolDialect, text: &str, cuts: &[usize]) -> Sum {
    let mut calls = ToolCallParser::new(dialect, tools(), false).unwrap();
    let (mut answered, mut made, mut from) = (String::new(), Vec::<(String, String)>::new(), 0);
    let mut add = |event: CallEvent| match event {
        CallEvent::Text(text) => answered += &text,
        CallEvent::Begin { index, name } => {
            assert_eq!(index, made.len());
            made.push((name, String::new()));
        }
        CallEvent::Arguments { index, text } => {
            assert_eq!(index, made.len() - 1);
            made[index].1 += &text;
        }
    };
    for &to in cuts.iter().chain([&text.len()]) {
        calls.push(&text[from..to]).into_iter().for_each(&mut add);
        from = to;
    }
    calls.finish().into_iter().for_each(&mut add);
    assert_eq!(calls.count(), made.len(), "{text}");
    (answered, made)
}

/// Parses `text` whole and under every split.
fn check(dialect: ToolDialect, text: &str, answered: &str, calls: &[(&str, Value)]) {
    let whole = in_pieces(dialect, text, &[]);
    assert_eq!(whole.0, answered, "{dialect:?}: {text}");
    let got: Vec<(&str, Value)> =
        whole.1.iter().map(|(name, text)| (name.as_str(), serde_json::from_str(text).unwrap())).collect();
    assert_eq!(got, calls, "{dialect:?}: {text}");
    every_split(dialect, text, &whole);
}

fn every_split(dialect: ToolDialect, text: &str, whole: &Sum) {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    for (i, a) in ends.iter().enumerate() {
        for b in ends[i..].iter().step_by(3) {
            assert_eq!(in_pieces(dialect, text, &[*a, *b]), *whole, "{dialect:?}: {text:?} cut at {a}, {b}");
        }
    }
    assert_eq!(in_pieces(dialect, text, &ends), *whole, "{dialect:?}: {text:?} in single characters");
}

fn paris() -> Value {
    json!({"city": "Par}\"{is", "n": 2})
}

#[test]
fn hermes() {
    let one = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Par}\\\"{is\", \"n\": 2}}\n</tool_call>";
    let d = ToolDialect::Hermes;
    check(d, one, "", &[("get", paris())]);
    check(
        d,
        &format!("Let me see.\n{one}\n{one} Done."),
        "Let me see. Done.",
        &[("get", paris()), ("get", paris())],
    );
    check(
        d,
        "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"late\"}</tool_call>",
        "",
        &[("late", json!({"a": 1}))],
    );
    check(d, "<tool_call>{\"name\": \"now\"}</tool_call>", "", &[("now", json!({}))]);
    for text in [
        "a < b <tool> c",
        "<tool_call>no json</tool_call> x",
        "<tool_call>{\"na",
        "<tool_call>{\"a\": 1}</tool_call>",
    ] {
        check(d, text, text, &[]);
    }
}

#[test]
fn unfinished_calls_swallow_no_text() {
    let d = ToolDialect::Hermes;
    let (get, now) = (("get", json!({"n": 1})), ("now", json!({})));
    let open = "<tool_call>{\"name\": \"get\", \"arguments\": {\"n\": 1}";
    let second = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    check(d, &format!("{open}}}\n{second}"), "", &[get.clone(), now.clone()]);
    check(d, &format!("{open}}}\nand {second}"), "and", &[get.clone(), now.clone()]);
    check(d, &format!("{open}}}\nHere it is."), "Here it is.", std::slice::from_ref(&get));
    check(d, &format!("{open}}}\n</tool_c"), "", std::slice::from_ref(&get));
    // Without the outer brace.
    check(d, &format!("{open}\n</tool_call>\nSo }} {second}"), "So }", &[get.clone(), now]);
    check(d, open, "", &[get]);
}

#[test]
fn llama() {
    let d = ToolDialect::Llama3Json;
    let one = "{\"name\": \"get\", \"parameters\": {\"city\": \"Par}\\\"{is\", \"n\": 2}}";
    check(d, one, "", &[("get", paris())]);
    check(d, &format!("<|python_tag|>{one}; {one}"), "", &[("get", paris()), ("get", paris())]);
    check(d, &format!("{one}\nThat is it."), "That is it.", &[("get", paris())]);
    for text in [
        "{\"answer\": 4} it is",
        // A JSON answer that is not a call of an offered tool.
        "{\"name\": \"Ada\", \"age\": 36}",
        "{\"name\": \"get\"}",
        "{\"name\": \"other\", \"parameters\": {\"a\": 1}} it is",
        "No {\"name\": \"get\", \"parameters\": {}} here",
        "{\"name\": \"x\"",
        "<|python_tag|>print(1)",
    ] {
        check(d, text, text, &[]);
    }
}

#[test]
fn mistral() {
    let d = ToolDialect::Mistral;
    let args = "{\"city\": \"Par}\\\"{is\", \"n\": 2}";
    let list = format!(
        "[TOOL_CALLS][{{\"name\": \"get\", \"arguments\": {args}}}, {{\"name\": \"now\", \"arguments\": {{}}}}]"
    );
    check(d, &list, "", &[("get", paris()), ("now", json!({}))]);
    check(
        d,
        &format!("Hm. [TOOL_CALLS]get[ARGS]{args}[TOOL_CALLS]now{{}}"),
        "Hm.",
        &[("get", paris()), ("now", json!({}))],
    );
    check(d, &format!("[TOOL_CALLS]get[CALL_ID]abc123xyz[ARGS]{args}"), "", &[("get", paris())]);
    check(d, "plain [TOOL", "plain [TOOL", &[]);
}

#[test]
fn deepseek() {
    let args = "{\"city\": \"Par}\\\"{is\", \"n\": 2}";
    let v3 =
        format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{args}\n```<｜tool▁call▁end｜>");
    let text = format!("Ok.<｜tool▁calls▁begin｜>{v3}\n{v3}<｜tool▁calls▁end｜>");
    check(ToolDialect::DeepSeekV3, &text, "Ok.", &[("get", paris()), ("get", paris())]);
    let v31 = format!("<｜tool▁call▁begin｜>get<｜tool▁sep｜>{args}<｜tool▁call▁end｜>");
    let text = format!("<｜tool▁calls▁begin｜>{v31}{v31}<｜tool▁calls▁end｜>");
    check(ToolDialect::DeepSeekV31, &text, "", &[("get", paris()), ("get", paris())]);
    let parameter = |key: &str, string: bool, value: &str| {
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{string}\">{value}</｜DSML｜parameter>\n")
    };
    let invoke = format!(
        "<｜DSML｜invoke name=\"get\">\n{}{}</｜DSML｜invoke>\n",
        parameter("city", true, "Par}\"{is"),
        parameter("n", false, "2")
    );
    let text = format!("Ok.\n\n<｜DSML｜function_calls>\n{invoke}{invoke}</｜DSML｜function_calls>");
    check(ToolDialect::DeepSeekV32, &text, "Ok.", &[("get", paris()), ("get", paris())]);
    let text = format!("Ok.\n\n<｜DSML｜tool_calls>\n{invoke}{invoke}</｜DSML｜tool_calls>");
    check(ToolDialect::DeepSeekV4, &text, "Ok.", &[("get", paris()), ("get", paris())]);
}

#[test]
fn tags() {
    let glm = "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Par}\"{is</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>";
    let both = [("get", paris()), ("now", json!({}))];
    check(ToolDialect::Glm45, &format!("So.\n{glm}\n<tool_call>now\n</tool_call>"), "So.", &both);
    check(ToolDialect::Glm45, "<tool_call>now</tool_call>", "", &[("now", json!({}))]);
    // A string by schema stays a string, even if it looks like a number; an object stays an object.
    let text = "<tool_call>get<arg_key>city</arg_key><arg_value>42</arg_value><arg_key>deep</arg_key><arg_value>{\"a\": [1]}</arg_value></tool_call>";
    check(ToolDialect::Glm45, text, "", &[("get", json!({"city": "42", "deep": {"a": [1]}}))]);
    check(ToolDialect::Glm45, "<tool_call>a b\nc</tool_call>", "<tool_call>a b\nc</tool_call>", &[]);
    let qwen = "<tool_call>\n<function=get>\n<parameter=city>\nPar}\"{is\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>";
    let now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    check(ToolDialect::Qwen3Coder, &format!("So.\n{qwen}\n{now}"), "So.", &both);
}

#[test]
fn tag_values_follow_the_schema_and_keep_lines() {
    let glm = |key: &str, value: &str| {
        format!("<tool_call>send\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>")
    };
    let zip = |text: &str| [("send", json!({"zip": text}))];
    check(ToolDialect::Glm45, &glm("zip", "10001"), "", &zip("10001"));
    check(ToolDialect::Glm45, &glm("zip", "true"), "", &zip("true"));
    check(ToolDialect::Glm45, &glm("zip", "null"), "", &[("send", json!({"zip": null}))]);
    check(ToolDialect::Glm45, &glm("any", "10001"), "", &[("send", json!({"any": 10001}))]);
    check(ToolDialect::Glm45, &glm("zip", "\na\nb\n"), "", &zip("\na\nb\n"));
    let dsml = "<｜DSML｜invoke name=\"send\">\n<｜DSML｜parameter name=\"zip\" string=\"true\">a\nb\n</｜DSML｜parameter>\n</｜DSML｜invoke>";
    check(ToolDialect::DeepSeekV32, dsml, "", &zip("a\nb\n"));
    let qwen = "<tool_call>\n<function=send>\n<parameter=zip>\na\nb\n</parameter>\n</function>\n</tool_call>";
    check(ToolDialect::Qwen3Coder, qwen, "", &zip("a\nb"));
}

#[test]
fn missing_tags_swallow_no_text() {
    let get = |more: Value| [("get", more)];
    for text in [
        "<function=get>\n<parameter=city>\n1\n<parameter=n>\n2\n</parameter>\n</function>",
        "<function=get>\n<parameter=city>\n1\n</parameter>\n<parameter=n>\n2\n</function>",
        "<tool_call><function=get>\n<parameter=city>\n1\n</parameter>\n<parameter=n>\n2\n</parameter>\n</tool_call>",
    ] {
        check(ToolDialect::Qwen3Coder, text, "", &get(json!({"city": "1", "n": 2})));
        check(ToolDialect::Qwen3Coder, &format!("{text} So."), " So.", &get(json!({"city": "1", "n": 2})));
    }
    let glm =
        "<tool_call>get<arg_key>city</arg_key>1</arg_value><arg_key>n</arg_key><arg_value>2</tool_call> So.";
    check(ToolDialect::Glm45, glm, " So.", &get(json!({"city": "1", "n": 2})));
    // A truncated call is emitted, and its JSON is visibly incomplete.
    let cut = "<function=get>\n<parameter=n>\n2\n</parameter>\n<parameter=city>\nPar\"is";
    let whole = in_pieces(ToolDialect::Qwen3Coder, cut, &[]);
    assert_eq!(whole, (String::new(), vec![("get".into(), "{\"n\": 2, \"city\": \"Par\\\"is".into())]));
    every_split(ToolDialect::Qwen3Coder, cut, &whole);
}

#[test]
fn pythonic() {
    let d = ToolDialect::Pythonic;
    check(d, "[get(city='Par}\"{is', n=2), now()]", "", &[("get", paris()), ("now", json!({}))]);
    check(
        d,
        "Sure.\n```tool_code\nprint(get(city=\"a]\", n=2))\n```\n",
        "Sure.",
        &[("get", json!({"city": "a]", "n": 2}))],
    );
    for text in ["[1, 2, 3] is a list", "[get(city=", "[x] done", "```tool_code\n1 + 1\n```", "[a(b)]"] {
        check(d, text, text, &[]);
    }
}

#[test]
fn lfm2() {
    let d = ToolDialect::Lfm2;
    let one = "<|tool_call_start|>[get(city=\"Par}\\\"{is\", n=2), now()]<|tool_call_end|>";
    check(d, &format!("Sure. {one} Done."), "Sure. Done.", &[("get", paris()), ("now", json!({}))]);
    let hidden = "<|tool_call_start|>[get(city='a<|tool_call_end|>b')]<|tool_call_end|>";
    check(d, hidden, "", &[("get", json!({"city": "a<|tool_call_end|>b"}))]);
    for text in
        ["[get(n=1)]", "<|tool_call_start|>x<|tool_call_end|> y", "<|tool_call_start|>[get(", "a <|tool_ b"]
    {
        check(d, text, text, &[]);
    }
}

#[test]
fn gemma4() {
    let d = ToolDialect::Gemma4;
    let one = "<|tool_call>call:get{city:<|\"|>Par}\"{is<|\"|>,n:2}<tool_call|>";
    check(d, &format!("Sure.{one}{one}"), "Sure.", &[("get", paris()), ("get", paris())]);
    check(d, "<|tool_call>call:now{}<tool_call|>", "", &[("now", json!({}))]);
    let deep = "<|tool_call>call:get{deep:{a:[true,<|\"|><tool_call|><|\"|>]}}<tool_call|>";
    check(d, deep, "", &[("get", json!({"deep": {"a": [true, "<tool_call|>"]}}))]);
    for text in ["call:get{}", "<|tool_call>get{}<tool_call|> y", "<|tool_call>call:get{n:", "a <|tool_ b"] {
        check(d, text, text, &[]);
    }
}

#[test]
fn nemotron() {
    let d = ToolDialect::Nemotron;
    let args = "{\"city\": \"Par}\\\"{is\", \"n\": 2}";
    let text = format!(
        "<TOOLCALL>[{{\"name\": \"get\", \"arguments\": {args}}}, {{\"name\": \"now\", \"arguments\": {{}}}}]</TOOLCALL>"
    );
    check(d, &text, "", &[("get", paris()), ("now", json!({}))]);
}

#[test]
fn kimi_k2() {
    let d = ToolDialect::KimiK2;
    let args = "{\"city\": \"Par}\\\"{is\", \"n\": 2}";
    let call = |index: usize| {
        format!("<|tool_call_begin|>functions.get:{index}<|tool_call_argument_begin|>{args}<|tool_call_end|>")
    };
    let text = format!("Ok.<|tool_calls_section_begin|>{}{}<|tool_calls_section_end|>", call(0), call(1));
    check(d, &text, "Ok.", &[("get", paris()), ("get", paris())]);
    let without_section =
        format!("<|tool_call_begin|>get<|tool_call_argument_begin|>{args}<|tool_call_end|>");
    check(d, &without_section, "", &[("get", paris())]);
    check(d, "a <|tool_call_ b", "a <|tool_call_ b", &[]);
}

#[test]
fn phi() {
    let d = ToolDialect::Phi4;
    let args = "{\"city\": \"Par}\\\"{is\", \"n\": 2}";
    let text = format!(
        "<|tool_call|>[{{\"type\": \"function\", \"function\": {{\"name\": \"get\", \"arguments\": {args}}}}}]<|/tool_call|>"
    );
    check(d, &text, "", &[("get", paris())]);
    check(d, &format!("functools[{{\"name\": \"get\", \"arguments\": {args}}}]"), "", &[("get", paris())]);
}

#[test]
fn arguments_stream_before_the_call_ends() {
    let mut calls = ToolCallParser::new(ToolDialect::Hermes, tools(), false).unwrap();
    let events = calls.push(r#"<tool_call>{"name": "f", "arguments": {"city": "Par"#);
    assert_eq!(events.len(), 2);
    assert_eq!(events[1], CallEvent::Arguments { index: 0, text: r#"{"city": "Par"#.into() });
    let mut calls = ToolCallParser::new(ToolDialect::Glm45, tools(), false).unwrap();
    let events = calls.push("<tool_call>get\n<arg_key>n</arg_key><arg_value>2</arg_value>");
    assert_eq!(events.last(), Some(&CallEvent::Arguments { index: 0, text: "\"n\": 2".into() }));
}

#[test]
fn templates_determine_the_dialect() {
    for (mark, dialect) in [
        ("<tool_call>\\n{\"name\"", ToolDialect::Hermes),
        ("<tool_call>{{name}}<arg_key>", ToolDialect::Glm45),
        ("[TOOL_CALLS]", ToolDialect::Mistral),
        ("<｜tool▁calls▁begin｜>```json", ToolDialect::DeepSeekV3),
        ("<｜tool▁calls▁begin｜>", ToolDialect::DeepSeekV31),
        ("<｜DSML｜function_calls>", ToolDialect::DeepSeekV32),
        ("<｜DSML｜tool_calls>", ToolDialect::DeepSeekV4),
        ("<|python_tag|>", ToolDialect::Llama3Json),
        ("<|start_header_id|>{\"name\": function name, \"parameters\": dict}", ToolDialect::Llama3Json),
        ("<|header_start|>{\"name\": function name, \"parameters\": dict}", ToolDialect::Llama3Json),
        ("<|start_header_id|>", ToolDialect::Hermes),
        ("<|channel|>analysis<|message|>", ToolDialect::Harmony),
        ("'<|tool_call>call:' + name", ToolDialect::Gemma4),
        ("<|tool_list_start|>", ToolDialect::Lfm2),
        ("<TOOLCALL>", ToolDialect::Nemotron),
        ("<|tool_calls_section_begin|>", ToolDialect::KimiK2),
        ("", ToolDialect::Hermes),
    ] {
        assert_eq!(ToolDialect::of_template(mark), dialect, "{mark}");
    }
    assert!(ToolDialect::names().all(|name| ToolDialect::named(name).is_some()));
}
