//! Maps the pre-tokenizer of a `tokenizer.json` to the GGUF pre-tokenizer name
//! (`tokenizer.ggml.pre`).
//!
//! 1. Reduce every step (Split, Digits, ByteLevel) to its regular expression, in a canonical
//!    spelling.
//! 2. Find the family whose expressions are equal.
//! 3. Among equal families prefer the one that agrees on `ignore_merges`.
//!
//! Anything else is refused by name: a wrong pre-tokenizer would silently change token ids.

use crate::convert::steps;
use crate::error::{Error, Result};
use crate::tokenizer::split_patterns::{GPT2, expressions, takes_whole_words};
use serde_json::Value as Json;

/// GGUF pre-tokenizer names. Among those with equal expressions the first that agrees on
/// `ignore_merges` is chosen.
const FAMILIES: [&str; 22] = [
    "llama-bpe",
    "dbrx",
    "qwen2",
    "gpt-2",
    "starcoder",
    "gpt-4o",
    "deepseek-v3",
    "tekken",
    "kimi-k2",
    "qwen35",
    "tiny_aya",
    "bailingmoe",
    "seed-coder",
    "exaone-moe",
    "deepseek-coder",
    "superbpe",
    "minicpm5",
    "laguna",
    "youtu",
    "jais-2",
    "spark2_5",
    "ufakzeka",
];

/// A GGUF pre-tokenizer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GgufPreTokenizer {
    pub(super) family: &'static str,
    /// Whether vocabulary words bypass merges (`ignore_merges`), where the family does not imply
    /// it.
    pub(super) whole_words: Option<bool>,
}

/// The GGUF pre-tokenizer of a byte-level `tokenizer.json`. All steps must be those of one family.
pub(super) fn gguf_pre_tokenizer(json: &Json) -> Result<GgufPreTokenizer> {
    let refused = |why: String| Error::at("pre_tokenizer", why);
    let steps = steps(json.get("pre_tokenizer"), "pretokenizers");
    let Some((bytes, before)) = steps.split_last().filter(|(last, _)| kind(last) == "ByteLevel") else {
        return Err(refused(
            "has no GGUF name (`tokenizer.ggml.pre`): it does not end with ByteLevel".into(),
        ));
    };
    let mut wanted = before.iter().map(|step| expression(step)).collect::<Result<Vec<_>>>()?;
    let is_on = |key: &str| bytes.get(key).and_then(Json::as_bool);
    if is_on("add_prefix_space") == Some(true) {
        return Err(refused("ByteLevel: add_prefix_space cannot be represented in GGUF".into()));
    }
    if is_on("use_regex") != Some(false) {
        wanted.push(GPT2.into());
    }
    let whole = json.pointer("/model/ignore_merges").and_then(Json::as_bool) == Some(true);
    let alike = |name: &&str| {
        expressions(name)
            .is_ok_and(|ours| ours.iter().map(|pattern| plain(pattern)).eq(wanted.iter().cloned()))
    };
    let alike: Vec<&'static str> = FAMILIES.into_iter().filter(alike).collect();
    match alike.iter().find(|name| takes_whole_words(name) == whole) {
        Some(family) => Ok(GgufPreTokenizer { family, whole_words: None }),
        None => match alike.first() {
            Some(family) => Ok(GgufPreTokenizer { family, whole_words: Some(whole) }),
            None => {
                let kinds: Vec<&str> = steps.iter().map(|step| kind(step)).collect();
                Err(refused(format!("has no GGUF name (`tokenizer.ggml.pre`): {}", kinds.join(", "))))
            }
        },
    }
}

fn kind(step: &Json) -> &str {
    step.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// The regular expression of a step.
fn expression(step: &Json) -> Result<String> {
    let refused = |why: String| Error::at("pre_tokenizer", why);
    match kind(step) {
        "Digits" if step.get("individual_digits").and_then(Json::as_bool) == Some(true) => {
            Ok(r"\p{N}".into())
        }
        "Digits" => Ok(r"\p{N}+".into()),
        "Split" => {
            let regex = step.pointer("/pattern/Regex").and_then(Json::as_str);
            let regex =
                regex.ok_or_else(|| refused("Split: its pattern cannot be represented in GGUF".into()))?;
            let behavior = step.get("behavior").and_then(Json::as_str).unwrap_or_default();
            let inverted = step.get("invert").and_then(Json::as_bool) == Some(true);
            match (behavior, inverted) {
                ("Isolated", _) => Ok(plain(regex)),
                ("Removed", true) if finds_all(regex) => Ok(plain(regex)),
                _ => Err(refused(format!("Split: the behavior {behavior:?} cannot be represented in GGUF"))),
            }
        }
        other => Err(refused(format!("`{other}` cannot be represented in GGUF"))),
    }
}

/// Whether an expression matches all text without gaps.
///
/// True for the usual form (letters, digits, other characters, white space), false for expressions
/// that list punctuation.
fn finds_all(regex: &str) -> bool {
    regex.contains(r"|\p{N}") && regex.ends_with(r"|\s+(?!\S)|\s+") && !regex.contains(r"\p{P}")
}

/// Canonical spelling: files and our own table write some expressions differently.
fn plain(regex: &str) -> String {
    let mut parts = regex.split(r"\u{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .split_once('}')
            .map(|(code, rest)| (u32::from_str_radix(code, 16).map(char::from_u32), rest))
        {
            Some((Ok(Some(c)), rest)) => {
                out.push(c);
                out.push_str(rest);
            }
            _ => {
                out.push_str(r"\u{");
                out.push_str(part);
            }
        }
    }
    let out = out.replace(r"[\p{Han}]+", r"\p{Han}+").replace(r#"\""#, "\"");
    // White space outside of matches becomes a piece of its own anyway.
    match out.strip_suffix(r"|\s+") {
        Some(rest) if rest == GPT2 => rest.to_owned(),
        _ => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split(regex: &str) -> Json {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
    }

    fn bytes(use_regex: bool) -> Json {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn digits(one_by_one: bool) -> Json {
        json!({"type": "Digits", "individual_digits": one_by_one})
    }

    /// A `Sequence` of the steps followed by ByteLevel.
    fn sequence(mut steps: Vec<Json>) -> Json {
        steps.push(bytes(false));
        json!({"type": "Sequence", "pretokenizers": steps})
    }

    fn llama3(digits: &str) -> String {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    }

    /// Letter classes by case, without the characters of a set.
    fn cased(but: &str, contractions: &str, digits: &str, behind: &str) -> String {
        let (upper, lower) = (
            format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"),
            format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"),
        );
        let start = r"[^\r\n\p{L}\p{N}]?";
        format!(
            r"{start}{upper}*{lower}+{contractions}|{start}{upper}+{lower}*{contractions}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{behind}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    }

    const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";

    fn found(pre_tokenizer: &Json, ignore_merges: bool) -> Result<GgufPreTokenizer> {
        gguf_pre_tokenizer(
            &json!({"pre_tokenizer": pre_tokenizer, "model": {"ignore_merges": ignore_merges}}),
        )
    }

    #[test]
    fn published_pre_tokenizers_have_a_gguf_name() {
        let o200k = cased("", CONTRACTIONS, "{1,3}", "/");
        let kimi = format!(r"[\p{{Han}}]+|{}", cased(r"&&[^\p{Han}]", CONTRACTIONS, "{1,3}", ""));
        let deepseek = [
            r"\p{N}{1,3}",
            "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ];
        let coder =
            [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+"];
        let mut coder = coder.map(split).to_vec();
        coder.push(digits(true));
        let removed =
            json!({"type": "Split", "pattern": {"Regex": llama3("")}, "behavior": "Removed", "invert": true});
        let table = [
            (sequence(vec![split(&llama3("{1,3}"))]), true, "llama-bpe", None),
            (sequence(vec![split(&llama3("{1,3}"))]), false, "dbrx", None),
            (sequence(vec![split(&llama3(""))]), false, "qwen2", None),
            (sequence(vec![split(&llama3(""))]), true, "qwen2", Some(true)),
            (sequence(vec![removed]), false, "qwen2", None),
            (bytes(true), false, "gpt-2", None),
            (
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}),
                false,
                "gpt-2",
                None,
            ),
            (sequence(vec![split(&format!(r"{GPT2}|\s+"))]), false, "gpt-2", None),
            (
                json!({"type": "Sequence", "pretokenizers": [digits(true), bytes(true)]}),
                false,
                "starcoder",
                None,
            ),
            (sequence(vec![split(&o200k)]), false, "gpt-4o", None),
            (sequence(vec![split(&o200k)]), true, "gpt-4o", Some(true)),
            (sequence(vec![split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(&o200k)]), false, "tiny_aya", None),
            (sequence(vec![split(&cased("", "", "", "/"))]), true, "tekken", None),
            (sequence(vec![split(&cased("", "", "", "/"))]), false, "tekken", Some(false)),
            (sequence(vec![split(&kimi)]), false, "kimi-k2", None),
            (sequence(deepseek.map(split).to_vec()), false, "deepseek-v3", None),
            (sequence(vec![sequence_of(&deepseek)]), false, "deepseek-v3", None),
            (sequence(coder), false, "deepseek-coder", None),
            (sequence(vec![split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))")]), false, "superbpe", None),
        ];
        for (pre_tokenizer, ignore_merges, family, whole_words) in table {
            assert_eq!(
                found(&pre_tokenizer, ignore_merges).unwrap(),
                GgufPreTokenizer { family, whole_words },
                "{pre_tokenizer}"
            );
        }
    }

    fn sequence_of(expressions: &[&str]) -> Json {
        json!({"type": "Sequence", "pretokenizers": expressions.iter().map(|regex| split(regex)).collect::<Vec<_>>()})
    }

    #[test]
    fn unknown_pre_tokenizers_are_refused_by_name() {
        let removed = |regex: &str, invert: bool| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": invert});
        let table = [
            (Json::Null, "does not end with ByteLevel"),
            (bytes(false), "no GGUF name (`tokenizer.ggml.pre`): ByteLevel"),
            (json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}), "add_prefix_space"),
            (sequence(vec![json!({"type": "Whitespace"})]), "`Whitespace` cannot be represented"),
            (sequence(vec![json!({"type": "WhitespaceSplit"})]), "`WhitespaceSplit` cannot be represented"),
            (sequence(vec![json!({"type": "BertPreTokenizer"})]), "`BertPreTokenizer` cannot be represented"),
            (sequence(vec![json!({"type": "UnicodeScripts"})]), "`UnicodeScripts` cannot be represented"),
            (
                sequence(vec![json!({"type": "Punctuation", "behavior": "Contiguous"})]),
                "`Punctuation` cannot be represented",
            ),
            (sequence(vec![digits(true)]), "no GGUF name (`tokenizer.ggml.pre`): Digits, ByteLevel"),
            (sequence(vec![digits(false), bytes(true)]), "`ByteLevel` cannot be represented"),
            (
                json!({"type": "Sequence", "pretokenizers": [bytes(true), digits(true)]}),
                "does not end with ByteLevel",
            ),
            // BLOOM's expression.
            (
                sequence(vec![split(" ?[^(\\s|[.,!?\u{2026}\u{3002}\u{ff0c}])]+")]),
                "no GGUF name (`tokenizer.ggml.pre`): Split, ByteLevel",
            ),
            // Expressions of two families in sequence.
            (
                sequence(vec![split(&llama3("")), split(&llama3("{1,3}"))]),
                "no GGUF name (`tokenizer.ggml.pre`): Split, Split, ByteLevel",
            ),
            (sequence(vec![removed(&llama3(""), false)]), r#"the behavior "Removed""#),
            (sequence(vec![removed(r"\p{N}+", true)]), r#"the behavior "Removed""#),
            (
                sequence(vec![
                    json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false}),
                ]),
                "its pattern",
            ),
        ];
        for (pre_tokenizer, why) in table {
            let refused = found(&pre_tokenizer, false).unwrap_err().to_string();
            assert!(refused.contains(why), "{pre_tokenizer}: {refused}");
        }
    }
}
