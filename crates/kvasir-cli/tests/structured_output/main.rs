//! Structured output end to end: a model with random weights, so only the masks can make answers
//! valid.
#![allow(clippy::unwrap_used)]

use kvasir::{AnyExecutor, BackendKind, LoadedModel, OpenedModel, Precision};
use kvasir_chat::{
    Tool,
    dialect::ToolDialect,
    grammar::{BehindLast, CallsBeginning, Part, ReasoningBudget, Shape, Vocabulary},
};
use kvasir_engine::{
    Chunked, Chunking, Core, Engine, EventOutput, Finish, Limits, Mixing, Order, Params, Policy,
    PrefillFirst, Request,
};
use kvasir_formats::{TextFiles, Tokenizer};
use kvasir_kv::{Radix, blocks::BlockConfig};
use kvasir_sample::{Allowed, Constrained, Sampling};
use kvasir_testkit::{
    Random,
    complete::{Completion, complete, complete_all},
    schemas::{misfit, schema},
};
use serde_json::{Map, Value, json};
use std::{path::PathBuf, sync::Arc};

const EOS: &[u32] = &[505, 503];

fn root(path: &str) -> PathBuf {
    kvasir_testkit::paths::repository().join(path)
}

fn tokenizer() -> Arc<Tokenizer> {
    let files = TextFiles::open(&root("crates/kvasir-formats/tests/data/tokenizers/qwen")).unwrap();
    Arc::new(files.tokenizer().unwrap())
}

struct House {
    model: LoadedModel,
    tokenizer: Arc<Tokenizer>,
    vocabulary: Vocabulary,
}

impl House {
    fn new() -> Self {
        let opened = OpenedModel::open(&root("testdata/models/qwen3")).unwrap();
        let model = opened.load(BackendKind::Auto, Precision::Auto, Some(1)).unwrap();
        let tokenizer = tokenizer();
        let vocabulary = Vocabulary::new(tokenizer.clone(), 512, EOS).unwrap();
        Self { model, tokenizer, vocabulary }
    }

    fn engine(&self, policy: Box<dyn Policy>, blocks: u32, overlap: bool) -> Engine<AnyExecutor> {
        let config = BlockConfig { block_size: 16, blocks, ..BlockConfig::default() };
        let limits = Limits { max_num_seqs: 24, max_num_batched_tokens: 256, ..Limits::default() };
        let core = Core::new(limits, Order::Fcfs, policy, Box::new(Radix::new(config).unwrap()));
        self.model.engine(core, overlap).unwrap()
    }

    fn request(&self, seed: u64, constraint: Constrained) -> Request {
        let prompt = (0..10 + seed as u32 % 40).map(|i| 100 + (i * 7 + seed as u32) % 300).collect();
        let sampling = Sampling { temperature: 1.3, seed, ..Sampling::default() };
        let params =
            Params { max_tokens: 1500, eos: EOS.to_vec(), sampling, constraint, ..Params::default() };
        Request { tag: seed, prompt, params }
    }

    fn compile(&self, shape: &Shape) -> Result<Constrained, String> {
        self.vocabulary.compile(shape, &[]).map_err(|refused| refused.0)
    }

    fn text(&self, completion: &Completion) -> String {
        self.tokenizer.decode(&completion.tokens, true).unwrap()
    }

    /// The first answer that ends by itself: random weights may repeat any repeatable part forever.
    fn answer(&self, shape: &Shape, lead: &[Part], seed: u64) -> String {
        let ended = (0..8).find_map(|again| {
            let done = self.completion(shape, lead, seed + 100 * again, 1500);
            (done.summary.finish == Finish::Eos).then(|| self.text(&done))
        });
        assert!(ended.is_some(), "{shape:?}");
        ended.unwrap()
    }

    fn completion(&self, shape: &Shape, lead: &[Part], seed: u64, max_tokens: u32) -> Completion {
        let constraint = self.vocabulary.compile(shape, lead).unwrap();
        let mut engine = self.engine(Box::new(Chunked::new(64, Mixing::On { target: None })), 256, true);
        let mut request = self.request(seed, constraint);
        request.params.max_tokens = max_tokens;
        complete(&mut engine, request)
    }
}

#[test]
fn answers_fit_two_hundred_random_schemas() {
    let house = House::new();
    let mut random = Random::new(7);
    let schemas: Vec<Value> = (0..200).map(|_| schema(&mut random)).collect();
    let requests = |house: &House| -> Vec<Request> {
        let one = |(schema, seed): (&Value, u64)| {
            let constraint = house.compile(&Shape::JsonSchema(schema.clone()));
            house.request(seed, constraint.unwrap_or_else(|why| panic!("{why}: {schema}")))
        };
        schemas.iter().zip(0..).map(one).collect()
    };
    let mut roomy = house.engine(Box::new(Chunked::new(64, Mixing::On { target: None })), 2048, true);
    let free = roomy.core().cache().usage();
    let done = complete_all(&mut roomy, requests(&house));
    for (schema, done) in schemas.iter().zip(&done) {
        let done = done.as_ref().unwrap();
        let text = house.text(done);
        assert_eq!(done.summary.finish, Finish::Eos, "{text} for {schema}");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} for {schema}"));
        assert_eq!(misfit(schema, schema, &value), None, "{text}");
    }
    while roomy.step().unwrap() != kvasir_engine::Turn::Idle {}
    assert_eq!(roomy.core().cache().usage().available(), free.available());

    // With preemption and recomputation in a small pool, without overlap: the same answers.
    let mut small = house.engine(Box::new(PrefillFirst::new(Chunking::On { cap: Some(24) }, 0.0)), 96, false);
    let again = complete_all(&mut small, requests(&house));
    let preemptions: u32 = again.iter().map(|done| done.as_ref().unwrap().summary.preemptions).sum();
    assert!(preemptions > 0);
    for (a, b) in done.iter().zip(&again) {
        assert_eq!(a.as_ref().unwrap().tokens, b.as_ref().unwrap().tokens);
    }
}

/// Voluntary tool calls of a random model biased toward the marker: valid, and independent of
/// batching and preemption.
#[test]
fn free_calls_match_their_schemas_in_any_batch() {
    let house = House::new();
    let mark = house.tokenizer.encode("<tool_call>", false).unwrap()[0];
    let mut random = Random::new(13);
    let tools: Vec<Tool> = (0..6)
        .map(|n| Tool {
            name: format!("tool_{n}"),
            parameters: Some(schema(&mut random)),
            schema: String::new(),
            source: Value::Null,
            strict: false,
            kind: Default::default(),
        })
        .collect();
    let all: Vec<&Tool> = tools.iter().collect();
    let syntax = ToolDialect::Hermes.syntax(&all, true);
    let grammars = Arc::new(house.vocabulary.compile_calls(syntax, Vec::new(), &Arc::default()).unwrap());
    let beginning = CallsBeginning {
        reasoning: None,
        is_reasoning: false,
        one_call: false,
        behind_last: BehindLast::End,
    };
    let requests = || -> Vec<Request> {
        let one = |seed| {
            let mut request = house.request(seed, grammars.constraint(beginning, &Arc::default()));
            request.params.max_tokens = 180;
            request.params.sampling.temperature = 1.5;
            request.params.bias = vec![(mark, 4.0)];
            request
        };
        (0..24).map(one).collect()
    };
    let mut roomy = house.engine(Box::new(Chunked::new(64, Mixing::On { target: None })), 2048, true);
    let done = complete_all(&mut roomy, requests());
    let mut made = 0;
    for done in done.iter().map(|done| done.as_ref().unwrap()) {
        let text = house.text(done);
        let mut reader =
            kvasir_chat::answer::ToolCallParser::new(ToolDialect::Hermes, tools.clone().into(), true)
                .unwrap();
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in reader.push(&text).into_iter().chain(reader.finish()) {
            match event {
                kvasir_chat::answer::CallEvent::Begin { name, .. } => calls.push((name, String::new())),
                kvasir_chat::answer::CallEvent::Arguments { index, text } => calls[index].1 += &text,
                kvasir_chat::answer::CallEvent::Text(_) => {}
            }
        }
        if done.summary.finish == Finish::MaxTokens {
            // The last call may be truncated.
            calls.pop();
        }
        made += calls.len();
        for (name, arguments) in calls {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{text}"));
            let schema = tool.parameters.as_ref().unwrap();
            let arguments = serde_json::from_str(&arguments).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(misfit(schema, schema, &arguments), None, "{text}");
        }
    }
    assert!(made > 10, "{made}");
    let mut small = house.engine(Box::new(PrefillFirst::new(Chunking::On { cap: Some(24) }, 0.0)), 96, false);
    let again = complete_all(&mut small, requests());
    assert!(again.iter().map(|done| done.as_ref().unwrap().summary.preemptions).sum::<u32>() > 0);
    for (a, b) in done.iter().zip(&again) {
        assert_eq!(a.as_ref().unwrap().tokens, b.as_ref().unwrap().tokens);
    }
}

#[test]
fn reasoning_ends_when_its_budget_is_used_up() {
    let house = House::new();
    let close = house.tokenizer.encode("</think>", false).unwrap()[0];
    let budget = |tokens| ReasoningBudget { tokens, open: 510, close, is_begun: true, vocab: 512 };
    let shape = Shape::JsonSchema(json!({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}));
    let lead = [Part::Until("</think>".into()), Part::Gap];
    for (seed, tokens) in [(1, 0), (2, 1), (3, 9), (4, 40)] {
        let form = house.vocabulary.compile(&shape, &lead).unwrap();
        let requests = vec![
            house.request(seed, budget(tokens).within(Constrained::default())),
            house.request(seed, budget(tokens).within(form)),
        ];
        let mut engine = house.engine(Box::new(Chunked::new(64, Mixing::On { target: None })), 256, true);
        let mut done = complete_all(&mut engine, requests).into_iter().map(Result::unwrap);
        let (free, formed) = (done.next().unwrap(), done.next().unwrap());
        for done in [&free, &formed] {
            let ends = done.tokens.iter().position(|token| *token == close);
            assert!(ends.is_some_and(|ends| ends <= tokens), "{tokens}: {:?}", done.tokens);
        }
        let text = house.text(&formed);
        let printed = text.split_once("</think>").unwrap().1;
        assert!(serde_json::from_str::<Vec<String>>(printed).is_ok_and(|list| list.len() <= 3), "{text}");
    }
}

#[test]
fn siblings_follow_one_form_each_on_its_own() {
    let house = House::new();
    let shape = Shape::JsonSchema(
        json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 3, "maxItems": 3}),
    );
    let mut engine = house.engine(Box::new(Chunked::new(64, Mixing::On { target: None })), 256, true);
    let request = house.request(1, house.compile(&shape).unwrap());
    let now = engine.now();
    engine.core_mut().add_siblings(request, 8, now).unwrap();
    let mut texts = vec![Vec::new(); 8];
    while engine.step().unwrap() != kvasir_engine::Turn::Idle {
        let outbox = engine.core_mut().outbox();
        for EventOutput { event, tokens, .. } in outbox.iter() {
            texts[event.tag as usize - 1].extend_from_slice(tokens);
        }
        outbox.clear();
    }
    let texts: Vec<String> = texts.iter().map(|ids| house.tokenizer.decode(ids, true).unwrap()).collect();
    assert!(
        texts.iter().all(|text| serde_json::from_str::<Vec<String>>(text).is_ok_and(|list| list.len() == 3)),
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
}

#[test]
fn answers_match_patterns_choices_and_grammars() {
    let house = House::new();
    for seed in 0..5 {
        let text = house.answer(&Shape::Regex("(yes|no), [0-9]{3}/[a-f]+!".into()), &[], seed);
        assert!((text.starts_with("yes, ") || text.starts_with("no, ")) && text.ends_with('!'), "{text}");
        let choices = ["north", "south-west", "up \"or\" down"].map(String::from);
        let text = house.answer(&Shape::Choice(choices.to_vec()), &[], seed);
        assert!(choices.contains(&text), "{text}");
        let sum = "start: term (\" + \" term)* \" = ?\"\nterm: /[1-9][0-9]?/ | \"(\" term \")\"";
        let text = house.answer(&Shape::Grammar(sum.into()), &[], seed);
        assert!(text.ends_with(" = ?") && !text.contains('a'), "{text}");
        let sql = "root ::= \"SELECT \" col (\", \" col)* \" FROM t\"\ncol ::= \"a_\" [0-9]+ | \"b\"";
        let text = house.answer(&Shape::Grammar(sql.into()), &[], seed);
        let columns = text.strip_prefix("SELECT ").and_then(|text| text.strip_suffix(" FROM t")).unwrap();
        assert!(columns.split(", ").all(|col| col == "b" || col.starts_with("a_")), "{text}");
        // Free JSON rarely ends by chance; the output must be a prefix of an object.
        let text = house.text(&house.completion(&Shape::JsonObject, &[], seed, 60));
        let read = serde_json::from_str::<serde_json::Map<String, Value>>(text.trim_end_matches('\u{fffd}'));
        assert!(read.as_ref().is_ok() || read.is_err_and(|error| error.is_eof()), "{text}");
    }
}

#[test]
fn reasoning_may_come_first_and_calls_are_read_back() {
    let house = House::new();
    let text = |text: &str| Part::Text(text.into());
    let until = Part::Until("</think>".into());
    let begun = [until.clone(), Part::Gap];
    let answer = house.answer(&Shape::Regex("[0-9]{2}".into()), &begun, 3);
    let (_, printed) = answer.split_once("</think>").unwrap();
    assert!(printed.trim_start_matches('\n').parse::<u32>().is_ok(), "{answer}");
    let perhaps = [Part::Optional(vec![text("<think>"), until, Part::Gap])];
    for seed in 0..6 {
        let answer = house.answer(&Shape::Regex("[0-9]{2}".into()), &perhaps, seed);
        let printed = answer.split_once("</think>").map_or(answer.as_str(), |(thought, printed)| {
            assert!(thought.starts_with("<think>"));
            printed.trim_start_matches('\n')
        });
        assert!(printed.len() == 2 && printed.parse::<u32>().is_ok(), "{answer}");
    }
    calls_are_read_back(&house);
}

/// Calls generated under each dialect's grammar parse to calls that satisfy their tools' schemas.
fn calls_are_read_back(house: &House) {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        parameters: Some(parameters),
        schema: String::new(),
        source: Value::Null,
        kind: Default::default(),
        strict: false,
    };
    let tools = [
        tool(
            "get",
            json!({"type": "object", "properties": {
            "city": {"type": "string", "enum": ["Paris", "São Paulo"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["city", "n"], "additionalProperties": false}),
        ),
        tool(
            "now",
            json!({"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"], "additionalProperties": false}),
        ),
        tool(
            "look",
            json!({"type": "object", "properties": {"deep": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "additionalProperties": false}),
        ),
    ];
    let all: Vec<&Tool> = tools.iter().collect();
    for name in ToolDialect::names() {
        let dialect = ToolDialect::named(name).unwrap();
        let Some(mut reader) = kvasir_chat::answer::ToolCallParser::new(dialect, tools.clone().into(), false)
        else {
            continue;
        };
        let form = dialect.calls_only(&all, true);
        let mut calls: Vec<(String, String)> = Vec::new();
        let mut answer = house.answer(&Shape::Calls(form), &[], 11);
        let mut events = reader.push(&answer);
        events.extend(reader.finish());
        for event in events {
            match event {
                kvasir_chat::answer::CallEvent::Begin { name, .. } => calls.push((name, String::new())),
                kvasir_chat::answer::CallEvent::Arguments { index, text } => calls[index].1 += &text,
                kvasir_chat::answer::CallEvent::Text(text) => answer = format!("{answer} ({text})"),
            }
        }
        assert!(!calls.is_empty(), "{name}: {answer}");
        for (called, arguments) in calls {
            let tool = tools.iter().find(|tool| tool.name == called).unwrap();
            let arguments = serde_json::from_str(&arguments);
            assert!(arguments.is_ok(), "{name}: {answer}");
            let arguments = arguments.unwrap();
            let schema = tool.parameters.as_ref().unwrap();
            assert_eq!(misfit(schema, schema, &arguments), None, "{name}: {answer}");
        }
    }
}

#[test]
fn of_arguments_that_need_not_be_there_any_may() {
    let house = House::new();
    let properties = json!({"a": {"type": "boolean"}, "b": {"type": "boolean"}, "c": {"type": "boolean"}});
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let look = Tool {
        name: "look".into(),
        parameters: Some(schema),
        schema: String::new(),
        source: Value::Null,
        kind: Default::default(),
        strict: false,
    };
    let shape = Shape::Calls(ToolDialect::Pythonic.calls_only(&[&look], false));
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let answer = house.answer(&shape, &[], seed);
        let inside = answer.strip_prefix("[look(").and_then(|rest| rest.strip_suffix(")]")).unwrap();
        let keys: String = inside.split(", ").filter_map(|pair| pair.split('=').next()).collect();
        seen.insert(keys);
    }
    for keys in ["", "a", "b", "c"] {
        assert!(seen.contains(keys), "{seen:?}");
    }
    assert!(seen.iter().all(|keys| ["", "a", "b", "c", "ab", "ac", "bc", "abc"].contains(&keys.as_str())));
}

#[test]
fn unsupported_schemas_are_refused() {
    let house = House::new();
    let refused = |shape: Shape| match house.compile(&shape) {
        Ok(_) => panic!("{shape:?} was taken"),
        Err(why) => assert!(why.len() < 400 && !why.contains('\n'), "{why}"),
    };
    let deep =
        |n: usize| (0..n).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    for schema in [
        json!(false),
        json!({"type": "integer", "minimum": 5, "maximum": 3}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000_000u64}),
        json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}}),
        json!({"type": "nonsense"}),
        json!({"$ref": "http://127.0.0.1/schema.json"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"type": "string", "pattern": "(?<=a)b"}),
        json!({"type": "string", "pattern": "("}),
        json!({"not": {"type": "string"}}),
        deep(100),
        json!({"enum": (0..100_000).map(|i| format!("value {i}")).collect::<Vec<_>>()}),
        json!([1]),
    ] {
        refused(Shape::JsonSchema(schema));
    }
    for pattern in ["(", &"(".repeat(60_000), "(?<=x)", "[z-a]"] {
        refused(Shape::Regex(pattern.into()));
    }
    let chain: String = (0..5000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    for grammar in [
        "",
        "start: nothing",
        "start: \"a",
        &format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000)),
        &format!("start: r0\n{chain}"),
        "root ::= missing",
    ] {
        refused(Shape::Grammar(grammar.into()));
    }
    let optional = |n: usize| {
        let properties: Map<String, Value> =
            (0..n).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
        Shape::JsonSchema(json!({"type": "object", "properties": properties}))
    };
    refused(optional(2049));
    assert!(house.compile(&optional(100)).is_ok());
    // Repetition counts in a regular expression cost nothing until reached.
    assert!(house.compile(&Shape::Regex("a{0,2147483648}".into())).is_ok());
    refused(Shape::Choice(Vec::new()));
    refused(Shape::Choice(vec![String::new()]));
}

/// Regression: forced text is expanded eagerly if the vocabulary spells every text, and endless
/// grammars looped forever.
#[test]
fn text_that_is_forced_without_end_is_given_up() {
    const END: u32 = 3065;
    let files = TextFiles::open(&root("crates/kvasir/kvasir-mini.gguf")).unwrap();
    let tokenizer = Arc::new(files.tokenizer().unwrap());
    let vocabulary = Vocabulary::new(tokenizer.clone(), 3072, &[END]).unwrap();
    let compile = |shape: Shape| vocabulary.compile(&shape, &[]);
    for shape in [
        Shape::Grammar("start: \"a\" start".into()),
        Shape::Grammar("start: /a+/ start".into()),
        Shape::Regex("a{100000000}".into()),
        Shape::Grammar("start: (\"b\" | \"c\") a\na: /a+/ a".into()),
    ] {
        let why = compile(shape.clone()).unwrap_err().0;
        assert!(why.contains("no end"), "{shape:?}: {why}");
    }
    // Behind one choice of many, endlessness shows once that choice is made.
    let others: String = ('b'..'y').map(|letter| format!("\"{letter}\" | ")).collect();
    let late = compile(Shape::Grammar(format!("start: {others}\"z\" a\na: /a+/ a"))).unwrap();
    let mut follower = late.0.unwrap().follow();
    assert!(matches!(follower.allowed(&[]), Allowed::Only(_)));
    let chosen = tokenizer.encode("z", false).unwrap();
    assert_eq!(follower.allowed(&chosen), Allowed::Nothing);
    // Other matchers are not canceled, regardless of total time.
    let plain = compile(Shape::Regex("ab{1,40}".into())).unwrap();
    let mut follower = plain.0.unwrap().follow();
    assert!(matches!(follower.allowed(&tokenizer.encode("ab", false).unwrap()), Allowed::Only(_)));
}
