//! Preemption by recomputation and the decode pass shared by the policies `prefill-first` and
//! `chunked`.
//!
//! `decode_running` visits running sequences in order of admission. If one lacks a KV slot, the
//! sequence admitted last (under `Order::Fair`, of the key with the largest dominant share) is
//! preempted and the decode is retried.

use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::view::SchedulerView;

/// Whether a sequence has outgrown the KV pool, so that waiting cannot help.
pub(crate) fn never_fits(view: &SchedulerView<'_>, entry: u32) -> bool {
    let sequence = view.sequence(entry);
    sequence.in_flight() == 0 && view.own_slots(sequence.len()) > view.capacity()
}

/// Schedules a decode for every running sequence past prefill, in order of admission, preempting
/// others if slots are missing.
pub(crate) fn decode_running(view: &mut SchedulerView<'_>) {
    let mut i = 0;
    while let Some(entry) = view.running_at(i) {
        if view.sequence(entry).is_prefilling() {
            i += 1;
            continue;
        }
        match view.decode(entry) {
            Ok(()) => i += 1,
            // Reached only if slots beyond the reservation are needed.
            Err(DeferReason::NoSlots { .. }) => match view.preemption_victim(i) {
                // Retries index `i`, which is the next sequence if the victim was the `i`-th.
                Some(victim) if view.preempt(victim) => {}
                _ => return,
            },
            Err(reason) => {
                view.defer(entry, reason);
                i += 1;
            }
        }
    }
}
