//! Preemption by recomputation and the decode pass shared by the policies `prefill-first` and
//! `chunked`.
//!
//! `decode_running` visits running sequences in order of admission. If one lacks a KV slot, the
//! sequence admitted last is preempted and the decode is retried.

use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::view::SchedulerView;

/// Preempts the sequence admitted last to free KV slots for the `i`-th. True if it was another one
/// and the decode should be retried; false if it was the `i`-th itself or cannot be preempted.
fn make_room(desk: &mut SchedulerView<'_>, i: usize) -> bool {
    let last = desk.running().saturating_sub(1);
    let Some(victim) = desk.running_at(last) else { return false };
    desk.preempt(victim) && last > i
}

/// Whether a sequence has outgrown the KV pool, so that waiting cannot help.
pub(crate) fn never_fits(desk: &SchedulerView<'_>, entry: u32) -> bool {
    let sequence = desk.sequence(entry);
    sequence.in_flight() == 0 && desk.own_slots(sequence.len()) > desk.capacity()
}

/// Schedules a decode for every running sequence past prefill, in order of admission, preempting
/// from the end if slots are missing.
pub(crate) fn decode_running(desk: &mut SchedulerView<'_>) {
    let mut i = 0;
    while let Some(entry) = desk.running_at(i) {
        if desk.sequence(entry).is_prefilling() {
            i += 1;
            continue;
        }
        match desk.decode(entry, 0) {
            Ok(()) => i += 1,
            // Reached only if slots beyond the reservation are needed.
            Err(DeferReason::NoRoom { .. }) => {
                if !make_room(desk, i) {
                    return;
                }
            }
            Err(reason) => {
                desk.hold(entry, reason);
                i += 1;
            }
        }
    }
}
