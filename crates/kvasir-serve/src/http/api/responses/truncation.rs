//! `truncation: auto`: drops the oldest messages of a conversation that exceeds the context.
//!
//! 1. Try the conversation. On overflow by `e` of `p` prompt tokens, the messages have `p` tokens in
//!    proportion to their bytes.
//! 2. Drop the oldest ones of at least `e` tokens, behind the system's messages and in front of the
//!    last one, and the results of calls that are dropped. Start over.
//!
//! The answer's maximum needs its room, too, up to half of the context; it is clamped to the rest
//! only if no message is left to drop.
//!
//! Each try renders and tokenizes the whole prompt. Since proportions are estimates, a try drops
//! twice as many messages as the one before at least: their number is logarithmic.

use crate::error::{ApiError, Detail, Overflow};
use crate::request::chat::ChatRequest;
use crate::request::length::Overlong;
use kvasir_chat::{Message, Role};
use std::ops::Range;

/// Submits a chat; drops its oldest messages until it fits the context.
pub(super) fn submit_truncated<T>(
    chat: &mut ChatRequest,
    mut submit: impl FnMut(&ChatRequest) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let mut least = 1;
    loop {
        let error = match submit(chat) {
            Ok(submitted) => return Ok(submitted),
            Err(error) => error,
        };
        let Some(Detail::Overflow(overflow)) = error.detail else { return Err(error) };
        let dropped = oldest(&chat.messages, overflow, least);
        if dropped.is_empty() {
            if chat.sampling.length.overlong == Overlong::Clamp {
                return Err(error);
            }
            chat.sampling.length.overlong = Overlong::Clamp;
            continue;
        }
        chat.messages.drain(dropped);
        least *= 2;
    }
}

/// The oldest messages that the overflow requires to drop, `least` at least.
fn oldest(messages: &[Message], overflow: Overflow, least: usize) -> Range<usize> {
    let Overflow { prompt, requested, limit } = overflow;
    // Without a requested length, the answer has one token at least.
    let room = limit.saturating_sub(requested.unwrap_or(1));
    let excess = u64::from(prompt.saturating_sub(room));
    let bytes = |message: &Message| message.source.to_string().len() as u64;
    let total: u64 = messages.iter().map(bytes).sum();
    let first = messages.iter().take_while(|message| message.role == Role::System).count();
    let last = messages.len().saturating_sub(1).max(first);
    let (mut end, mut dropped) = (first, 0);
    while end < last && (end - first < least || dropped * u64::from(prompt) < excess * total) {
        dropped += bytes(&messages[end]);
        end += 1;
    }
    // A result without its call would be refused.
    while end < last && messages[end].role == Role::Tool {
        end += 1;
    }
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use crate::request::length::Length;
    use crate::request::reader::Reader;
    use crate::request::responses::ResponsesRequest;
    use kvasir_sample::Sampling;
    use serde_json::{Value, json};

    const LIMIT: u32 = 1000;

    fn chat(items: Vec<Value>) -> ChatRequest {
        let body = json!({"instructions": "be brief", "input": items});
        let ignored = IgnoredFields::default();
        let body = Reader::new(body.as_object().unwrap(), &ignored);
        ResponsesRequest::read(&body, &Sampling::default(), 1000).unwrap().chat
    }

    /// Truncates a chat; returns the number of tries and the tokens of the last one.
    fn truncate(chat: &mut ChatRequest, tokens: impl Fn(&Message) -> u32) -> (usize, u32) {
        let mut tries = 0;
        let kept = submit_truncated(chat, |chat| {
            tries += 1;
            let prompt = chat.messages.iter().map(&tokens).sum();
            let overflow = Overflow { prompt, requested: None, limit: LIMIT };
            if prompt < LIMIT { Ok(prompt) } else { Err(ApiError::overflow("input", overflow)) }
        });
        (tries, kept.unwrap())
    }

    fn content(message: &Message) -> &str {
        message.source["content"].as_str().unwrap_or_default()
    }

    #[test]
    fn few_tries_find_what_fits() {
        let user =
            |i: usize| json!({"role": "user", "content": format!("message {i} {}", "x".repeat(i % 50))});
        let mut long = chat((0..4000).map(user).collect());
        let (tries, kept) = truncate(&mut long, |message| 4 + content(message).len() as u32 / 3);
        assert!(tries <= 4 && kept > LIMIT * 9 / 10, "{tries} tries, {kept} tokens");
        let contents: Vec<_> = long.messages.iter().map(content).collect();
        assert!(contents[0] == "be brief" && contents.last().unwrap().starts_with("message 3999 "));
        // Bytes say nothing of the tokens: the oldest are long and cost nothing.
        let user =
            |i: usize| json!({"role": "user", "content": "x".repeat(if i < 2000 { 10_000 } else { 1 })});
        let mut uneven = chat((0..4000).map(user).collect());
        let (tries, kept) = truncate(&mut uneven, |message| u32::from(content(message).len() < 10));
        assert!(tries <= 13 && kept > LIMIT / 4, "{tries} tries, {kept} tokens");
    }

    #[test]
    fn a_limit_is_clamped_if_no_message_is_left_to_drop() {
        let mut alone = chat(vec![json!({"role": "user", "content": "so"})]);
        alone.sampling.length =
            Length { max_tokens: Some(LIMIT), overlong: Overlong::Reserve, ..alone.sampling.length };
        let fitted = submit_truncated(&mut alone, |chat| chat.sampling.length.fit("input", 700, LIMIT));
        assert_eq!((fitted, alone.messages.len()), (Ok(300), 2));
        let refused = submit_truncated(&mut alone, |chat| chat.sampling.length.fit("input", 1000, LIMIT));
        assert_eq!(refused.unwrap_err().param.as_deref(), Some("input"));
    }

    #[test]
    fn messages_are_dropped_for_the_answer_up_to_half_of_the_context() {
        for (most, kept) in [(300, 700), (900, 500)] {
            let user = |i: usize| json!({"role": "user", "content": format!("message {i:02}")});
            let mut long = chat((0..99).map(user).collect());
            long.sampling.length =
                Length { max_tokens: Some(most), overlong: Overlong::Reserve, ..long.sampling.length };
            let fitted = submit_truncated(&mut long, |chat| {
                chat.sampling.length.fit("input", 10 * chat.messages.len() as u32, LIMIT)
            });
            assert_eq!((fitted, 10 * long.messages.len()), (Ok(LIMIT - kept), kept as usize));
        }
    }

    #[test]
    fn results_go_with_their_call() {
        let call = |i: usize| json!({"type": "function_call", "call_id": i.to_string(), "name": "f", "arguments": "{}"});
        let result =
            |i: usize| json!({"type": "function_call_output", "call_id": i.to_string(), "output": "x"});
        let calls = (0..300).map(call).chain((0..300).map(result));
        let last = [json!({"role": "user", "content": "so"})];
        let mut chat = chat(calls.chain(last).collect());
        let (tries, _) = truncate(&mut chat, |message| if message.role == Role::Tool { 4 } else { 1 });
        let kept: Vec<_> = chat.messages.iter().map(content).collect();
        assert_eq!((tries, kept), (2, vec!["be brief", "so"]));
    }
}
