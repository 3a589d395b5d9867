//! [`TextPairs`]: the pairs of texts of a rerank or score request, and their [`PairScores`].

/// Scores of text pairs, in the order of the pairs.
pub(super) struct PairScores {
    pub(super) scores: Vec<f64>,
    /// Number of prompt tokens that the model has processed.
    pub(super) prompt_tokens: u64,
}

/// Text pairs: `first` holds one text for all of `second`, or one per text of `second`.
pub(super) struct TextPairs {
    /// Queries, or `text_1`.
    pub(super) first: Vec<String>,
    /// Documents, or `text_2`.
    pub(super) second: Vec<String>,
}

impl TextPairs {
    /// Iterates over (second, first), which is (document, query).
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.second.iter().zip(self.first.iter().cycle())
    }
}
