use std::{fmt::Debug, sync::Arc};

/// A form that answers must have, shared by all sequences that must have it.
pub trait Constraint: Debug + Send + Sync {
    /// Begins with one sequence's output.
    fn follow(&self) -> Box<dyn Follower>;
}

/// Which ids may be sampled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Every id. The sampler applies no mask.
    Any,
    /// The ids of this bit mask. The lowest bit of the first word is id 0; ids beyond the last word are not allowed.
    Only(&'a [u32]),
    /// No id, or `output` itself violates the constraint.
    Nothing,
}

/// One sequence on its way through a [`Constraint`].
pub trait Follower: Debug + Send {
    /// Which ids may come after `output`.
    ///
    /// The answer is a function of `output` alone, whatever was asked before: a step that runs again and rejected drafts leave nothing
    /// behind.
    fn allowed(&mut self, output: &[u32]) -> Allowed<'_>;

    /// Says that `output` will be asked about next. What it takes to answer can be done elsewhere meanwhile.
    fn expect(&mut self, output: &[u32]);
}

/// The constraint of a request, if it has one.
#[derive(Clone, Debug, Default)]
pub struct Constrained(pub Option<Arc<dyn Constraint>>);

impl PartialEq for Constrained {
    /// Whether both are the very same constraint.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
