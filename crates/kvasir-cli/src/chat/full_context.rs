//! A conversation that exceeds the context: how many of its oldest turns to drop so that it fits again.

use crate::chat::conversation::Conversation;
use crate::io::status_line::with_commas;

/// Tokens left to an answer by dropping turns: a quarter of the context, at most this.
const LEFT_TO_ANSWER: usize = 1024;

/// How to go on with a full context.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Drop the `turns` oldest turns.
    Drop { turns: usize, tokens: usize },
    /// No number of turns suffices: tokens of the newest one alone.
    TooLong { tokens: usize },
}

/// Finds the fewest turns to drop. `count(n)` returns the prompt tokens without the `n` oldest
/// turns. `max_len` is the context length, `max_tokens` the answer's limit if one is set.
pub(crate) fn remedy<E>(
    conversation: &Conversation,
    max_len: usize,
    max_tokens: Option<usize>,
    count: impl Fn(usize) -> Result<usize, E>,
) -> Result<Remedy, E> {
    let (least, wanted) = match max_tokens {
        Some(tokens) => (tokens, tokens),
        None => (1, (max_len / 4).clamp(1, LEFT_TO_ANSWER)),
    };
    let tokens = count(0)?;
    let all = conversation.turns().saturating_sub(1);
    let fits = |turns: usize, room: usize| Ok(count(turns)?.saturating_add(room) <= max_len);
    if all == 0 || !fits(all, least)? {
        return Ok(Remedy::TooLong { tokens: count(all)? });
    }
    // The fewest in `low..=high`: fewer turns never have fewer tokens.
    let (mut low, mut high) = (1, all);
    while low < high {
        let middle = low.midpoint(high);
        if fits(middle, wanted)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Remedy::Drop { turns: low, tokens })
}

/// Says how full the context is.
pub(crate) fn fill(tokens: usize, max_len: u32) -> String {
    let tokens = with_commas(u32::try_from(tokens).unwrap_or(u32::MAX));
    format!("the conversation has {tokens} of {} tokens", with_commas(max_len))
}

/// What a user can do about a full context.
pub(crate) const ADVICE: &str = "/clear begins anew, /rewind N takes back the last turns, and a larger --max-model-len or --kv-capacity holds more";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::conversation::user;
    use serde_json::json;

    /// A conversation of `turns` turns and another question.
    fn conversation(turns: usize) -> Conversation {
        let mut talk = Conversation::new(Some("Be brief."));
        for _ in 0..turns {
            talk.push(user("?"));
            talk.push(json!({"role": "assistant", "content": "!"}));
        }
        talk.push(user("and?"));
        talk
    }

    fn found(turns: usize, max_len: usize, max_tokens: Option<usize>) -> Remedy {
        // Each turn has 10 tokens, the newest question 5.
        let count = |dropped: usize| Ok::<_, ()>((turns - dropped) * 10 + 5);
        remedy(&conversation(turns), max_len, max_tokens, count).unwrap()
    }

    #[test]
    fn the_fewest_turns_are_dropped_that_leave_room_for_an_answer() {
        // 105 of 100 tokens; a quarter of 100 for the answer.
        assert_eq!(found(10, 100, None), Remedy::Drop { turns: 3, tokens: 105 });
        assert_eq!(found(10, 100, Some(5)), Remedy::Drop { turns: 1, tokens: 105 });
        assert_eq!(found(10, 100, Some(94)), Remedy::Drop { turns: 10, tokens: 105 });
        // All but the question leaves less than a quarter, and a token is room enough.
        assert_eq!(found(1, 6, None), Remedy::Drop { turns: 1, tokens: 15 });
    }

    #[test]
    fn a_question_that_is_too_long_by_itself_is_told_apart() {
        assert_eq!(found(10, 5, None), Remedy::TooLong { tokens: 5 });
        assert_eq!(found(0, 100, None), Remedy::TooLong { tokens: 5 });
        assert_eq!(found(10, 100, Some(96)), Remedy::TooLong { tokens: 5 });
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!(fill(8320, 8192), "the conversation has 8,320 of 8,192 tokens");
    }
}
