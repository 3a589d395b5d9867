//! Constrained decoding: the traits that a grammar, JSON schema or regex matcher implements to mask
//! logits.
//!
//! A [`Constraint`] is compiled once and shared. Each sequence gets its own [`Follower`] (matcher
//! state). [`Allowed`] is the token bitmask for the next position.
//!
//! Invariant: a mask is a function of the output tokens alone, so rejected drafts and repeated
//! steps need no rollback.

use std::{fmt::Debug, sync::Arc};

/// A compiled grammar that answers must match; shared by all sequences that use it.
pub trait Constraint: Debug + Send + Sync {
    /// Creates the matcher state for one sequence, at the start of its output.
    fn follow(&self) -> Box<dyn Follower>;

    /// A serialized description from which another process can build the same constraint, if one
    /// was attached.
    fn recipe(&self) -> Option<String> {
        None
    }
}

/// The ids that may be sampled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Every id; the sampler applies no mask.
    Any,
    /// The ids in this bitmask. Bit 0 of the first word is id 0; ids beyond the last word are not
    /// allowed.
    Only(&'a [u32]),
    /// No id, or `output` itself violates the constraint.
    Nothing,
}

/// The matcher state of one sequence.
pub trait Follower: Debug + Send {
    /// The ids that may follow `output`.
    ///
    /// The result is a function of `output` alone, whatever calls came before. Implementations must
    /// roll back on their own when `output` is not an extension of the previous one.
    fn allowed(&mut self, output: &[u32]) -> Allowed<'_>;

    /// Announces that `allowed(output)` will be called next, so that the mask can be computed on
    /// another thread meanwhile.
    fn expect(&mut self, output: &[u32]);
}

/// The constraint of a request, if any.
#[derive(Clone, Debug, Default)]
pub struct Constrained(pub Option<Arc<dyn Constraint>>);

impl PartialEq for Constrained {
    /// Whether both point to the same constraint (identity, not structure).
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
