//! The chat API of the library: turns, tools, formats, stop texts, and services shared by threads.
#![allow(clippy::unwrap_used)]

use kvasir::{Delta, Finish, Kvasir, Message, Options, Params, Sampling, Service, Shape, Tool, ToolChoice};
use serde_json::{Value, json};

fn built_in() -> Kvasir {
    Kvasir::built_in(Options::default()).unwrap()
}

fn question(text: &str) -> [Message; 1] {
    [Message::user(text)]
}

#[test]
fn deltas_join_to_the_answer() {
    let mut kvasir = built_in();
    let messages = question("What is the capital of Ghana?");
    let mut stream = kvasir.chat(&messages).stream().unwrap();
    let text: String = stream
        .by_ref()
        .map(|delta| match delta.unwrap() {
            Delta::Content(text) => text,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stream.answer().map(|answer| answer.content.clone()), Some(text.clone()));
    assert!(text.contains("Accra"), "{text}");
}

#[test]
fn next_turn_hits_the_prefix_cache() {
    let mut kvasir = built_in();
    let mut messages = question("What is 7 + 8?").to_vec();
    let first = kvasir.chat(&messages).answer().unwrap();
    assert_eq!((first.content.as_str(), first.raw.reason), ("7 + 8 = 15", Finish::Eos));
    messages.extend([first.message(), Message::user("What is 12 + 30?")]);
    let second = kvasir.chat(&messages).answer().unwrap();
    assert_eq!(second.content, "12 + 30 = 42");
    assert!(second.raw.cached > 0);
}

#[test]
fn required_calls_satisfy_their_schema() {
    let mut kvasir = built_in();
    let parameters = json!({
        "type": "object", "properties": {"n": {"enum": [3, 5]}}, "required": ["n"], "additionalProperties": false,
    });
    let tool = Tool::function("roll", "Rolls a die.", parameters);
    let messages = question("Roll.");
    let turn = kvasir.chat(&messages).tools([tool.clone()]).tool_choice(ToolChoice::Required);
    let answer = turn.parallel_tool_calls(false).answer().unwrap();
    let [call] = answer.calls.as_slice() else { panic!("{answer:?}") };
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert!(call.name == "roll" && [json!(3), json!(5)].contains(&arguments["n"]), "{call:?}");
    assert_eq!(answer.message().source["tool_calls"][0]["id"], call.id.as_str());

    let other = kvasir.chat(&messages).tools([tool]).tool_choice(ToolChoice::Named("throw".into())).answer();
    assert!(other.unwrap_err().to_string().contains("`throw` is none of `tools`"));
}

#[test]
fn formats_constrain_chats_and_completions() {
    let mut kvasir = built_in();
    let schema = json!({
        "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "additionalProperties": false,
    });
    let messages = question("Is water wet?");
    let answer = kvasir.chat(&messages).format(Shape::JsonSchema(schema)).answer().unwrap();
    assert!(serde_json::from_str::<Value>(&answer.content).unwrap()["ok"].is_boolean());

    let constraint = kvasir.model().constraint(&Shape::Choice(vec!["red".into(), "blue".into()])).unwrap();
    let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
    let params = Params { constraint, sampling, ..Params::default() };
    let text = kvasir.generate("A color:", &params).unwrap().text.unwrap();
    assert!(["red", "blue"].contains(&text.as_str()), "{text}");

    let refused = kvasir.model().constraint(&Shape::Regex("(".into())).unwrap_err();
    assert!(refused.to_string().starts_with("shape: "), "{refused}");
}

#[test]
fn answers_end_before_a_stop_text() {
    let mut kvasir = built_in();
    let messages = question("What is 7 + 8?");
    let answer = kvasir.chat(&messages).stop(["= 1"]).answer().unwrap();
    assert_eq!((answer.content.as_str(), answer.raw.reason), ("7 + 8 ", Finish::StopText));
    // The engine is free for the next turn.
    assert!(kvasir.is_idle());
    let prompt = "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n<|im_start|>assistant\n";
    let mut stream = kvasir.stream(prompt, &Params::default()).unwrap().until(["= 1"]);
    let streamed: String = stream.by_ref().map(|piece| piece.unwrap().text).collect();
    let answer = stream.finish().unwrap();
    assert_eq!((streamed.as_str(), answer.text.as_deref()), ("7 + 8 ", Some("7 + 8 ")));
    // Stop texts that are set later do not apply to what was read before.
    let mut stream = kvasir.stream(prompt, &Params::default()).unwrap();
    let read = stream.next().unwrap().unwrap().text;
    let answer = stream.until(["7", " ="]).finish().unwrap();
    assert_eq!((read.as_str(), answer.text.as_deref()), ("7", Some("7 + 8")));
}

#[test]
fn watch_prefill_reports_the_whole_prompt() {
    let mut kvasir = built_in();
    let (sender, states) = std::sync::mpsc::channel();
    kvasir.watch_prefill(move |state| sender.send(state).unwrap());
    kvasir.chat(&question("What is 7 + 8?")).answer().unwrap();
    let last = states.try_iter().last().unwrap();
    assert!(last.share == 1.0 && last.tokens > 5, "{last:?}");
}

#[test]
fn threads_and_tasks_share_a_service() {
    let service: Service = built_in().into_service().unwrap();
    let alone = |question: &str| {
        let mut kvasir = built_in();
        kvasir.chat(&[Message::user(question)]).answer().unwrap().content
    };
    let questions: Vec<String> = (0..8).map(|i| format!("What is {i} + {}?", 2 * i)).collect();
    let threads: Vec<_> = questions
        .iter()
        .map(|question| {
            let (service, messages) = (service.clone(), [Message::user(question.as_str())]);
            std::thread::spawn(move || service.chat(&messages).answer().unwrap().content)
        })
        .collect();
    for (thread, question) in threads.into_iter().zip(&questions) {
        assert_eq!(thread.join().unwrap(), alone(question));
    }

    // Dropped and stopped streams leave the service running; a refusal is the first result.
    drop(service.stream("One two three", Params { max_tokens: 500, ignore_eos: true, ..Params::default() }));
    let mut refused = service.stream("Hi", Params { max_tokens: u32::MAX, ..Params::default() });
    assert!(refused.next().is_some());
    let stopped = service.chat(&question("What is 7 + 8?")).stop([" ="]).answer().unwrap();
    assert_eq!(stopped.content, "7 + 8");
    let text = futures_executor::block_on(async {
        let mut stream = service.chat(&question("What is 7 + 8?")).stream().unwrap();
        while futures_util::StreamExt::next(&mut stream).await.is_some() {}
        stream.answer().unwrap().content.clone()
    });
    assert_eq!(text, "7 + 8 = 15");

    let mut orphan = service.stream("One", Params { max_tokens: 400, ignore_eos: true, ..Params::default() });
    drop(service);
    while orphan.next().is_some() {}
}
