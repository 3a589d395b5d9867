//! Groups of defer reasons, the `reason` label of `held_total`.

use kvasir_engine::DeferReason;

/// What a deferred request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeferralGroup {
    /// KV slots or cache sequences.
    Slots,
    /// A limit of the step or of the batch.
    Budget,
    /// Its turn: others are served first.
    Order,
    /// A token in flight, a delay, or a rule of the policy.
    Other,
}

impl DeferralGroup {
    /// Labels, in the order of the variants.
    pub(super) const LABELS: [&str; 4] = ["room", "budget", "order", "other"];

    pub(super) fn of(reason: DeferReason) -> Self {
        match reason {
            DeferReason::NoSlots { .. }
            | DeferReason::Reserved { .. }
            | DeferReason::Lease { .. }
            | DeferReason::CacheSequences => Self::Slots,
            DeferReason::TokenBudget
            | DeferReason::SequenceLimit
            | DeferReason::CostTarget
            | DeferReason::NoPoolRow
            | DeferReason::NoStateSlot => Self::Budget,
            DeferReason::Behind | DeferReason::PrefillFirst | DeferReason::Sibling => Self::Order,
            DeferReason::Delay
            | DeferReason::Coalesce
            | DeferReason::TokenInFlight
            | DeferReason::LastTokenInFlight
            | DeferReason::Verifying
            | DeferReason::ChunkTooSmall
            | DeferReason::Preempted
            | DeferReason::OnePrefill
            | DeferReason::Interleave
            | DeferReason::DecodeBatch
            | DeferReason::Volume { .. }
            | DeferReason::ModelLength
            | DeferReason::Paused
            | DeferReason::OthersPaused => Self::Other,
        }
    }
}
