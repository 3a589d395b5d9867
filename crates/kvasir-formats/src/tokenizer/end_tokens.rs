//! End-of-generation tokens (EOS, EOT, EOM, …) of a GGUF vocabulary.
//!
//! A file names one or a few by key; most that chat models use are recognized by their spelling.

use crate::gguf::reader::Gguf;

/// Spellings of end-of-turn or end-of-text tokens. Old or faulty conversions list them as normal
/// tokens.
pub(super) const SPELLINGS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Metadata keys of end tokens: end of text, turn and message, and fill-in-the-middle (FIM) stops.
const KEYS: [&str; 6] = ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"];

/// If all of a pair exist, an answer consists of several messages (Harmony format), and `<|end|>`
/// ends only a message.
const MESSAGES: [[&str; 2]; 3] =
    [["<|return|>", "<|call|>"], ["<|return|>", "<|calls|>"], ["<|flush|>", "<|calls|>"]];

/// Whether the spelling is normal text in a vocabulary that has other end tokens.
pub(super) fn is_text(spelling: &str, has: impl Fn(&str) -> bool) -> bool {
    spelling == "</s>" && (has("<|tool_response>") || has("<|plamo:eos|>"))
}

/// All ids that end generation, EOS first.
pub(crate) fn end_tokens(gguf: &Gguf) -> Vec<u32> {
    let tokens = gguf.array("tokenizer.ggml.tokens");
    let count = tokens.map_or(u64::MAX, |tokens| tokens.len() as u64);
    let named = |key| gguf.u64(&format!("tokenizer.ggml.{key}_token_id")).filter(|id| *id < count);
    let named = KEYS.into_iter().filter_map(|key| u32::try_from(named(key)?).ok());
    // A single pass that compares few bytes per token, since vocabularies are large.
    let longest = SPELLINGS.iter().map(|s| s.len()).max().unwrap_or(0);
    let spelled = |bytes: &[u8]| SPELLINGS.iter().find(|s| s.as_bytes() == bytes).copied();
    let found: Vec<(u32, &str)> = (0u32..)
        .zip(tokens.into_iter().flat_map(|tokens| tokens.string_bytes()))
        .filter(|(_, bytes)| bytes.len() <= longest && matches!(bytes.first(), Some(b'<' | b'[' | b'_')))
        .filter_map(|(id, bytes)| Some((id, spelled(bytes)?)))
        .collect();
    let has = |spelling: &str| found.iter().any(|(_, other)| *other == spelling);
    let in_answers = MESSAGES.iter().any(|both| both.iter().all(|one| has(one)));
    let continues = |spelling: &str| (spelling == "<|end|>" && in_answers) || is_text(spelling, has);
    let mut ends = Vec::new();
    for id in named.chain(found.iter().filter(|(_, spelling)| !continues(spelling)).map(|(id, _)| *id)) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::value::{Array, Value};
    use crate::gguf::writer::Writer;

    fn ends_of(name: &str, tokens: &[&str], named: &[(&str, u32)]) -> Vec<u32> {
        let to = std::env::temp_dir().join(format!("kvasir-{name}-{}.gguf", std::process::id()));
        let mut writer = Writer::new();
        writer.set("general.architecture", Value::Str("test".into()));
        writer.set("tokenizer.ggml.tokens", Value::Array(Array::of_strings(tokens.iter().copied())));
        for (key, id) in named {
            writer.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(*id));
        }
        writer.write(std::fs::File::create(&to).unwrap(), |_, _| Ok(())).unwrap();
        let ends = end_tokens(&Gguf::open(&to).unwrap());
        std::fs::remove_file(&to).unwrap();
        ends
    }

    #[test]
    fn end_tokens_are_found_by_key_and_by_spelling() {
        let chat = ["<|endoftext|>", "a", "<|im_start|>", "<|im_end|>", "<turn", "b"];
        assert_eq!(ends_of("chat", &chat, &[("eos", 3), ("eot", 5)]), [3, 5, 0]);
        assert_eq!(ends_of("few", &["a", "b"], &[("eos", 1), ("eom", 7)]), [1]);
        // In the Harmony format an answer has several messages, each ended by `<|end|>`.
        let harmony = ["<|end|>", "<|return|>", "<|call|>", "a"];
        assert_eq!(ends_of("harmony", &harmony, &[("eos", 1)]), [1, 2]);
        assert_eq!(ends_of("phi", &["<|end|>", "a"], &[]), [0]);
        assert_eq!(ends_of("text", &["</s>", "<|tool_response>", "<eos>"], &[("eos", 2)]), [2, 1]);
    }
}
