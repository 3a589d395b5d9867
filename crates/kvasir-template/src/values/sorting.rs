//! Stable merge sort for comparisons that may fail or be inconsistent.

use crate::error::Run;
use std::cmp::Ordering;

/// Sorts stably; stops at the first error. Uses only "less than", as Python does.
///
/// `slice::sort_by` may panic on an inconsistent order, which templates can produce with NaN.
pub(crate) fn sorted<T>(mut items: Vec<T>, order: &mut dyn FnMut(&T, &T) -> Run<Ordering>) -> Run<Vec<T>> {
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
