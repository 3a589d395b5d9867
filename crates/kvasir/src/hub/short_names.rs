//! Short names of well-known models as Ollama spells them, `NAME[:SIZE]`, each with the hub name of a GGUF file.
//!
//! A row holds only models whose architecture is implemented (`docs/reference/models.md`) and repositories in which the
//! tag selects exactly one file or one set of shards. A name without a size means the first size of its row, which is
//! Ollama's default where that one runs here.

use std::{cmp::Reverse, fmt::Write};

/// Per name the sizes, the default one first, and their hub names.
const SHORT_NAMES: &[(&str, &[(&str, &str)])] = &[
    (
        "deepseek-r1",
        &[
            ("8b", "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF:Q4_K_M"),
            ("1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M"),
            ("7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M"),
            ("14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF:Q4_K_M"),
            ("32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF:Q4_K_M"),
            ("70b", "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF:Q4_K_M"),
        ],
    ),
    (
        "gemma3",
        &[
            ("4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
            ("270m", "ggml-org/gemma-3-270m-it-GGUF:Q8_0"),
            ("1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"),
            ("12b", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M"),
            ("27b", "ggml-org/gemma-3-27b-it-GGUF:Q4_K_M"),
        ],
    ),
    ("gpt-oss", &[("20b", "ggml-org/gpt-oss-20b-GGUF:MXFP4"), ("120b", "ggml-org/gpt-oss-120b-GGUF:MXFP4")]),
    ("llama3", &[("8b", "bartowski/Meta-Llama-3-8B-Instruct-GGUF:Q4_K_M")]),
    (
        "llama3.1",
        &[
            ("8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
            ("70b", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_M"),
        ],
    ),
    (
        "llama3.2",
        &[
            ("3b", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
            ("1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
        ],
    ),
    ("llama3.3", &[("70b", "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M")]),
    ("mistral", &[("7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M")]),
    ("mistral-nemo", &[("12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF:Q4_K_M")]),
    ("mistral-small", &[("24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF:Q4_K_M")]),
    ("phi3", &[("3.8b", "bartowski/Phi-3.1-mini-4k-instruct-GGUF:Q4_K_M")]),
    ("phi3.5", &[("3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M")]),
    ("phi4", &[("14b", "bartowski/phi-4-GGUF:Q4_K_M")]),
    ("phi4-mini", &[("3.8b", "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M")]),
    (
        "qwen2.5",
        &[
            ("7b", "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"),
            ("0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"),
            ("1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"),
            ("3b", "bartowski/Qwen2.5-3B-Instruct-GGUF:Q4_K_M"),
            ("14b", "bartowski/Qwen2.5-14B-Instruct-GGUF:Q4_K_M"),
            ("32b", "bartowski/Qwen2.5-32B-Instruct-GGUF:Q4_K_M"),
            ("72b", "bartowski/Qwen2.5-72B-Instruct-GGUF:Q4_K_M"),
        ],
    ),
    (
        "qwen2.5-coder",
        &[
            ("7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M"),
            ("0.5b", "bartowski/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M"),
            ("1.5b", "bartowski/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M"),
            ("3b", "bartowski/Qwen2.5-Coder-3B-Instruct-GGUF:Q4_K_M"),
            ("14b", "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF:Q4_K_M"),
            ("32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M"),
        ],
    ),
    (
        "qwen3",
        &[
            ("8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
            ("0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
            ("1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0"),
            ("4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
            ("14b", "Qwen/Qwen3-14B-GGUF:Q4_K_M"),
            ("30b", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"),
            ("32b", "Qwen/Qwen3-32B-GGUF:Q4_K_M"),
        ],
    ),
    ("qwen3-coder", &[("30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M")]),
    (
        "smollm2",
        &[
            ("1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"),
            ("135m", "bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0"),
            ("360m", "bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0"),
        ],
    ),
    ("tinyllama", &[("1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q4_K_M")]),
];

/// Most letters in which a mistyped name differs from the one it resembles.
const TYPOS: usize = 2;

/// Fewest letters of a name for which mistyped ones are considered: among shorter texts, most words resemble one.
const LEAST_TYPED: usize = 5;

/// Short names of the hub's models.
#[derive(Clone, Copy, Debug)]
pub struct ShortNames;

impl ShortNames {
    /// All names with their sizes and hub names, the default size first.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static [(&'static str, &'static str)])> {
        SHORT_NAMES.iter().copied()
    }

    /// Hub name of a short name, in any case; `latest` is the default size.
    pub(crate) fn hub_name(text: &str) -> Option<&'static str> {
        let text = text.to_ascii_lowercase();
        let (name, size) = text.split_once(':').unwrap_or((&text, "latest"));
        let (_, sizes) = SHORT_NAMES.iter().find(|(known, _)| *known == name)?;
        let chosen = sizes.iter().find(|(known, _)| *known == size);
        chosen.or_else(|| sizes.first().filter(|_| size == "latest")).map(|(_, hub)| *hub)
    }

    /// The known name that an unknown one resembles: another size or version of it, or a misspelling.
    pub fn nearest(text: &str) -> Option<String> {
        let text = text.to_ascii_lowercase();
        let (name, size) =
            text.split_once(':').map_or((text.as_str(), None), |(name, size)| (name, Some(size)));
        if let Some((known, sizes)) = SHORT_NAMES.iter().find(|(known, _)| *known == name) {
            let mut list = String::new();
            for (i, (size, _)) in sizes.iter().enumerate() {
                let separator = if i == 0 { "" } else { ", " };
                // Writing to a String cannot fail.
                let _ = write!(list, "{separator}{known}:{size}");
            }
            return size.map(|_| list);
        }
        let family = |name: &str| name.find(|c: char| c.is_ascii_digit()).map(|at| name[..at].to_owned());
        let versions = SHORT_NAMES.iter().filter(|(known, _)| {
            let same = family(name).is_some_and(|own| own.len() > 2 && family(known) == Some(own));
            // `llama`, `qwen` and the like, without a version.
            same || family(known).as_deref() == Some(name)
        });
        let distance = |known: &str| edits(name, known);
        let common = |known: &str| name.bytes().zip(known.bytes()).take_while(|(a, b)| a == b).count();
        // Of several versions the one that is spelled most alike.
        if let Some((known, _)) = versions.min_by_key(|(known, _)| (Reverse(common(known)), distance(known)))
        {
            return Some((*known).to_owned());
        }
        let (known, least) =
            SHORT_NAMES.iter().map(|(known, _)| (*known, distance(known))).min_by_key(|(_, d)| *d)?;
        (name.len() >= LEAST_TYPED && least <= TYPOS).then(|| known.to_owned())
    }
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hub::HubName;

    #[test]
    fn every_short_name_is_a_hub_name_with_a_tag() {
        let mut names = Vec::new();
        for (name, sizes) in ShortNames::all() {
            names.push(name);
            assert_eq!(ShortNames::hub_name(name), Some(sizes[0].1));
            for (size, hub) in sizes {
                assert_eq!(ShortNames::hub_name(&format!("{name}:{size}")), Some(*hub));
                assert!(HubName::parse(hub).unwrap().tag.is_some(), "{hub}");
                assert!(HubName::parse(&format!("{name}:{size}")).is_none(), "{name} is a hub name, too");
            }
        }
        assert!(names.is_sorted() && names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }

    #[test]
    fn the_reference_lists_every_name_with_its_sizes() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/models.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (name, sizes) in ShortNames::all() {
            let sizes: Vec<&str> = sizes.iter().map(|(size, _)| *size).collect();
            let row = format!("| `{name}` | {} |", sizes.join(", "));
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn sizes_and_case_are_those_of_ollama() {
        assert!(ShortNames::hub_name("llama3.2:1b").unwrap().contains("Llama-3.2-1B"));
        assert_eq!(ShortNames::hub_name("Llama3.2:latest"), ShortNames::hub_name("llama3.2"));
        for unknown in ["llama3.2:2b", "llama", "hello", "", ":", "qwen3:"] {
            assert_eq!(ShortNames::hub_name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn unknown_names_resemble_a_version_a_size_or_a_spelling() {
        for (unknown, known) in [
            ("llama3.2:2b", Some("llama3.2:3b, llama3.2:1b")),
            ("llama4", Some("llama3")),
            ("qwen3.5:9b", Some("qwen3")),
            ("gemma", Some("gemma3")),
            ("mistrall", Some("mistral")),
            ("deepseekr1", Some("deepseek-r1")),
            ("hello", None),
            ("why", None),
            ("7b", None),
            ("mp3", None),
        ] {
            assert_eq!(ShortNames::nearest(unknown).as_deref(), known, "{unknown}");
        }
    }
}
