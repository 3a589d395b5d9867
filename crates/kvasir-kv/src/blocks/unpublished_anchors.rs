//! `UnpublishedAnchors`: the anchors whose content lookups no longer find, for other layer groups.

use crate::contract::group::Anchor;

/// Recorded anchors; none before recording starts.
#[derive(Clone, Debug, Default)]
pub struct UnpublishedAnchors(Option<Vec<Anchor>>);

impl UnpublishedAnchors {
    /// Starts recording.
    pub fn record(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Whether anchors are recorded.
    pub fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// Adds anchors, if they are recorded; otherwise does not run the iterator.
    pub fn extend(&mut self, anchors: impl IntoIterator<Item = Anchor>) {
        if let Some(recorded) = &mut self.0 {
            recorded.extend(anchors);
        }
    }

    /// Moves the recorded anchors to `into`.
    pub fn take(&mut self, into: &mut Vec<Anchor>) {
        if let Some(recorded) = &mut self.0 {
            into.append(recorded);
        }
    }
}
