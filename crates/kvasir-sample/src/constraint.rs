use std::{fmt::Debug, sync::Arc};

/// A form that answers must have, shared by all sequences that must have it.
pub trait Constraint: Debug + Send + Sync {
    /// Begins with one sequence's output.
    fn follow(&self) -> Box<dyn Follower>;
}

/// One sequence on its way through a [`Constraint`].
pub trait Follower: Debug + Send {
    /// The ids that may come after `output`, a bit for each, the lowest bit of the first word being id 0; ids beyond the last word may
    /// not come. None if nothing may, or if `output` itself does not have the form.
    ///
    /// It follows from `output` alone, whatever was asked before: a step that is run again and drafts that were wrong leave
    /// nothing behind.
    fn allowed(&mut self, output: &[u32]) -> Option<&[u32]>;

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
