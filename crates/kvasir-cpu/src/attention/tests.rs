//! Attention tests: every instruction set and kernel against references, bit for bit where the
//! order of summation is the same. They also check invariance to the KV layout, masks, chunked
//! prefill, batch composition and shared prefixes.

use crate::attention::f32::attend_f32;
use crate::attention::layer::LayerAttention;
use crate::attention::reference;
use crate::attention::views::Views;
use crate::isa::features::Isa;
use crate::isa::features::tests::{isas, value};
use crate::kernels::AttentionGemm;
use crate::memory::kv_pool::Pool;
use crate::memory::kv_pool::kv_type::KvType;
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use kvasir_kv::{Layout, Mask, Plan, PlanRow, PoolId, Section, Segment, SeqId, Span};
use kvasir_program::LayerFacts;
use std::sync::Arc;

const HISTORY: usize = 200;
const HEADS: usize = 6;

fn facts(window: Option<u32>, key_dim: usize) -> LayerFacts {
    LayerFacts {
        kv_heads: 2,
        key_dim,
        value_dim: 48,
        value_in_key: false,
        window,
        lookahead: 0,
        index_dim: 0,
    }
}

/// A pool in which the rows of position `p` are in slot `slot(p)`.
fn pool(facts: &LayerFacts, kind: KvType, slot: &dyn Fn(usize) -> u32) -> Arc<Pool> {
    pool_of(HISTORY, facts, kind, slot)
}

fn pool_of(positions: usize, facts: &LayerFacts, kind: KvType, slot: &dyn Fn(usize) -> u32) -> Arc<Pool> {
    let pool = Pool::new(&[*facts], kind, 1024).unwrap();
    for p in 0..positions {
        let row =
            |width: usize, salt: usize| (0..width).map(|i| value(p * 10_007 + i + salt)).collect::<Vec<_>>();
        let layer = &pool.layers[0];
        // SAFETY: one thread; the slots are below 1024.
        unsafe {
            layer.keys.write(Isa::PORTABLE, slot(p), &row(facts.key_width(), 0));
            layer.values.as_ref().unwrap().write(
                Isa::PORTABLE,
                slot(p),
                &row(facts.value_width(), 5_000_000),
            );
        }
    }
    Arc::new(pool)
}

fn plan(layout: Layout, table: Vec<u32>, first: usize, queries: usize, mask: Mask, words: Vec<u64>) -> Plan {
    let end = first + queries;
    let row = PlanRow {
        seq: SeqId::new(0, 1),
        queries: Span::new(0, queries),
        segments: Span::new(0, 1),
        read_len: end as u32,
        mask,
        left_pad_blocks: 0,
        redirected: 0,
    };
    let segment = Segment { pool: PoolId(0), layout, len: end as u32, first: 0, sparse: None };
    let full = Section {
        rows: vec![row],
        segments: vec![segment],
        table: table.into(),
        mask_words: words,
        ..Section::default()
    };
    Plan { positions: (first as u32..end as u32).collect(), full, ..Plan::default() }
}

struct Setup<'a> {
    facts: &'a LayerFacts,
    pool: &'a Arc<Pool>,
    sinks: Option<&'a [f32]>,
    soft_cap: Option<f32>,
}

fn attend(way: Way, setup: &Setup<'_>, plan: &Plan, threads: usize) -> Vec<f32> {
    let width = HEADS * setup.facts.key_dim;
    let first = plan.positions[0] as usize;
    let q: Vec<f32> = (0..plan.positions.len() * width).map(|i| value(first * width + i + 77)).collect();
    attend_with(way, setup, plan, threads, &q)
}

fn layer_attention<'a>(
    isa: Isa,
    setup: &Setup<'a>,
    plan: &'a Plan,
    views: &'a Views,
    q: &'a [f32],
) -> LayerAttention<'a> {
    LayerAttention {
        isa,
        q,
        q_stride: HEADS * setup.facts.key_dim,
        heads: HEADS,
        facts: setup.facts,
        layer: 0,
        pools: std::slice::from_ref(setup.pool),
        compressed: None,
        views,
        positions: &plan.positions,
        scale: 0.2,
        soft_cap: setup.soft_cap,
        sinks: setup.sinks,
    }
}

fn attend_with(way: Way, setup: &Setup<'_>, plan: &Plan, threads: usize, q: &[f32]) -> Vec<f32> {
    let mut views = Views::default();
    views.build_section(plan);
    let isa = match way {
        Way::Rounded(isa) | Way::Exact(isa) => isa,
        Way::Pairs | Way::Naive => Isa::PORTABLE,
    };
    let a = layer_attention(isa, setup, plan, &views, q);
    let row = HEADS * setup.facts.value_dim;
    let mut out = vec![f32::NAN; plan.positions.len() * row];
    let results = DisjointRows::new(&mut out, row);
    match way {
        // SAFETY: plans read only what was written before.
        Way::Rounded(_) => unsafe { a.run(&ThreadPool::new(threads), &mut Vec::new(), &results) },
        // SAFETY: as above.
        Way::Exact(_) => unsafe { attend_f32(&a, &ThreadPool::new(threads), &results) },
        Way::Pairs => reference::bf16_dot_order(&a, &mut out),
        Way::Naive => reference::naive(&a, &mut out),
    }
    out
}

/// The attention implementation under test.
#[derive(Clone, Copy, Debug)]
enum Way {
    Rounded(Isa),
    Exact(Isa),
    /// The scalar reference of the bf16 pair order .
    Pairs,
    /// Naive softmax attention in f64.
    Naive,
}

/// Both implementations on every instruction set, each with the reference whose bits it must have.
fn ways() -> impl Iterator<Item = (Way, Way)> {
    isas().into_iter().flat_map(|isa| {
        let same = if AttentionGemm::of(isa) == AttentionGemm::Bf16Dot {
            Way::Pairs
        } else {
            Way::Rounded(Isa::PORTABLE)
        };
        [(Way::Rounded(isa), same), (Way::Exact(isa), Way::Exact(Isa::PORTABLE))]
    })
}

fn contiguous(first: usize, queries: usize) -> Plan {
    plan(Layout::Run { start: 0 }, vec![], first, queries, Mask::Causal, vec![])
}

#[test]
fn instruction_sets_agree_bitwise_and_with_f64() {
    let sinks: Vec<f32> = (0..HEADS).map(value).collect();
    for (window, key_dim, kind) in [
        (None, 64, KvType::Bf16),
        (Some(37), 64, KvType::F32),
        (None, 40, KvType::Q8_0),
        (Some(64), 96, KvType::F16),
    ] {
        let facts = facts(window, key_dim);
        let pool = pool(&facts, kind, &|p| p as u32);
        for (sinks, soft_cap) in [(None, None), (Some(&sinks[..]), None), (None, Some(1.5))] {
            let setup = Setup { facts: &facts, pool: &pool, sinks, soft_cap };
            let plan = contiguous(0, HISTORY);
            // The scalar reference is compared with exact arithmetic on every machine.
            for (way, same) in ways().chain([(Way::Pairs, Way::Pairs)]) {
                let got = attend(way, &setup, &plan, 2);
                assert!(got == attend(same, &setup, &plan, 1), "{way:?} {kind}");
                let naive = attend(Way::Naive, &setup, &plan, 1);
                let worst = naive.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                assert!(
                    worst < if matches!(way, Way::Exact(_)) { 2e-6 } else { 0.03 },
                    "{way:?} {kind}: {worst}"
                );
            }
        }
    }
}

#[test]
fn attention_is_invariant_to_kv_layout_chunking_and_masks() {
    let isa = Isa::detect();
    let ways = [Way::Rounded(isa), Way::Exact(isa)];
    for (window, way) in [None, Some(50)].into_iter().flat_map(|window| ways.map(|way| (window, way))) {
        let facts = facts(window, 64);
        let straight = pool(&facts, KvType::Bf16, &|p| p as u32);
        let setup = Setup { facts: &facts, pool: &straight, sinks: None, soft_cap: None };
        let all = attend(way, &setup, &contiguous(0, HISTORY), 2);
        let row = HEADS * 48;
        // Chunked prefill: chunks of any size, down to single tokens.
        for (first, n) in [(0, 1), (0, 64), (64, 70), (63, 2), (134, 66), (199, 1), (130, 1)] {
            let got = attend(way, &setup, &contiguous(first, n), 1);
            assert_eq!(got, all[first * row..(first + n) * row], "{first} + {n}");
        }
        // Paged layouts: blocks of slots in any order, and single slots.
        for block in [16u32, 1, 64] {
            let table: Vec<u32> =
                (0..HISTORY as u32 / block + 1).map(|b| (b * 7 + 3) % (1024 / block)).collect();
            let slot = |p: usize| table[p / block as usize] * block + p as u32 % block;
            let scattered = pool(&facts, KvType::Bf16, &slot);
            let setup = Setup { facts: &facts, pool: &scattered, sinks: None, soft_cap: None };
            let layout = Layout::Table { at: 0, block, offset: 0 };
            let got = attend(way, &setup, &plan(layout, table.clone(), 150, 50, Mask::Causal, vec![]), 2);
            assert_eq!(got, all[150 * row..], "blocks of {block}");
        }
        // The causal mask as explicit bits.
        let words = HISTORY.div_ceil(64);
        let mut bits = vec![0u64; 50 * words];
        for q in 0..50 {
            (0..=150 + q).for_each(|e| bits[q * words + e / 64] |= 1 << (e % 64));
        }
        let mask = Mask::Explicit { at: 0, words_per_query: words as u32 };
        let explicit = plan(Layout::Run { start: 0 }, vec![], 150, 50, mask, bits);
        assert_eq!(attend(way, &setup, &explicit, 2), all[150 * row..]);
    }
}

#[test]
fn decode_has_the_bits_of_prefill_for_any_group_size() {
    for kv_heads in [6, 3, 2, 1] {
        for (value_dim, kind) in
            [(128, KvType::Bf16), (96, KvType::Bf16), (64, KvType::Q8_0), (40, KvType::F16)]
        {
            let facts = LayerFacts { kv_heads, value_dim, ..facts((kv_heads == 2).then_some(70), 64) };
            let pool = pool(&facts, kind, &|p| p as u32);
            let setup = Setup { facts: &facts, pool: &pool, sinks: None, soft_cap: None };
            let row = HEADS * value_dim;
            for (way, same) in ways() {
                let reference = attend(same, &setup, &contiguous(0, HISTORY), 1);
                for (first, n) in
                    [(0, 1), (63, 1), (130, 1), (199, 1), (150, 2), (150, 4), (125, 5), (190, 7)]
                {
                    let got = attend(way, &setup, &contiguous(first, n), 2);
                    let wanted = &reference[first * row..(first + n) * row];
                    assert_eq!(got, wanted, "{first} + {n}, {kv_heads} heads of {value_dim}, {way:?} {kind}");
                }
            }
        }
    }
}

/// Rows with shared prefixes, as a plan: each row's slots by position, and its query tokens.
fn branches(rows: &[(Vec<u32>, usize)]) -> Plan {
    let mut plan = Plan::default();
    for (slots, queries) in rows {
        let (at, first) = (plan.positions.len(), slots.len() - queries);
        let section = &mut plan.full;
        section.rows.push(PlanRow {
            seq: SeqId::new(section.rows.len() as u32, 1),
            queries: Span::new(at, *queries),
            segments: Span::new(section.segments.len(), 1),
            read_len: slots.len() as u32,
            mask: Mask::Causal,
            left_pad_blocks: 0,
            redirected: 0,
        });
        let layout = Layout::Table { at: section.table.len() as u32, block: 1, offset: 0 };
        section.segments.push(Segment {
            pool: PoolId(0),
            layout,
            len: slots.len() as u32,
            first: 0,
            sparse: None,
        });
        section.table.make_mut().extend(slots);
        plan.positions.extend(first as u32..slots.len() as u32);
    }
    plan
}

#[test]
fn shared_prefixes_do_not_change_bits() {
    let trunk = |n: u32| (0..n).collect::<Vec<u32>>();
    let from =
        |trunk: Vec<u32>, own: std::ops::Range<u32>| trunk.into_iter().chain(own).collect::<Vec<u32>>();
    // Branches of a prefix of 150 at its end, one of a prefix of 70, a branch of a branch, some in
    // other slots, one whole prompt.
    let deep = from(trunk(150), 400..460);
    let mut rows: Vec<(Vec<u32>, usize)> =
        (0..5).map(|i| (from(trunk(150), 200 + i * 17..210 + i * 18), 1)).collect();
    rows.push((from(deep[..200].to_vec(), 500..520), 1));
    rows.push((deep, 1));
    rows.push((from(trunk(70), 600..690), 3));
    rows.push((from(trunk(64), 700..701), 1));
    rows.push((trunk(128), 1));
    rows.push((trunk(128), 1));
    rows.push(((800..990).collect(), 40));
    rows.push(((800..990).rev().collect(), 1));
    for (window, kind) in
        [(None, KvType::Bf16), (Some(50), KvType::Bf16), (None, KvType::Q8_0), (None, KvType::Q4a)]
    {
        let facts = facts(window, 64);
        let pool = pool_of(1024, &facts, kind, &|p| p as u32);
        let setup = Setup { facts: &facts, pool: &pool, sinks: None, soft_cap: None };
        for (way, _) in ways() {
            let together = branches(&rows);
            let width = HEADS * 64;
            let q: Vec<f32> = (0..together.positions.len() * width).map(|i| value(i + 77)).collect();
            let all = attend_with(way, &setup, &together, 2, &q);
            let mut at = 0;
            for row in &rows {
                let n = row.1;
                let q = &q[at * width..(at + n) * width];
                let alone = attend_with(way, &setup, &branches(std::slice::from_ref(row)), 1, q);
                assert_eq!(
                    alone,
                    all[at * HEADS * 48..(at + n) * HEADS * 48],
                    "row at {at}, {way:?}, {kind}"
                );
                at += n;
            }
        }
    }
}

#[test]
fn chunks_of_a_shared_prefix_are_read_once() {
    let rows: Vec<(Vec<u32>, usize)> =
        (0..8).map(|i| ((0..2000).chain(2100 + i * 80..2116 + i * 80).collect(), 1)).collect();
    let mut views = Views::default();
    views.build_section(&branches(&rows));
    assert_eq!(views.groups.len(), 1);
    // 31 whole chunks of the prefix together, then per branch the rest of it and its own tokens.
    assert_eq!(views.spans.len(), 9);
    assert_eq!((views.spans[0].views, views.spans[0].chunks), ((0, 8), (0, 31)));
    assert!(views.spans[1..].iter().all(|s| s.views.1 - s.views.0 == 1 && s.chunks == (31, 32)));
}

#[test]
fn next_layer_is_recorded_only_if_its_shape_is_equal() {
    let wide = |kv_heads, width| LayerFacts { kv_heads, key_dim: width, value_dim: width, ..facts(None, 0) };
    let recorded = |next: LayerFacts| {
        let now = wide(2, 64);
        let pool = Arc::new(Pool::new(&[now, next], KvType::Bf16, 64).unwrap());
        let plan = contiguous(0, 64);
        let mut views = Views::default();
        views.build_section(&plan);
        let setup = Setup { facts: &now, pool: &pool, sinks: None, soft_cap: None };
        let a = layer_attention(Isa::PORTABLE, &setup, &plan, &views, &[]);
        let mut queue = KvPrefetchQueue::default();
        a.queue_next_layer(&views.chunks(&views.views[0])[0], 0..2, 99, &mut queue);
        std::iter::from_fn(|| queue.next()).count()
    };
    // K and V of two heads: two pages each.
    assert_eq!(recorded(wide(2, 64)), 8);
    // A row of equally many bytes, but of one head.
    assert_eq!(recorded(wide(1, 128)), 0);
}
