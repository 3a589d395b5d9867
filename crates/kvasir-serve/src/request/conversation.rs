//! Fields of a text part of a message.

/// Fields of a part of text. Markers of caches, citations and log-probabilities do not change the
/// content; clients send the parts of an answer back with them.
pub(crate) const TEXT_PART: &[&str] =
    &["type", "text", "annotations", "citations", "logprobs", "cache_control", "index"];
