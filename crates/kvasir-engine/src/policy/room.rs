//! Preemption by recomputation and the decode pass shared by the policies `prefill-first` and
//! `chunked`.
//!
//! `decode_running` visits running sequences in order of admission. If one lacks a KV slot, the
//! sequence admitted last is preempted and the decode is retried.

use crate::{Desk, Reason};

/// Preempts the running sequence admitted last, so that the `i`-th finds room. True if it was somebody else, and it is
/// worth trying again; false if it was the `i`-th itself or nobody can be preempted.
fn make_room(desk: &mut Desk<'_>, i: usize) -> bool {
    let last = desk.running().saturating_sub(1);
    let Some(victim) = desk.running_at(last) else { return false };
    desk.preempt(victim) && last > i
}

/// Whether one that grew while it ran is larger than the pool by now, so that waiting cannot help.
pub(super) fn never_fits(desk: &Desk<'_>, entry: u32) -> bool {
    let sequence = desk.sequence(entry);
    sequence.in_flight() == 0 && desk.own_slots(sequence.len()) > desk.capacity()
}

/// Feeds every running sequence its newest token, making room by preemption.
pub(super) fn decode_running(desk: &mut Desk<'_>) {
    let mut i = 0;
    while let Some(entry) = desk.running_at(i) {
        if desk.sequence(entry).is_prefilling() {
            i += 1;
            continue;
        }
        match desk.decode(entry, 0) {
            Ok(()) => i += 1,
            // Only a request that may grow beyond the pool gets here.
            Err(Reason::NoRoom { .. }) => {
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
