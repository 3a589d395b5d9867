//! `CacheError`: why a cache refused an operation. A refused operation has changed nothing.

use crate::{CacheKind, Face, Position, SeqId, StepId};
use std::fmt;

/// Why a cache refused. A refused verb has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// The id was never issued, or its sequence is closed.
    UnknownSequence(SeqId),
    /// The step was never claimed, or is retired or cancelled.
    UnknownStep(StepId),
    /// Steps are claimed under rising numbers.
    StepOutOfOrder(StepId),
    /// A step names the same sequence twice, or names none.
    BadClaim,
    /// Not enough free slots, even after evicting what may be evicted.
    Full {
        /// Slots asked for.
        needed: u32,
        /// Slots that could be had.
        available: u32,
    },
    /// The table of live sequences is full.
    TooManySequences,
    /// A write must start where the sequence ends.
    StartNotLength {
        /// The start asked for.
        start: Position,
        /// The length.
        length: u32,
    },
    /// The positions of one write must form a run.
    NotARun,
    /// A rewind may only go to a position between what is still held and the length.
    RewindOutOfRange {
        /// The target.
        to: u32,
        /// Lowest target that is possible.
        lowest: u32,
        /// The length.
        length: u32,
    },
    /// The destination of a copy already owns one of the positions.
    CopyOverlaps,
    /// The source of a copy owns nothing.
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
    /// An accepted chain must start at a root and go from child to child.
    NotAChain {
        /// The node that breaks it.
        node: u32,
    },
    /// The verb cannot be used while nodes are unsettled.
    Unsettled,
    /// The step is still on the device; what was asked would move bytes that it uses.
    InFlight,
    /// A part of what the step claimed was taken from the sequence since; cancel the step.
    RowGone(SeqId),
    /// A layer's ring has no room for so many tokens in one step.
    WriteTooLong {
        /// Tokens of the claim.
        tokens: u32,
        /// Most that one step may write.
        longest: u32,
    },
    /// The plan was made before something it depends on changed.
    StalePlan {
        /// Generation of the plan.
        plan: u64,
        /// Generation of the cache.
        current: u64,
    },
    /// This kind of cache has no such face.
    NoFace {
        /// The cache.
        kind: CacheKind,
        /// The face asked for.
        face: Face,
    },
    /// A configuration value that makes no sense; names it.
    BadConfig(&'static str),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSequence(seq) => write!(f, "no sequence {}", seq.0),
            Self::UnknownStep(step) => write!(f, "no step {} in flight", step.0),
            Self::StepOutOfOrder(step) => write!(f, "step {} comes after a later one", step.0),
            Self::BadClaim => write!(f, "a step must name at least one sequence, and each only once"),
            Self::Full { needed, available } => write!(f, "{needed} slots needed, {available} available"),
            Self::TooManySequences => write!(f, "too many live sequences"),
            Self::StartNotLength { start, length } => {
                write!(f, "write at position {start} of a sequence of length {length}")
            }
            Self::NotARun => write!(f, "the positions of a write must form a run"),
            Self::RewindOutOfRange { to, lowest, length } => {
                write!(f, "rewind to {to} is outside {lowest}..={length}")
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
            Self::NoFace { kind, face } => write!(f, "a {kind} cache has no {face} face"),
            Self::BadConfig(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for CacheError {}
