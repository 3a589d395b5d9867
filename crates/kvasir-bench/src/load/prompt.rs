//! Renders workload prompts as request bodies: chat messages, plain text or token ids.

use crate::workload::text::Answer;
use crate::workload::{Part, Prompt};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::collections::HashMap;

/// The API route to benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions` with text prompts.
    Completions,
    /// `/v1/completions` with token id prompts; lengths are exact on any server that accepts ids.
    Ids,
}

impl Route {
    /// Path of the route, relative to the server's base path.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions | Self::Ids => "/v1/completions",
        }
    }
}

/// Upper bound of token ids in prompts, within most vocabularies. The offline benchmark uses the
/// same.
pub(crate) const IDS: Token = 10_000;

/// Answers received so far, needed verbatim in later turns of a conversation.
#[derive(Debug, Default)]
pub(crate) struct AnswerTexts(HashMap<u64, String>);

impl AnswerTexts {
    pub(super) fn keep(&mut self, answer: Answer, text: String) {
        self.0.insert(answer.0, text);
    }

    fn of(&self, answer: Answer) -> &str {
        self.0.get(&answer.0).map_or("", String::as_str)
    }
}

/// The body fields that hold the prompt.
///
/// Text prompts use one word per token: each word of `WORDS` is a single token in most
/// vocabularies. Ids are reduced modulo `ids`.
pub(crate) fn fields(
    route: Route,
    prompt: &Prompt,
    answers: &AnswerTexts,
    ids: Token,
) -> Vec<(&'static str, Value)> {
    match route {
        Route::Ids => {
            let ids: Vec<Token> = prompt.clone().tokens().into_iter().map(|id| id % ids).collect();
            vec![("prompt", json!(ids))]
        }
        Route::Completions => vec![("prompt", text(prompt, answers).into())],
        Route::Chat => vec![("messages", messages(prompt, answers))],
    }
}

fn text(prompt: &Prompt, answers: &AnswerTexts) -> String {
    match prompt {
        Prompt::Tokens(tokens) => words(tokens.iter().copied()),
        Prompt::Parts(parts) => {
            parts.iter().map(|part| part_text(part, answers)).collect::<Vec<_>>().join(" ")
        }
    }
}

fn part_text(part: &Part, answers: &AnswerTexts) -> String {
    match part {
        Part::Text(passage) => words(passage.tokens()),
        Part::Said(answer, _) => answers.of(*answer).to_owned(),
    }
}

/// Leading text parts form the system message, except the last one, which is the first user
/// message. Then roles alternate.
fn messages(prompt: &Prompt, answers: &AnswerTexts) -> Value {
    let Prompt::Parts(parts) = prompt else {
        return json!([{"role": "user", "content": text(prompt, answers)}]);
    };
    let first = parts.iter().take_while(|part| matches!(part, Part::Text(_))).count();
    let mut messages = Vec::new();
    if first > 1 {
        let system: Vec<String> = parts.iter().take(first - 1).map(|part| part_text(part, answers)).collect();
        messages.push(json!({"role": "system", "content": system.join(" ")}));
    }
    for part in parts.iter().skip(first.saturating_sub(1)) {
        let role = if matches!(part, Part::Said(..)) { "assistant" } else { "user" };
        messages.push(json!({"role": role, "content": part_text(part, answers)}));
    }
    messages.into()
}

fn words(tokens: impl Iterator<Item = Token>) -> String {
    let mut out = String::new();
    for token in tokens {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(WORDS.get(token as usize % WORDS.len()).unwrap_or(&"and"));
    }
    out
}

const WORDS: [&str; 100] = [
    "the",
    "are",
    "call",
    "with",
    "city",
    "small",
    "one",
    "place",
    "each",
    "more",
    "may",
    "answer",
    "time",
    "function",
    "stand",
    "object",
    "help",
    "weather",
    "number",
    "remember",
    "day",
    "man",
    "model",
    "expression",
    "key",
    "after",
    "list",
    "year",
    "order",
    "color",
    "name",
    "friend",
    "world",
    "kind",
    "care",
    "plain",
    "country",
    "before",
    "this",
    "can",
    "much",
    "something",
    "like",
    "has",
    "orange",
    "plus",
    "opposite",
    "times",
    "sum",
    "result",
    "for",
    "item",
    "live",
    "blue",
    "even",
    "red",
    "song",
    "month",
    "white",
    "green",
    "yellow",
    "language",
    "old",
    "give",
    "black",
    "about",
    "words",
    "under",
    "fish",
    "late",
    "dog",
    "today",
    "clear",
    "last",
    "was",
    "young",
    "horse",
    "have",
    "than",
    "count",
    "line",
    "big",
    "week",
    "home",
    "night",
    "question",
    "book",
    "door",
    "room",
    "water",
    "river",
    "stone",
    "tree",
    "house",
    "light",
    "and",
    "morning",
    "people",
    "problem",
    "person",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::text::Passage;

    #[test]
    fn a_turn_contains_the_actual_previous_answer() {
        let text = |text, to| Part::Text(Passage { text, from: 0, to });
        let answer = Answer::new(9, 5);
        let prompt = Prompt::Parts(vec![text(1, 3), text(2, 2), Part::Said(answer, 5), text(3, 1)]);
        let mut answers = AnswerTexts::default();
        answers.keep(answer, "as the server put it".into());
        let body = fields(Route::Chat, &prompt, &answers, IDS);
        let roles: Vec<&str> =
            body[0].1.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(body[0].1[2]["content"], "as the server put it");
        assert_eq!(body[0].1[0]["content"].as_str().unwrap().split(' ').count(), 3);
        let plain = fields(Route::Completions, &prompt, &answers, IDS);
        assert!(plain[0].1.as_str().unwrap().contains("as the server put it"));
    }

    #[test]
    fn ids_have_the_exact_length_and_are_the_models() {
        let prompt = Prompt::Tokens(vec![1, 20_001, 3]);
        let ids = |below| fields(Route::Ids, &prompt, &AnswerTexts::default(), below)[0].1.clone();
        assert_eq!((ids(IDS), ids(3072)), (json!([1, 1, 3]), json!([1, 1569, 3])));
    }
}
