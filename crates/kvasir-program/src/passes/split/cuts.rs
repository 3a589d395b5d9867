//! Where a row is cut: boundaries between ranks, in query heads, columns or experts.
//!
//! Parts are contiguous, in rank order, and as equal as the constraints allow. A cut never
//! separates elements that the checkpoint encodes together.

use std::ops::Range;

/// A division of a row: the part of each rank, in elements. Parts of keys and values may overlap.
pub(crate) type Cut = Vec<Range<usize>>;

/// Inputs that the kernels of matrix products take together. Cuts between them keep the order of
/// sums within a part.
const STEP: usize = 32;

/// Query heads beyond which no division is searched.
const MAX_HEADS: usize = 1024;

/// `len` items in equal contiguous parts; sizes differ by one at most. `None` if a part would be
/// empty.
pub(crate) fn even(len: usize, ranks: usize) -> Option<Cut> {
    (len >= ranks).then(|| (0..ranks).map(|r| r * len / ranks..(r + 1) * len / ranks).collect())
}

/// `len` columns, cut at multiples of `block`; at multiples of [`STEP`], too, if that makes no part
/// longer by more than an eighth.
pub(crate) fn columns(len: usize, block: usize, ranks: usize) -> Option<Cut> {
    let of_units = |unit: usize| -> Option<Cut> {
        let units = even(len.div_ceil(unit), ranks)?;
        Some(units.into_iter().map(|part| part.start * unit..len.min(part.end * unit)).collect())
    };
    let longest = |cut: &Cut| cut.iter().map(Range::len).max().unwrap_or(0);
    let fine = of_units(block)?;
    let coarse = of_units(common_multiple(block, STEP));
    Some(coarse.filter(|coarse| longest(coarse) * 8 <= longest(&fine) * 9).unwrap_or(fine))
}

/// The least common multiple.
pub(crate) fn common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a.max(1) / x).saturating_mul(b.max(1))
}

/// The KV heads that some query heads share. `None` if the KV heads would have different numbers of
/// query heads, which attention cannot express.
fn kv_heads_of(heads: &Range<usize>, group: usize) -> Option<Range<usize>> {
    let kv = heads.start / group..heads.end.div_ceil(group);
    let (first, last) = (group - heads.start % group, heads.end - (kv.end - 1) * group);
    let uniform = match kv.len() {
        0 => false,
        1 => true,
        2 => first == last,
        _ => first == group && last == group,
    };
    uniform.then_some(kv)
}

/// The parts of an attention layer.
pub(crate) struct HeadCut {
    /// Query heads of each rank.
    pub(crate) heads: Cut,
    /// KV heads of each rank. Ranks that share a KV head each compute and store it.
    pub(crate) kv_heads: Cut,
}

/// The best division of the heads before a boundary. Lower is better.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Division {
    /// Query heads of the rank that has the most.
    busiest: usize,
    /// KV heads of all ranks.
    kv_heads: usize,
    /// Index of the boundary at which the last part begins.
    from: usize,
}

/// Divides `heads` query heads over `kv_heads` KV heads. `may_cut(n)` says whether a part may begin
/// at query head `n`.
///
/// Of all divisions it takes one with the fewest query heads on the busiest rank, then with the
/// fewest KV heads in all (dynamic programming over the boundaries).
pub(crate) fn heads(
    heads: usize,
    kv_heads: usize,
    ranks: usize,
    may_cut: impl Fn(usize) -> bool,
) -> Option<HeadCut> {
    if heads < ranks || heads > MAX_HEADS || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return None;
    }
    let group = heads / kv_heads;
    let ends: Vec<usize> = (0..=heads).filter(|n| *n == 0 || *n == heads || may_cut(*n)).collect();
    // By number of ranks and boundary.
    let mut best: Vec<Vec<Option<Division>>> = vec![vec![None; ends.len()]; ranks + 1];
    best[0][0] = Some(Division::default());
    for rank in 0..ranks {
        for to in 1..ends.len() {
            let divisions = (0..to).filter_map(|from| {
                let before = best[rank][from]?;
                let part = ends[from]..ends[to];
                let kv_heads = before.kv_heads + kv_heads_of(&part, group)?.len();
                Some(Division { busiest: before.busiest.max(part.len()), kv_heads, from })
            });
            best[rank + 1][to] = divisions.min();
        }
    }
    let mut to = ends.len() - 1;
    let mut parts = Vec::with_capacity(ranks);
    for rank in (0..ranks).rev() {
        let Division { from, .. } = best[rank + 1][to]?;
        parts.push(ends[from]..ends[to]);
        to = from;
    }
    parts.reverse();
    let kv_heads = parts.iter().map(|part| kv_heads_of(part, group)).collect::<Option<_>>()?;
    Some(HeadCut { heads: parts, kv_heads })
}

/// The same parts of rows whose units are `width` elements wide.
pub(crate) fn scaled(cut: &[Range<usize>], width: usize) -> Cut {
    cut.iter().map(|part| part.start * width..part.end * width).collect()
}

/// The same parts counted in units of `width` elements; `None` if a part ends within a unit.
pub(crate) fn in_units(cut: &[Range<usize>], width: usize) -> Option<Cut> {
    let width = width.max(1);
    let whole = |part: &Range<usize>| part.start.is_multiple_of(width) && part.end.is_multiple_of(width);
    cut.iter().map(|part| whole(part).then(|| part.start / width..part.end / width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_divided_evenly_and_kv_heads_are_shared_where_they_are_few() {
        let cut = |all, kv, ranks| heads(all, kv, ranks, |_| true).map(|cut| (cut.heads, cut.kv_heads));
        assert_eq!(cut(8, 4, 2), Some((vec![0..4, 4..8], vec![0..2, 2..4])));
        assert_eq!(cut(8, 2, 4), Some((vec![0..2, 2..4, 4..6, 6..8], vec![0..1, 0..1, 1..2, 1..2])));
        assert_eq!(cut(4, 1, 3).map(|(_, kv)| kv), Some(vec![0..1; 3]));
        // Three heads per KV head: four ranks cannot have equal parts.
        let (parts, kv) = cut(6, 2, 4).unwrap();
        assert_eq!(parts.iter().map(Range::len).max(), Some(2));
        assert!(kv.iter().all(|kv| kv.len() == 1));
        // Rank 1 has two heads of each of its two KV heads.
        assert_eq!(cut(8, 2, 3).map(|(parts, _)| parts.iter().map(Range::len).max()), Some(Some(4)));
        assert!(cut(4, 2, 5).is_none());
    }

    #[test]
    fn heads_are_cut_only_where_blocks_end() {
        let cut = heads(6, 6, 2, |n| n % 2 == 0).unwrap();
        assert_eq!(cut.heads.iter().map(Range::len).max(), Some(4));
        assert!(heads(6, 6, 4, |n| n % 2 == 0).is_none());
    }

    #[test]
    fn every_division_is_a_partition_that_attention_can_run() {
        for (kv, group, ranks) in
            (1..9).flat_map(|kv| (1..6).flat_map(move |group| (1..9).map(move |n| (kv, group, n))))
        {
            let all = kv * group;
            let Some(cut) = heads(all, kv, ranks, |_| true) else {
                assert!(ranks > all, "{kv} {group} {ranks}");
                continue;
            };
            assert_eq!((cut.heads[0].start, cut.heads[ranks - 1].end), (0, all));
            assert!(cut.heads.windows(2).all(|two| two[0].end == two[1].start));
            for (part, kv) in cut.heads.iter().zip(&cut.kv_heads) {
                assert!(!part.is_empty() && part.len() % kv.len() == 0);
                // Each local head reads the KV head that it would read in the whole.
                let local = part.len() / kv.len();
                assert!((0..part.len()).all(|h| kv.start + h / local == (part.start + h) / group));
            }
        }
    }

    #[test]
    fn columns_end_with_blocks() {
        assert_eq!(columns(96, 1, 2), Some(vec![0..48, 48..96]));
        assert_eq!(columns(1000, 1, 3), Some(vec![0..320, 320..672, 672..1000]));
        assert_eq!(columns(40, 1, 4), Some(vec![0..10, 10..20, 20..30, 30..40]));
        assert_eq!(columns(1024, 256, 3), Some(vec![0..256, 256..512, 512..1024]));
        assert_eq!(columns(512, 256, 3), None);
        assert_eq!(columns(3, 1, 4), None);
    }
}
