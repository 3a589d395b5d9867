//! Benchmark of structured output: token mask latency of 16 sequences under a JSON schema,
//! vocabulary 151,936.
//!
//! `on request`: masks computed inline. `ahead`: masks computed during a step of length `STEP`. `free
//! calls`: compile time of 20 tools, and cost per token of free text under them.
#![allow(clippy::unwrap_used)]

use kvasir_chat::{
    Tool,
    dialect::ToolDialect,
    grammar::{BehindLast, CallsBeginning, Shape, Vocabulary},
};
use kvasir_formats::Tokenizer;
use kvasir_sample::{Allowed, Follower};
use kvasir_testkit::Random;
use serde_json::{Map, Value, json};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const VOCAB: u32 = 151_936;
const EOS: u32 = VOCAB - 1;
const ROWS: usize = 16;
const STEP: Duration = Duration::from_millis(40);

/// A synthetic byte-level vocabulary: made-up words, most with a leading space, plus digits and
/// punctuation.
fn tokenizer() -> Tokenizer {
    let mut random = Random::new(1);
    let mut vocab = Map::new();
    // The 256 bytes, as byte-level vocabularies spell them.
    let plain = (33..=126).chain(161..=172).chain(174..=255u32);
    let spelt: Vec<u32> = plain.chain(256..324).collect();
    for c in &spelt {
        let id = vocab.len();
        vocab.insert(char::from_u32(*c).unwrap().to_string(), id.into());
    }
    let syllables = [
        "an", "er", "ti", "on", "re", "st", "lo", "mi", "ka", "ve", "\"", "\":", "{\"", "},", "12", "7",
        "_id", "\\n", ".", ",",
    ];
    while vocab.len() < EOS as usize {
        let mut word = String::from(random.pick(&["", "Ġ", "Ġ", "Ċ"]));
        for _ in 0..1 + random.below(4) {
            word += random.pick(&syllables);
        }
        let id = vocab.len();
        vocab.entry(word).or_insert(id.into());
    }
    let added = json!([{"id": EOS, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]);
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = json!({"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    Tokenizer::from_json(file.to_string().as_bytes()).unwrap()
}

fn schema() -> Value {
    let person = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "email": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "role": {"enum": ["admin", "user", "guest"]}}, "required": ["name", "age", "email", "tags", "role"], "additionalProperties": false});
    json!({"type": "object", "properties": {"people": {"type": "array", "items": person}, "note": {"type": "string"}}, "required": ["people", "note"]})
}

/// A uniformly random allowed id.
fn draw(bits: &[u32], random: &mut Random) -> u32 {
    let count: u32 = bits.iter().map(|word| word.count_ones()).sum();
    let mut left = random.below(count.into()) as u32;
    for (at, word) in bits.iter().enumerate() {
        if left < word.count_ones() {
            let bit = (0..32).filter(|bit| word >> bit & 1 == 1).nth(left as usize).unwrap();
            return at as u32 * 32 + bit;
        }
        left -= word.count_ones();
    }
    unreachable!()
}

/// Total mask time of all rows per step, in milliseconds, sorted.
fn run(vocabulary: &Vocabulary, ahead: bool, steps: usize) -> Vec<f64> {
    let mut random = Random::new(2);
    let form = vocabulary.compile(&Shape::JsonSchema(schema()), &[]).unwrap();
    let begin = || -> (Box<dyn Follower>, Vec<u32>) { (form.0.as_ref().unwrap().follow(), Vec::new()) };
    let mut rows: Vec<_> = (0..ROWS).map(|_| begin()).collect();
    let mut times = Vec::new();
    for _ in 0..steps {
        if ahead {
            thread::sleep(STEP);
        }
        let mut spent = Duration::ZERO;
        for row in &mut rows {
            let started = Instant::now();
            let Allowed::Only(bits) = row.0.allowed(&row.1) else { unreachable!() };
            spent += started.elapsed();
            let token = draw(bits, &mut random);
            row.1.push(token);
            if token == EOS {
                *row = begin();
            }
            if ahead {
                let (follower, output) = row;
                let started = Instant::now();
                follower.expect(output);
                spent += started.elapsed();
            }
        }
        times.push(spent.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    times
}

/// Compiles 20 tools, then follows free text under them.
fn free_calls(vocabulary: &Vocabulary) {
    let tool = |n| {
        let (parameters, source) = (Some(schema()), Value::Null);
        Tool {
            name: format!("tool_{n}"),
            parameters,
            schema: String::new(),
            source,
            strict: false,
            kind: Default::default(),
        }
    };
    let tools: Vec<Tool> = (0..20).map(tool).collect();
    let all: Vec<&Tool> = tools.iter().collect();
    for dialect in [ToolDialect::Hermes, ToolDialect::Llama3Json, ToolDialect::Qwen3Coder] {
        let started = Instant::now();
        let grammars = Arc::new(
            vocabulary.compile_calls(dialect.syntax(&all, true), Vec::new(), &Arc::default()).unwrap(),
        );
        let compiled = started.elapsed();
        let beginning = CallsBeginning {
            reasoning: None,
            is_reasoning: false,
            one_call: false,
            behind_last: BehindLast::End,
        };
        let mut follower = grammars.constraint(beginning, &Arc::default()).0.unwrap().follow();
        let (mut random, mut output) = (Random::new(3), Vec::with_capacity(4000));
        let (mut first, mut longest) = (Duration::ZERO, Duration::ZERO);
        let started = Instant::now();
        for n in 0..4000 {
            let start = Instant::now();
            // No mask, or one that excludes very little.
            assert!(!matches!(follower.allowed(&output), Allowed::Nothing));
            output.push(random.below(EOS.into()) as u32);
            follower.expect(&output);
            match n {
                0 => first = start.elapsed(),
                _ => longest = longest.max(start.elapsed()),
            }
        }
        let each = started.elapsed().as_secs_f64() * 1e6 / 4000.0;
        println!(
            "free calls, {dialect:?}: compiled in {:.1} ms; a token of text {each:.2} us, the first {:.0} us, the longest {:.0} us",
            compiled.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e6,
            longest.as_secs_f64() * 1e6
        );
    }
}

fn main() {
    let started = Instant::now();
    let tokenizer = Arc::new(tokenizer());
    println!("tokenizer read in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    let vocabulary = Vocabulary::new(tokenizer, VOCAB, &[EOS]).unwrap();
    println!("vocabulary made in {:.0} ms, once", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    for _ in 0..100 {
        vocabulary.compile(&Shape::JsonSchema(schema()), &[]).unwrap();
    }
    println!("schema compiled in {:.2} ms", started.elapsed().as_secs_f64() * 10.0);
    free_calls(&vocabulary);
    for (name, ahead, steps) in [("on request", false, 400), ("ahead", true, 100)] {
        let times = run(&vocabulary, ahead, steps);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!(
            "{name}: {ROWS} masks a step: mean {mean:.2} ms, median {:.2}, p99 {:.2}",
            at(0.5),
            at(0.99)
        );
    }
}
