//! The most similar known name, for errors about unknown ones.

/// The most similar of the names; the first among equals. Common endings of class names count for
/// nothing.
pub(crate) fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let stem = stem(name);
    known.min_by_key(|known| distance(&stem, &self::stem(known)))
}

/// The significant start of a name, in lower case without separators.
fn stem(name: &str) -> Vec<char> {
    let end = name.find("For").unwrap_or(name.len());
    name[..end].chars().take(64).filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Levenshtein distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found_whatever_their_endings() {
        let known = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV32ForCausalLM"];
        for (name, found) in [
            ("Qwen3_5ForConditionalGeneration", "Qwen3ForCausalLM"),
            ("Qwen4MoeForCausalLM", "Qwen3MoeForCausalLM"),
            ("DeepseekV4ForCausalLM", "DeepseekV32ForCausalLM"),
            ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ] {
            assert_eq!(nearest(name, known.into_iter()), Some(found), "{name}");
        }
        assert_eq!(nearest("", known.into_iter()), Some("LlamaForCausalLM"));
        assert_eq!(distance(&['a', 'b'], &[]), 2);
    }
}
