//! Pre-tokenizer expressions by GGUF name (`tokenizer.ggml.pre`), for byte-level BPE.
//!
//! The expressions are those of each family's published tokenizer.

use crate::error::{Error, Result};
use fancy_regex::Regex;

const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// The expression built into byte-level pre-tokenizers (GPT-2).
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// Common tail of the Llama 3 and Qwen 2 expressions, after the digit part.
const TAIL: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
const CJK: &str = r"[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Cased letters as listed by DeepSeek's first tokenizer, without letters newer than its list.
const CASED: &str = concat!(
    r"\s?[\p{Lu}\p{Ll}\p{Lt}--[\u{560}-\u{588}\u{10c7}-\u{10ff}\u{1c80}-\u{1c88}\u{2d00}-\u{2d2d}",
    r"\u{a790}-\u{ab68}\u{10570}-\u{105bc}\u{16e40}-\u{1df1e}]]+"
);
const OLD_CJK: &str = r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

/// A pre-tokenizer family.
#[derive(Debug)]
pub(super) struct Family {
    /// Applied in order: each splits the pieces left by the one before.
    pub(super) patterns: Vec<Regex>,
    /// `ignore_merges`: a word that is a token bypasses merging.
    pub(super) whole_words: bool,
    /// Whether BOS is added unless the file says otherwise.
    pub(super) adds_bos: bool,
}

/// The family of this name; absent means the default of the oldest files.
pub(super) fn family(name: Option<&str>) -> Result<Family> {
    let name = name.unwrap_or("default");
    let compile =
        |cut: &String| Regex::new(cut).map_err(|e| Error::at("tokenizer.ggml.pre", format!("{name}: {e}")));
    Ok(Family {
        patterns: expressions(name)?.iter().map(compile).collect::<Result<_>>()?,
        whole_words: takes_whole_words(name),
        adds_bos: matches!(
            name,
            "llama3"
                | "llama-v3"
                | "llama-bpe"
                | "falcon3"
                | "falcon-h1"
                | "pixtral"
                | "midm-2.0"
                | "lfm2"
                | "jina-v5-nano"
                | "tekken"
        ),
    })
}

/// Whether the family of this name has `ignore_merges`.
pub(crate) fn takes_whole_words(name: &str) -> bool {
    matches!(
        name,
        "llama3"
            | "llama-v3"
            | "llama-bpe"
            | "falcon3"
            | "falcon-h1"
            | "pixtral"
            | "midm-2.0"
            | "lfm2"
            | "jina-v5-nano"
            | "glm4"
            | "glm5"
            | "tekken"
            | "youtu"
            | "minicpm5"
            | "granite-embed-multi-97m"
    )
}

/// The regular expressions of the family of this name, in order.
pub(crate) fn expressions(name: &str) -> Result<Vec<String>> {
    let llama3 =
        |digits: &str| format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}{TAIL}");
    let cased = |contractions: &str, digits: &str, after: &str| {
        let start = r"[^\r\n\p{L}\p{N}]?";
        format!(
            r"{start}{UPPER}*{LOWER}+{contractions}|{start}{UPPER}+{LOWER}*{contractions}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{after}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let optional = format!("{CONTRACTIONS}?");
    let one = |s: &str| vec![s.to_owned()];
    Ok(match name {
        "default" => vec![
            r"[\p{P}\$\+<=>\^~\|]+".into(),
            GPT2.into(),
            r"\p{N}+".into(),
            "[0-9][0-9][0-9]".into(),
        ],
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" | "dbrx"
        | "smaug-bpe" | "chatglm-bpe" | "glm4" | "glm5" | "jina-v5-nano" => vec![llama3("{1,3}")],
        // White space in pieces of powers of two.
        "jais-2" => {
            let wide = [512, 256, 128, 64, 32, 16, 8, 4].map(|n| format!(r"\s{{{n}}}(?!\S)|")).concat();
            vec![llama3("{1,3}").replace(r"\s+(?!\S)|\s+", &format!(r"{wide}\s{{1,2}}(?!\S)|\s"))]
        }
        // Digits in groups of three from the right, and no word splitting.
        "superbpe" => vec![r"\p{N}+".into(), r"(?=(\d{3})+(?!\d))".into()],
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "megrez" | "hunyuan" | "solar-open"
        | "grok-2" => vec![llama3("")],
        "qwen35" => vec![format!(
            r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        "minicpm5" => vec![r"\p{N}{1,3}".into(), llama3("+")],
        "laguna" => vec![r"[^\n]+|[\n]+".into(), llama3("")],
        "gpt-2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "mpt" | "olmo" | "jais" | "trillion"
        | "granite-docling" | "exaone4" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code"
        | "jina-v1-en" | "roberta-bpe" => one(GPT2),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            vec![r"\p{N}".into(), GPT2.into()]
        }
        "falcon" => vec![r"[\p{P}\$\+<=>\^~\|`]+".into(), GPT2.into(), "[0-9][0-9][0-9]".into()],
        // U+3000 is in the published list, but it already matches as white space before the list
        // applies.
        "deepseek-llm" => vec![
            r"[\r\n]".into(),
            CASED.into(),
            r"\s?[!-/:-\~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3001}\u{3002}]+".into(),
            r"\s+$".into(),
            OLD_CJK.into(),
            r"\p{N}+".into(),
        ],
        "deepseek-coder" => {
            vec![r"[\r\n]".into(), r"\s?\p{L}+".into(), r"\s?\p{P}+".into(), OLD_CJK.into(), r"\p{N}".into()]
        }
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            vec![r"\p{N}{1,3}".into(), CJK.into(), DEEPSEEK3.into()]
        }
        "spark2_5" => vec![
            r"\p{N}{1,3}".into(),
            CJK.into(),
            DEEPSEEK3.replace(r"+[\r\n]*|\s*[\r\n]+|", r"+|[\r\n]|"),
            r"\p{N}".into(),
        ],
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" | "granite-embed-multi-97m" => {
            vec![cased(&optional, "{1,3}", "/")]
        }
        "tiny_aya" | "cohere2moe" => vec![r"\d{1,3}(?=(?:\d{3})*\b)".into(), cased(&optional, "{1,3}", "/")],
        "tekken" => vec![cased("", "", "/")],
        "kimi-k2" => {
            let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]";
            let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]";
            let start = r"[^\r\n\p{L}\p{N}]?";
            vec![format!(
                r"\p{{Han}}+|{start}{upper}*{lower}+{optional}|{start}{upper}+{lower}*{optional}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )]
        }
        "bailingmoe" | "bailingmoe2" | "llada-moe" => {
            one(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
        }
        "seed-coder" => vec![format!(
            r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        "ufakzeka" => vec![format!(r"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{TAIL}")],
        "exaone-moe" => vec![format!(
            r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
        "youtu" => vec![
            concat!(
                r"[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}",
                r"\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+"
            )
            .into(),
            cased(&optional, "", "/"),
        ],
        "poro-chat" | "bloom" | "gpt3-finnish" => one(r" ?[^(\s|.,!?…。，、।۔،)]+"),
        "viking" => vec![r" ?[^(\s|.,!?…。，、।۔،)]+".into(), r"\p{N}".into()],
        other => {
            return Err(Error::at("tokenizer.ggml.pre", format!("{other:?} is not a known pre-tokenizer")));
        }
    })
}

/// Error text when the regex engine gives up: lookahead backtracks over a whole run of one class.
pub(super) const TOO_LONG: &str =
    "the text has a run of one character class, such as white space, that is too long to pre-tokenize";

/// Splits text with one expression after another; text between matches forms pieces too.
pub(super) fn split<'a>(patterns: &[Regex], text: &'a str) -> Result<Vec<&'a str>> {
    let mut pieces = vec![text];
    for regex in patterns {
        let mut next = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let mut at = 0;
            for found in regex.find_iter(piece) {
                let found = found.map_err(|_| Error::at("", TOO_LONG))?;
                if found.start() > at {
                    next.push(&piece[at..found.start()]);
                }
                if !found.as_str().is_empty() {
                    next.push(found.as_str());
                }
                at = found.end();
            }
            if at < piece.len() {
                next.push(&piece[at..]);
            }
        }
        pieces = next;
    }
    Ok(pieces)
}
