//! Partitions of a row among ranks, in query heads, columns or experts.
//!
//! Parts are contiguous, in rank order, and as equal as the constraints allow. A boundary never
//! lies inside a quantization block.

use crate::ir::recurrent::HeadMap;
use std::ops::Range;

/// The range of each rank, in elements or in units. Ranges of KV heads may overlap.
pub(crate) type Partition = Vec<Range<usize>>;

/// Inputs per iteration of the GEMM kernels. Boundaries at its multiples keep the order of
/// summation within a part.
const STEP: usize = 32;

/// Maximum number of query heads that `heads` partitions: its search is cubic.
const MAX_HEADS: usize = 1024;

/// Partitions `len` items into contiguous parts whose sizes differ by at most one. `None` if a
/// part would be empty.
pub(crate) fn even(len: usize, ranks: usize) -> Option<Partition> {
    (len >= ranks).then(|| (0..ranks).map(|r| r * len / ranks..(r + 1) * len / ranks).collect())
}

/// Partitions `len` columns at multiples of `block`. Boundaries are multiples of [`STEP`], too,
/// unless that makes the longest part more than 1/8 longer.
pub(crate) fn columns(len: usize, block: usize, ranks: usize) -> Option<Partition> {
    let of_units = |unit: usize| -> Option<Partition> {
        let units = even(len.div_ceil(unit), ranks)?;
        Some(units.into_iter().map(|part| part.start * unit..len.min(part.end * unit)).collect())
    };
    let longest = |partition: &Partition| partition.iter().map(Range::len).max().unwrap_or(0);
    let fine = of_units(block)?;
    let coarse = of_units(lcm(block, STEP));
    Some(coarse.filter(|coarse| longest(coarse) * 8 <= longest(&fine) * 9).unwrap_or(fine))
}

/// The least common multiple; a zero counts as one, and overflow saturates.
pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a.max(1) / x).saturating_mul(b.max(1))
}

/// The KV heads that a range of query heads reads; `group` query heads share one (GQA). `None` if
/// the range has unequal numbers of query heads per KV head, which attention cannot express.
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

/// The heads of an attention layer or a recurrence that each rank computes.
pub(crate) struct HeadPartition {
    /// Query heads of each rank, or heads of the recurrence.
    pub(crate) heads: Partition,
    /// KV heads of each rank, or key heads or groups of the recurrence. If several ranks read one of
    /// these, each of them computes and stores it.
    pub(crate) kv_heads: Partition,
}

/// Partitions `heads` heads of a recurrence, which share `key_heads` key heads or groups, into equal
/// parts. `None` if that is impossible, or if a part has unequal numbers of heads per key head.
pub(crate) fn recurrence_heads(
    heads: usize,
    key_heads: usize,
    map: HeadMap,
    ranks: usize,
) -> Option<HeadPartition> {
    if key_heads == 0 || !heads.is_multiple_of(ranks) || !heads.is_multiple_of(key_heads) {
        return None;
    }
    let parts = even(heads, ranks)?;
    let key_heads_of = |part: &Range<usize>| match map {
        HeadMap::Grouped => kv_heads_of(part, heads / key_heads),
        HeadMap::Tiled if part.len().is_multiple_of(key_heads) => Some(0..key_heads),
        HeadMap::Tiled if key_heads.is_multiple_of(part.len()) => {
            let first = part.start % key_heads;
            Some(first..first + part.len())
        }
        HeadMap::Tiled => None,
    };
    let kv_heads = parts.iter().map(key_heads_of).collect::<Option<_>>()?;
    Some(HeadPartition { heads: parts, kv_heads })
}

/// A dynamic programming cell: the best partition of the heads before a boundary. Cells are compared
/// field by field; lower is better.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct PartitionCell {
    /// Most query heads on one rank.
    busiest: usize,
    /// Number of KV heads, summed over the ranks.
    kv_heads: usize,
    /// Index of the boundary at which the last part begins.
    from: usize,
}

/// Partitions `heads` query heads that share `kv_heads` KV heads (GQA) among `ranks` ranks. A part
/// may begin at query head `n` if `may_begin(n)`.
///
/// Minimizes the query heads of the busiest rank, then the KV heads summed over the ranks, by
/// dynamic programming over the boundaries.
pub(crate) fn heads(
    heads: usize,
    kv_heads: usize,
    ranks: usize,
    may_begin: impl Fn(usize) -> bool,
) -> Option<HeadPartition> {
    if heads < ranks || heads > MAX_HEADS || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return None;
    }
    let group = heads / kv_heads;
    let ends: Vec<usize> = (0..=heads).filter(|n| *n == 0 || *n == heads || may_begin(*n)).collect();
    // Indexed by number of ranks, then by boundary.
    let mut best: Vec<Vec<Option<PartitionCell>>> = vec![vec![None; ends.len()]; ranks + 1];
    best[0][0] = Some(PartitionCell::default());
    for rank in 0..ranks {
        for to in 1..ends.len() {
            let candidates = (0..to).filter_map(|from| {
                let before = best[rank][from]?;
                let part = ends[from]..ends[to];
                let kv_heads = before.kv_heads + kv_heads_of(&part, group)?.len();
                Some(PartitionCell { busiest: before.busiest.max(part.len()), kv_heads, from })
            });
            best[rank + 1][to] = candidates.min();
        }
    }
    let mut to = ends.len() - 1;
    let mut parts = Vec::with_capacity(ranks);
    for rank in (0..ranks).rev() {
        let PartitionCell { from, .. } = best[rank + 1][to]?;
        parts.push(ends[from]..ends[to]);
        to = from;
    }
    parts.reverse();
    let kv_heads = parts.iter().map(|part| kv_heads_of(part, group)).collect::<Option<_>>()?;
    Some(HeadPartition { heads: parts, kv_heads })
}

/// Converts a partition from units of `width` elements to elements.
pub(crate) fn to_elements(partition: &[Range<usize>], width: usize) -> Partition {
    partition.iter().map(|part| part.start * width..part.end * width).collect()
}

/// Converts a partition from elements to units of `width` elements; `None` if a boundary lies
/// inside a unit.
pub(crate) fn to_units(partition: &[Range<usize>], width: usize) -> Option<Partition> {
    let width = width.max(1);
    let whole = |part: &Range<usize>| part.start.is_multiple_of(width) && part.end.is_multiple_of(width);
    partition.iter().map(|part| whole(part).then(|| part.start / width..part.end / width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_heads_are_balanced_and_scarce_kv_heads_are_replicated() {
        let cut = |all, kv, ranks| heads(all, kv, ranks, |_| true).map(|cut| (cut.heads, cut.kv_heads));
        assert_eq!(cut(8, 4, 2), Some((vec![0..4, 4..8], vec![0..2, 2..4])));
        assert_eq!(cut(8, 2, 4), Some((vec![0..2, 2..4, 4..6, 6..8], vec![0..1, 0..1, 1..2, 1..2])));
        assert_eq!(cut(4, 1, 3).map(|(_, kv)| kv), Some(vec![0..1; 3]));
        // Three heads per KV head: four ranks cannot have equal parts.
        let (parts, kv) = cut(6, 2, 4).unwrap();
        assert_eq!(parts.iter().map(Range::len).max(), Some(2));
        assert!(kv.iter().all(|kv| kv.len() == 1));
        // Rank 1 has one query head of each of the two KV heads.
        let expected = (vec![0..3, 3..5, 5..8], vec![0..1, 0..2, 1..2]);
        assert_eq!(cut(8, 2, 3), Some(expected));
        assert!(cut(4, 2, 5).is_none());
    }

    #[test]
    fn head_boundaries_coincide_with_block_boundaries() {
        let cut = heads(6, 6, 2, |n| n % 2 == 0).unwrap();
        assert_eq!(cut.heads.iter().map(Range::len).max(), Some(4));
        assert!(heads(6, 6, 4, |n| n % 2 == 0).is_none());
    }

    #[test]
    fn every_head_partition_preserves_gqa_groups() {
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
                // A query head reads the same KV head as in the undivided model.
                let local = part.len() / kv.len();
                assert!((0..part.len()).all(|h| kv.start + h / local == (part.start + h) / group));
            }
        }
    }

    #[test]
    fn every_head_of_a_recurrence_keeps_its_key_head() {
        let key_head = |map, head: usize, heads: usize, key_heads: usize| match map {
            HeadMap::Grouped => head / (heads / key_heads),
            HeadMap::Tiled => head % key_heads,
        };
        let mut partitions = 0;
        for (key_heads, per_key, ranks) in
            (1..9).flat_map(|keys| (1..6).flat_map(move |n| (1..9).map(move |ranks| (keys, n, ranks))))
        {
            let heads = key_heads * per_key;
            for map in [HeadMap::Grouped, HeadMap::Tiled] {
                let partition = recurrence_heads(heads, key_heads, map, ranks);
                let Some(HeadPartition { heads: parts, kv_heads }) = partition else {
                    assert!(heads % ranks != 0 || key_heads % ranks != 0 || map == HeadMap::Tiled);
                    continue;
                };
                partitions += 1;
                for (part, keys) in parts.iter().zip(&kv_heads) {
                    assert_eq!(part.len() * ranks, heads);
                    let local = |head| keys.start + key_head(map, head, part.len(), keys.len());
                    let whole = |head| key_head(map, part.start + head, heads, key_heads);
                    assert!((0..part.len()).all(|head| local(head) == whole(head)), "{map:?} {part:?}");
                }
            }
        }
        assert!(partitions > 100, "{partitions}");
    }

    #[test]
    fn column_boundaries_coincide_with_block_boundaries() {
        assert_eq!(columns(96, 1, 2), Some(vec![0..48, 48..96]));
        assert_eq!(columns(1000, 1, 3), Some(vec![0..320, 320..672, 672..1000]));
        assert_eq!(columns(40, 1, 4), Some(vec![0..10, 10..20, 20..30, 30..40]));
        assert_eq!(columns(1024, 256, 3), Some(vec![0..256, 256..512, 512..1024]));
        assert_eq!(columns(512, 256, 3), None);
        assert_eq!(columns(3, 1, 4), None);
    }
}
