//! Drafters without a model: what followed earlier occurrences of the context is proposed again.
//!
//! | drafter | index |
//! |---|---|
//! | `ngram_drafter` | `ngram_index`: where the last n tokens occurred before |
//! | `suffix_drafter` | `suffix_automaton`: all substrings with their counts |
//!
//! Agents repeat files and tool results, which is where these win most. A long history is read in over
//! several steps (`history`). Then a step costs some microseconds, and allocates nothing.

pub(crate) mod history;
pub(crate) mod ngram_drafter;
pub(crate) mod ngram_index;
pub(crate) mod suffix_automaton;
pub(crate) mod suffix_drafter;
#[cfg(test)]
mod tests;

/// Default number of drafts per step.
pub const MOST_DRAFTS: u32 = 16;
