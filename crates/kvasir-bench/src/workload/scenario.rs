//! Scenario files `kvasir-scenario/1`: explicit requests with prompts, arrivals and the options
//! they are meant for.
//!
//! Errors name the offending field by path, in one line. Prompts may share passages or quote
//! earlier answers, so that prefix cache behavior can be written down exactly.

use crate::workload::text::{Answer, Passage};
use crate::workload::{At, Job, Part, Prompt, SECOND, Workload};
use kvasir_engine::Summary;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use std::{collections::HashMap, fmt};

/// The file format `kvasir-scenario/1`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `format` and `requests`")]
struct File {
    format: String,
    title: Option<String>,
    #[serde(default, deserialize_with = "distinct")]
    options: Map<String, Value>,
    requests: Vec<Written>,
}

/// Deserializes an object and rejects duplicate keys.
fn distinct<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    struct Fields;
    impl<'de> Visitor<'de> for Fields {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut map = Map::new();
            while let Some((name, value)) = from.next_entry::<String, Value>()? {
                if map.contains_key(&name) {
                    return Err(de::Error::custom(format_args!("`{name}` is there twice")));
                }
                map.insert(name, value);
            }
            Ok(map)
        }
    }
    from.deserialize_map(Fields)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: Option<String>,
    /// Arrival before this step, counted from 0.
    arrival_step: Option<u64>,
    /// Arrival time, in seconds.
    arrival: Option<f64>,
    /// Length of a prompt that shares no prefix with any other.
    prompt_len: Option<u32>,
    prompt: Option<Vec<Segment>>,
    max_tokens: u32,
    /// Output tokens after which the answer emits EOS; absent means it does not.
    output_len: Option<u32>,
    abort_after: Option<u32>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    key: u64,
}

/// A prompt segment: tokens `from .. to` of a numbered text, or the first `tokens` of another
/// request's answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    text: Option<u64>,
    from: Option<u32>,
    to: Option<u32>,
    output_of: Option<String>,
    tokens: Option<u32>,
}

/// A parsed scenario: explicit requests, and the command line options they are meant for.
#[derive(Debug)]
pub struct Scenario {
    title: String,
    options: Map<String, Value>,
    names: Vec<String>,
    jobs: std::vec::IntoIter<Job>,
    total: u64,
}

/// Shortest scenario, for the error of a file that is none.
const EXAMPLE: &str =
    r#"{"format": "kvasir-scenario/1", "requests": [{"prompt_len": 100, "max_tokens": 20}]}"#;

/// Upper bound on prompt length.
const LONGEST_PROMPT: u64 = 1 << 22;

/// Upper bound on `arrival_step`.
const LAST_STEP: u64 = 1_000_000_000_000;

/// Upper bound on the total length of all prompts.
const MOST_TOKENS: u64 = 1 << 30;

impl Scenario {
    /// Parses a scenario. The error names the offending field in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Err(format!(
                "is no scenario: a JSON object with `format` and `requests`, such as {EXAMPLE}"
            ));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let file: File = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        if file.format != "kvasir-scenario/1" {
            return Err(format!("format is `{}`, known is `kvasir-scenario/1`", file.format));
        }
        let mut names: Vec<String> = Vec::with_capacity(file.requests.len());
        let mut index = HashMap::new();
        for (i, written) in file.requests.iter().enumerate() {
            let name = written.id.clone().unwrap_or_else(|| i.to_string());
            if index.insert(name.clone(), i).is_some() {
                return Err(format!("requests[{i}].id: {name:?} is there twice"));
            }
            names.push(name);
        }
        let answered = |i: usize| file.requests.get(i).map(|written| (written.answer(i), written.outputs()));
        let mut jobs = Vec::with_capacity(file.requests.len());
        for (i, written) in file.requests.iter().enumerate() {
            let job = written.job(i, &index, &answered).map_err(|why| format!("requests[{i}].{why}"))?;
            jobs.push(job);
        }
        let tokens: u64 = jobs.iter().map(|job| job.prompt.len() as u64).sum();
        if tokens > MOST_TOKENS {
            return Err(format!("requests: {tokens} tokens of prompts altogether, at most {MOST_TOKENS}"));
        }
        let timed = jobs.iter().any(|job| matches!(job.at, At::Time(at) if at > 0));
        if timed && jobs.iter().any(|job| matches!(job.at, At::Step(at) if at > 0)) {
            return Err("requests: arrival and arrival_step cannot be mixed".into());
        }
        jobs.sort_by_key(|job| match job.at {
            At::Time(at) | At::Step(at) => at,
        });
        Ok(Self {
            title: file.title.unwrap_or_else(|| "scenario".into()),
            options: file.options,
            total: names.len() as u64,
            names,
            jobs: jobs.into_iter(),
        })
    }

    /// Options by their command line names, without leading dashes.
    pub fn options(&self) -> &Map<String, Value> {
        &self.options
    }

    /// Whether the arrival of any request is given as a step number above 0.
    pub fn counts_steps(&self) -> bool {
        self.jobs.as_slice().iter().any(|job| matches!(job.at, At::Step(step) if step > 0))
    }
}

impl Written {
    fn answer(&self, i: usize) -> Answer {
        Answer::new(i as u64, self.output_len.unwrap_or(0))
    }

    /// Number of output tokens, at most.
    fn outputs(&self) -> u32 {
        self.output_len.unwrap_or(self.max_tokens).min(self.max_tokens)
    }

    fn job(
        &self,
        i: usize,
        index: &HashMap<String, usize>,
        answered: &dyn Fn(usize) -> Option<(Answer, u32)>,
    ) -> Result<Job, String> {
        let at = match (self.arrival_step, self.arrival) {
            (Some(_), Some(_)) => return Err("arrival: arrival_step is given too".into()),
            (Some(step), None) if step > LAST_STEP => {
                return Err(format!("arrival_step: at most {LAST_STEP}"));
            }
            (Some(step), None) => At::Step(step),
            (None, Some(seconds)) if !(0.0..=1e9).contains(&seconds) => {
                return Err(format!("arrival: {seconds:?} is not between 0 and 1e9 seconds"));
            }
            (None, Some(seconds)) => At::Time((seconds * SECOND) as u64),
            (None, None) => At::Step(0),
        };
        let parts = match (&self.prompt, self.prompt_len) {
            (Some(_), Some(_)) => return Err("prompt: prompt_len is given too".into()),
            (None, None) => return Err("prompt: neither it nor prompt_len is given".into()),
            (None, Some(to)) => vec![Part::Text(Passage { text: (1 << 40) + i as u64, from: 0, to })],
            (Some(segments), None) => {
                segments.iter().map(|segment| segment.part(i, index, answered)).collect::<Result<_, _>>()?
            }
        };
        let tokens: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if tokens > LONGEST_PROMPT {
            return Err(format!("prompt: {tokens} tokens, at most {LONGEST_PROMPT}"));
        }
        if self.output_len.is_some_and(|length| length == 0 || length > Answer::LONGEST) {
            return Err(format!("output_len: must be 1 to {}", Answer::LONGEST));
        }
        Ok(Job {
            priority: self.priority,
            key: self.key,
            abort_after: self.abort_after,
            ..Job::new(at, Prompt::Parts(parts), self.answer(i), self.max_tokens, i as u64)
        })
    }
}

impl Segment {
    /// Resolves the segment for the prompt of request `of`; answers may be quoted from earlier
    /// requests only.
    fn part(
        &self,
        of: usize,
        index: &HashMap<String, usize>,
        answered: &dyn Fn(usize) -> Option<(Answer, u32)>,
    ) -> Result<Part, String> {
        match (self.text, self.from, self.to, &self.output_of, self.tokens) {
            (Some(_), Some(from), Some(to), None, None) if from > to => {
                Err(format!("prompt: a passage from {from} to {to}"))
            }
            (Some(text), Some(from), Some(to), None, None) => Ok(Part::Text(Passage { text, from, to })),
            (None, None, None, Some(output_of), Some(tokens)) => {
                let at = index.get(output_of).copied();
                match at.and_then(|i| Some((i, answered(i)?))) {
                    Some((i, _)) if i >= of => {
                        Err(format!("prompt: output_of names {output_of:?}, which is not before it"))
                    }
                    Some((_, (_, most))) if tokens > most => {
                        Err(format!("prompt: {output_of:?} is answered with {most} tokens, not {tokens}"))
                    }
                    Some((_, (answer, _))) => Ok(Part::Said(answer, tokens)),
                    None => Err(format!("prompt: output_of names no request {output_of:?}")),
                }
            }
            _ => Err("prompt: each part has either text, from and to, or output_of and tokens".into()),
        }
    }
}

impl Workload for Scenario {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn next(&mut self) -> Option<Job> {
        self.jobs.next()
    }

    fn ended(&mut self, _: &Summary, _: u64, _: &mut Vec<Job>) {}

    fn name(&self, tag: u64) -> Option<&str> {
        self.names.get(tag as usize).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::scenario::Scenario;

    fn refusal(requests: &str) -> String {
        let text = format!(r#"{{"format": "kvasir-scenario/1", "requests": {requests}}}"#);
        Scenario::parse(&text).unwrap_err()
    }

    #[test]
    fn an_option_that_is_there_twice_is_refused() {
        let text = r#"{"format": "kvasir-scenario/1", "options": {"policy": "chunked", "policy": "rectangular"}, "requests": []}"#;
        let why = Scenario::parse(text).unwrap_err();
        assert!(why.contains("`policy` is there twice"), "{why}");
    }

    #[test]
    fn other_files_get_an_example_that_is_a_scenario() {
        for text in ["", "# Title", "[package]\nname = 1", "[]"] {
            let why = Scenario::parse(text).unwrap_err();
            let (words, example) = why.split_once(", such as ").unwrap();
            assert!(words.contains("object with `format` and `requests`"), "{why}");
            assert!(Scenario::parse(example).is_ok(), "{example}");
        }
    }

    #[test]
    fn invalid_scenarios_are_refused_by_name() {
        for (requests, named) in [
            (
                r#"[{"prompt_len": -1, "max_tokens": 1}]"#,
                "requests[0].prompt_len: invalid value: integer `-1`",
            ),
            (
                r#"[{"prompt_len": 1, "max_tokens": 1}, {"prompt_len": 1, "max_tokens": "x"}]"#,
                "requests[1].max_tokens",
            ),
            (r#"[{"prompt_len": 1, "prompt_len": 2, "max_tokens": 1}]"#, "prompt_len"),
            (
                r#"[{"prompt": [{"text": 1, "from": 1, "to": 2, "tokens": 2}], "max_tokens": 1}]"#,
                "requests[0].prompt",
            ),
            (
                r#"[{"prompt": [{"text": 1, "from": 1, "to": -2}], "max_tokens": 1}]"#,
                "requests[0].prompt[0].to",
            ),
            (
                "[{\"id\": \"a\\nb\", \"prompt_len\": 1, \"max_tokens\": 1}, {\"id\": \"a\\nb\", \"prompt_len\": 1, \"max_tokens\": 1}]",
                "requests[1].id",
            ),
            (r#"[{"prompt_len": 1, "max_tokens": 1, "color": 2}]"#, "color"),
            (r#"[{"max_tokens": 1}]"#, "requests[0].prompt"),
            (r#"[{"prompt_len": 1, "prompt": [], "max_tokens": 1}]"#, "requests[0].prompt"),
            (r#"[{"prompt": [{"text": 1, "from": 5, "to": 2}], "max_tokens": 1}]"#, "from 5 to 2"),
            (r#"[{"prompt": [{"output_of": "x", "tokens": 2}], "max_tokens": 1}]"#, "\"x\""),
            (
                r#"[{"id": "a", "prompt": [{"output_of": "a", "tokens": 2}], "max_tokens": 1}]"#,
                "\"a\", which is not before it",
            ),
            (
                r#"[{"id": "a", "prompt_len": 1, "max_tokens": 9, "output_len": 5}, {"prompt": [{"output_of": "a", "tokens": 6}], "max_tokens": 1}]"#,
                "requests[1].prompt: \"a\" is answered with 5 tokens, not 6",
            ),
            (
                r#"[{"prompt_len": 1, "max_tokens": 1, "arrival_step": 18446744073709551615}]"#,
                "arrival_step: at most",
            ),
            (r#"[{"prompt_len": 4000000000, "max_tokens": 1}]"#, "requests[0].prompt"),
            (r#"[{"prompt_len": 1, "max_tokens": 1, "arrival": -2}]"#, "requests[0].arrival"),
            (r#"[{"prompt_len": 1, "max_tokens": 1, "arrival": 1, "arrival_step": 1}]"#, "arrival_step"),
            (
                r#"[{"id": "a", "prompt_len": 1, "max_tokens": 1}, {"id": "a", "prompt_len": 1, "max_tokens": 1}]"#,
                "requests[1].id",
            ),
        ] {
            let why = refusal(requests);
            assert!(why.contains(named) && !why.contains('\n'), "{requests}: {why}");
        }
    }
}
