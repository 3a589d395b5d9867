//! Sorting by an order that may fail, or that may be no order at all.

use super::fault::Run;
use std::cmp::Ordering;

/// Sorts by merging; equal ones keep their places. Asks only whether one is less than another, as Python does, and
/// ends at the first fault. The library's own sort may panic over an order that contradicts itself, and a template
/// can have one (not-a-number).
pub(super) fn sorted<T>(mut items: Vec<T>, order: &mut dyn FnMut(&T, &T) -> Run<Ordering>) -> Run<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = sorted(items.split_off(items.len() / 2), order)?;
    let left = sorted(items, order)?;
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let least = if order(b, a)?.is_lt() { &mut right } else { &mut left };
        out.extend(least.next());
    }
    out.extend(left);
    out.extend(right);
    Ok(out)
}
