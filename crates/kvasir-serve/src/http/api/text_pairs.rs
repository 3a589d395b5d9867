//! [`Pairs`] of texts to compare, and their [`Scores`].

/// Scores of pairs of texts, and the number of tokens that were read for them.
pub(super) type Scores = (Vec<f64>, u64);

/// Texts to compare: each of `second` with the only one of `first`, or with that of its place.
pub(super) struct Pairs {
    pub(super) first: Vec<String>,
    pub(super) second: Vec<String>,
}

impl Pairs {
    /// Document and query of each pair.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.second.iter().zip(self.first.iter().cycle())
    }
}
