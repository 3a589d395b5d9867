use crate::Desk;

/// Preempts the running sequence admitted last, so that the `i`-th finds room. True if it was somebody else, and it is
/// worth trying again; false if it was the `i`-th itself or nobody can be preempted.
pub(super) fn make_room(desk: &mut Desk<'_>, i: usize) -> bool {
    let last = desk.running().saturating_sub(1);
    let Some(victim) = desk.running_at(last) else { return false };
    desk.preempt(victim) && last > i
}

/// Whether one that grew while it ran is larger than the pool by now, so that waiting cannot help.
pub(super) fn never_fits(desk: &Desk<'_>, entry: u32) -> bool {
    let sequence = desk.sequence(entry);
    sequence.in_flight() == 0 && desk.whole_blocks(sequence.len()) > desk.capacity()
}
