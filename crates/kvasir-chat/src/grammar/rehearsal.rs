//! Rehearsal of a compiled grammar: follows it for some tokens and computes their masks, so that one
//! that exceeds the library's limits behind its first token is refused when it is compiled.
//!
//! Algorithm: two walks from the start, each over at most [`MAX_STEPS`] tokens. One prefers tokens with
//! structure (quotes, commas, brackets), which leads through all properties of a schema; the other takes
//! tokens at random, which leads into long texts. After [`MIN_STEPS`] tokens a walk ends with its share
//! of [`TIME_LIMIT`].
//!
//! A grammar that passes may still exceed a limit further on: the sequence then ends with an error, never
//! with unconstrained output.

use crate::grammar::matcher_watchdog::{MatcherWatchdog, WatchedMatcher};
use kvasir_kv::Token;
use llguidance::{Matcher, toktrie::TokTrie};
use std::time::{Duration, Instant};

/// Tokens of a walk that are followed however long they take.
const MIN_STEPS: usize = 64;
const MAX_STEPS: usize = 256;
/// Time of both walks.
const TIME_LIMIT: Duration = Duration::from_millis(20);
/// Bytes of tokens that end a text or open a value.
const STRUCTURE: &[u8] = b"\"',:;}]>)\n";

/// Follows a grammar from its start. The error is the library's.
pub(super) fn rehearse(start: &Matcher, trie: &TokTrie, watchdog: &MatcherWatchdog) -> Result<(), String> {
    let began = Instant::now();
    for (walk, prefers_structure) in [true, false].into_iter().enumerate() {
        let mut matcher = watchdog.watch(start.clone());
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let until = TIME_LIMIT / 2 * (walk as u32 + 1);
        for step in 0..MAX_STEPS {
            if step >= MIN_STEPS && began.elapsed() > until {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if !follow(&mut matcher, trie, random >> 33, prefers_structure)? {
                break;
            }
        }
    }
    Ok(())
}

/// Computes a mask and takes one of its tokens. False at the end of the grammar.
fn follow(
    matcher: &mut WatchedMatcher,
    trie: &TokTrie,
    random: u64,
    prefers_structure: bool,
) -> Result<bool, String> {
    if matcher.matcher().is_stopped() {
        return Ok(false);
    }
    let mask = matcher.work(Matcher::compute_mask_or_eos).map_err(|error| error.to_string())?;
    let is_text = |token: &Token| !trie.eos_tokens().contains(token);
    let is_structure = |token: &Token| trie.token(*token).iter().any(|byte| STRUCTURE.contains(byte));
    let structures = || mask.iter().filter(|token| is_text(token) && is_structure(token));
    let count = if prefers_structure { structures().count() } else { 0 };
    let token = if count > 0 {
        structures().nth(random as usize % count)
    } else {
        let count = mask.iter().filter(is_text).count().max(1);
        mask.iter().filter(is_text).nth(random as usize % count)
    };
    let Some(token) = token else { return Ok(false) };
    matcher.work(|matcher| matcher.consume_token(token)).map_err(|error| error.to_string())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use crate::grammar::{Shape, Vocabulary};
    use kvasir_formats::TextFiles;
    use serde_json::{Map, Value, json};
    use std::{path::Path, sync::Arc};

    fn vocabulary() -> Vocabulary {
        let files =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-formats/tests/data/tokenizers/qwen");
        let tokenizer = Arc::new(TextFiles::open(&files).unwrap().tokenizer().unwrap());
        Vocabulary::new(tokenizer, 512, &[505, 503]).unwrap()
    }

    #[test]
    fn masks_beyond_the_limits_are_refused_when_compiled() {
        let vocabulary = vocabulary();
        let within = |name: &str, schema: Value| json!({"type": "object", "properties": {"a": {"type": "integer"}, name: schema}, "required": ["a", name]});
        let object = |key: String| json!({"type": "object", "properties": {key: {"type": "string"}}});
        let alternatives = |n: usize| (0..n).map(|i| json!({"type": "array", "items": {"const": i}}));
        let optional = (0..2000).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect::<Map<_, _>>();
        for schema in [
            json!({"type": "string", "pattern": "^(([a-z]{1,50}){1,50}){1,50}$"}),
            json!({"type": "array", "minItems": 1, "items": {"anyOf": alternatives(2500).collect::<Vec<_>>()}}),
            json!({"anyOf": (0..1500).map(|i| object(format!("key {i}"))).collect::<Vec<_>>()}),
            json!({"type": "object", "properties": optional}),
        ] {
            let refused = vocabulary.compile(&Shape::JsonSchema(within("b", schema)), &[]).unwrap_err();
            assert!(refused.0.starts_with(super::super::vocabulary::TOO_MUCH), "{refused}");
        }
        for pattern in ["^.*a.{200}$", "^[a-z]+$"] {
            let schema = within("b", json!({"type": "string", "pattern": pattern}));
            assert!(vocabulary.compile(&Shape::JsonSchema(schema), &[]).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn specifications_that_match_nothing_are_refused() {
        let vocabulary = vocabulary();
        for shape in [
            Shape::Grammar("root ::= root \"a\"".into()),
            Shape::Grammar("start: start \"a\"".into()),
            Shape::Regex("[^\\s\\S]".into()),
        ] {
            let refused = vocabulary.compile(&shape, &[]).unwrap_err();
            assert_eq!(refused.0, "matches nothing that this model can write", "{shape:?}");
        }
    }

    #[test]
    fn expressions_that_end_in_an_escape_are_refused() {
        let vocabulary = vocabulary();
        let compiles = |shape: Shape| vocabulary.compile(&shape, &[]).is_ok();
        for (pattern, is_whole) in [("a\\", false), ("a\\\\", true), ("a\\\\\\", false)] {
            assert_eq!(compiles(Shape::Regex(pattern.into())), is_whole, "{pattern}");
            let schema = json!({"type": "string", "pattern": pattern});
            assert_eq!(compiles(Shape::JsonSchema(schema)), is_whole, "{pattern}");
        }
        // A value is no pattern.
        assert!(compiles(Shape::JsonSchema(json!({"const": {"pattern": "a\\"}}))));
    }
}
