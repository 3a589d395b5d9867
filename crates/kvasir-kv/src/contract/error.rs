//! `CacheError`: why a cache refused an operation. A refused operation has changed nothing.

use crate::contract::group::GroupId;
use crate::contract::ids::{SeqId, StepId};
use crate::contract::kind::{CacheKind, Capability};
use std::fmt;

/// Why a cache refused an operation. A refused operation has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheError {
    /// The id was never issued, or its sequence is closed.
    UnknownSequence(SeqId),
    /// The step was never claimed, or is retired or canceled.
    UnknownStep(StepId),
    /// Steps must be claimed under rising numbers, retire in order, and be canceled newest first.
    StepOutOfOrder(StepId),
    /// An invalid claim: no row, a sequence twice, no tokens, a wrong draft-tree size, or a
    /// redirected write that is not possible.
    BadClaim,
    /// Not enough free slots, even after evicting every evictable block.
    Full {
        /// The layer group that lacks slots.
        group: GroupId,
        /// Slots needed.
        needed: u32,
        /// Slots available: free plus evictable.
        available: u32,
    },
    /// The maximum number of live sequences is reached.
    TooManySequences,
    /// The target of a rewind is outside what is still held.
    RewindOutOfRange {
        /// The target.
        to: u32,
        /// Lowest possible target.
        lowest: u32,
        /// The length.
        length: u32,
    },
    /// No checkpoint of the recurrent states is at the target length of a rewind, copy or removal.
    NoCheckpoint {
        /// The target length.
        to: u32,
        /// The greatest possible length below it.
        nearest: u32,
    },
    /// Rows of the sliding window that ends at the target length of a rewind, copy or removal were
    /// released.
    WindowReleased {
        /// The target length.
        to: u32,
        /// The greatest possible length below it.
        nearest: u32,
    },
    /// The destination of a copy already owns one of the positions.
    CopyOverlaps,
    /// The source of a copy has no retired rows.
    NothingToCopy,
    /// The two sequences do not belong to one fork family.
    NotInFamily,
    /// A tree node's parent must be an earlier unsettled node or the prefix.
    BadParent {
        /// The node.
        node: u32,
        /// Its parent.
        parent: i32,
    },
    /// An accepted chain must start at a root and go from parent to child.
    NotAChain {
        /// The node that breaks it.
        node: u32,
    },
    /// The operation is not possible while draft nodes are unsettled.
    Unsettled,
    /// A step in flight still uses what the operation would change.
    InFlight,
    /// Rows of the claim were truncated since; cancel the step.
    RowGone(SeqId),
    /// A ring buffer cannot take so many tokens in one step.
    WriteTooLong {
        /// Tokens of the claim.
        tokens: u32,
        /// Maximum of one step.
        longest: u32,
    },
    /// The plan is stale: the cache has changed since.
    StalePlan {
        /// Generation of the plan.
        plan: u64,
        /// Generation of the cache.
        current: u64,
    },
    /// This kind of cache lacks the capability.
    NoCapability {
        /// The cache.
        kind: CacheKind,
        /// The missing capability.
        capability: Capability,
    },
    /// An invalid configuration value; the text names it.
    BadConfig(&'static str),
}

impl CacheError {
    /// Replaces the layer group of `Full`; returns other errors unchanged.
    pub(crate) fn in_group(self, group: GroupId) -> Self {
        match self {
            Self::Full { needed, available, .. } => Self::Full { group, needed, available },
            error => error,
        }
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSequence(seq) => write!(f, "no sequence {}", seq.0),
            Self::UnknownStep(step) => write!(f, "no step {} in flight", step.0),
            Self::StepOutOfOrder(step) => write!(f, "step {} comes after a later one", step.0),
            Self::BadClaim => write!(f, "a step must name at least one sequence, and each only once"),
            Self::Full { group: GroupId::FULL, needed, available } => {
                write!(f, "{needed} slots needed, {available} available")
            }
            Self::Full { group, needed, available } => {
                write!(f, "layer group {}: {needed} slots needed, {available} available", group.0)
            }
            Self::TooManySequences => write!(f, "too many live sequences"),
            Self::RewindOutOfRange { to, lowest, length } => {
                write!(f, "rewind to {to} is outside {lowest}..={length}")
            }
            Self::NoCheckpoint { to, nearest } => {
                write!(f, "no checkpoint of the recurrent states at {to}, the nearest is at {nearest}")
            }
            Self::WindowReleased { to, nearest } => {
                write!(
                    f,
                    "the window rows before {to} were released, the nearest possible length is {nearest}"
                )
            }
            Self::CopyOverlaps => write!(f, "the destination already owns a position of the range"),
            Self::NothingToCopy => write!(f, "the source of the copy owns nothing"),
            Self::NotInFamily => write!(f, "the sequences were not forked off one another"),
            Self::BadParent { node, parent } => write!(f, "node {node} cannot have parent {parent}"),
            Self::NotAChain { node } => write!(f, "node {node} does not continue the accepted chain"),
            Self::Unsettled => write!(f, "tree nodes are unsettled"),
            Self::InFlight => write!(f, "a step in flight still uses it"),
            Self::RowGone(seq) => write!(f, "a claimed row of sequence {} was taken away", seq.0),
            Self::WriteTooLong { tokens, longest } => {
                write!(f, "{tokens} tokens in one step, a layer's ring takes {longest}")
            }
            Self::StalePlan { plan, current } => {
                write!(f, "plan of generation {plan}, the cache is at {current}")
            }
            Self::NoCapability { kind, capability } => {
                write!(f, "a {kind} cache has no {capability} capability")
            }
            Self::BadConfig(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for CacheError {}
