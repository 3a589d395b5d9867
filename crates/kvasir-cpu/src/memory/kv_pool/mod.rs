//! The KV cache pool: storage of K and V rows behind the slots that a cache hands out.
//!
//! A slot of a layer group holds one token's rows in the layers of the group. Invariants:
//!
//! - A row's address never changes. Address space for the whole capacity is reserved at once,
//!   memory is committed by doubling.
//! - Rows move only by a plan's slot copies (`apply`), which read all sources before they write.
//! - The pool does not know which sequence owns a slot; caches and plans decide that.
//!
//! Sliding-window layers may use ring buffers instead of a slot per position. The layout is in
//! `rows.rs` and in decision 0019.

pub(crate) mod kv_type;
pub(crate) mod rows;

use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{EXTENT_SLOTS, Placement, Region, Rows};

use crate::isa::features::Isa;
use kvasir_kv::{GroupId, MAX_GROUPS, Slot, SlotCopy, Slots};
use kvasir_program::{Grouping, LayerFacts};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots that are committed first; after that the pool doubles.
const INITIAL_SLOTS: usize = EXTENT_SLOTS;

/// The slots that hold a layer's rows. Layers with the same slots share a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerSlots {
    /// The slots that the plan's section of this layer group names.
    Group(GroupId),
    /// A ring buffer of this many slots.
    Ring(Slot),
}

impl LayerSlots {
    /// The layer group whose plan section covers the layer; the full group for ring buffers.
    pub(crate) fn group(self) -> GroupId {
        match self {
            Self::Group(group) => group,
            Self::Ring(_) => GroupId::FULL,
        }
    }
}

/// The KV cache of one layer.
pub(crate) struct LayerPool {
    pub(crate) keys: Rows,
    /// Absent where V is a prefix of K (MLA latent attention).
    pub(crate) values: Option<Rows>,
    /// Keys of the sparse-attention indexer (DSA).
    pub(crate) index: Option<Rows>,
    pub(crate) slots: LayerSlots,
}

impl LayerPool {
    /// The V rows, or the K rows that they are part of.
    pub(crate) fn read_as_values(&self) -> &Rows {
        self.values.as_ref().unwrap_or(&self.keys)
    }

    fn all(&self) -> impl Iterator<Item = &Rows> {
        [Some(&self.keys), self.values.as_ref(), self.index.as_ref()].into_iter().flatten()
    }
}

/// Number of stripes that a layer's KV heads are split into. In decode the heads are divided
/// between threads, and a thread that reads without gaps gets the most from the hardware
/// prefetcher: two stripes serve two threads. More threads read shorter ranges, and heads of one
/// stripe share per-chunk work. One stripe with AMX, where all heads of a layer share a block, and
/// where it was not measured.
const fn stripes(isa: Isa, facts: &LayerFacts) -> usize {
    let measured = isa.bf16_dot && !isa.tiles;
    if measured && facts.kv_heads > 0 && facts.kv_heads.is_multiple_of(2) && facts.index_dim == 0 {
        2
    } else {
        1
    }
}

/// The KV cache storage of a session.
pub struct Pool {
    pub(crate) layers: Vec<LayerPool>,
    facts: Vec<LayerFacts>,
    /// Backing memory of the layers' rows: a region for all layers with the same slots, in which
    /// each layer has an offset.
    regions: Vec<(LayerSlots, Arc<Region>)>,
    /// Slots per layer group.
    slots: Slots,
    kind: KvType,
    /// Slots committed so far, by layer group.
    grown: [AtomicUsize; MAX_GROUPS],
}

impl Pool {
    /// A pool of `slots` tokens. Reserves address space, not memory. Fails if the size overflows or
    /// cannot be mapped.
    pub fn new(layers: &[LayerFacts], kind: KvType, slots: u32) -> io::Result<Self> {
        Self::with_rings(layers, kind, slots, None)
    }

    /// A pool whose layers have the slots of their layer groups, `slots` per group.
    pub fn with_groups(
        layers: &[LayerFacts],
        grouping: &Grouping,
        kind: KvType,
        slots: Slots,
    ) -> io::Result<Self> {
        let of_layer = grouping.of_layer.iter().map(|group| LayerSlots::Group(GroupId(*group)));
        Self::of_slots(layers, &of_layer.collect::<Vec<_>>(), kind, slots)
    }

    /// A pool whose sliding-window layers use ring buffers of `window + longest_write - 1` slots,
    /// if a longest write is given; see [`Rings`](kvasir_kv::Rings).
    pub fn with_rings(
        layers: &[LayerFacts],
        kind: KvType,
        slots: u32,
        longest_write: Option<u32>,
    ) -> io::Result<Self> {
        let slots = GroupId::FULL.slots(slots);
        let ring = |facts: &LayerFacts| {
            let window = facts.retained_window()?;
            let ring = window.saturating_add(longest_write?).saturating_sub(1);
            Some(ring).filter(|ring| *ring < slots[0])
        };
        let of_layer = |facts| ring(facts).map_or(LayerSlots::Group(GroupId::FULL), LayerSlots::Ring);
        Self::of_slots(layers, &layers.iter().map(of_layer).collect::<Vec<_>>(), kind, slots)
    }

    /// A pool with these slots of each layer, and the number of slots per layer group.
    fn of_slots(
        layers: &[LayerFacts],
        of_layer: &[LayerSlots],
        kind: KvType,
        slots: Slots,
    ) -> io::Result<Self> {
        let slots = slots.map(|slots| slots.max(1));
        let mut regions = Vec::<(LayerSlots, Arc<Region>, usize)>::new();
        let mut made = Vec::with_capacity(layers.len());
        for (facts, wanted) in layers.iter().zip(of_layer) {
            let at = match regions.iter().position(|(of, ..)| of == wanted) {
                Some(at) => at,
                None => {
                    let sharing = layers.iter().zip(of_layer).filter(|(_, of)| *of == wanted);
                    let row = sharing.map(|(facts, _)| kind.slot_bytes(std::slice::from_ref(facts))).sum();
                    let count = match *wanted {
                        LayerSlots::Group(group) => slots[group.index()],
                        LayerSlots::Ring(slots) => slots,
                    };
                    regions.push((*wanted, Arc::new(Region::new(count as usize, row)?), 0));
                    regions.len() - 1
                }
            };
            let (_, region, taken) = &mut regions[at];
            let layer = kind.slot_bytes(std::slice::from_ref(facts));
            let stripes = stripes(Isa::detect(), facts);
            let mut placement = Placement { layers: *taken, stripes, stripe: layer / stripes, before: 0 };
            *taken += layer;
            let mut rows = |heads: usize, width: usize| {
                let rows = Rows::new(kind, heads, width, placement, region);
                placement.before += rows.row_bytes() / stripes;
                rows
            };
            made.push(LayerPool {
                keys: rows(facts.kv_heads, facts.key_dim),
                values: (!facts.value_in_key && facts.value_dim > 0)
                    .then(|| rows(facts.kv_heads, facts.value_dim)),
                index: (facts.index_dim > 0).then(|| rows(1, facts.index_dim)),
                slots: *wanted,
            });
        }
        let regions = regions.into_iter().map(|(of, region, _)| (of, region)).collect();
        Ok(Self { layers: made, facts: layers.to_vec(), regions, slots, kind, grown: Default::default() })
    }

    /// Shapes of the layers that it was made for.
    pub(crate) fn facts(&self) -> &[LayerFacts] {
        &self.facts
    }

    /// Storage type of its rows.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Slots per layer group.
    pub(crate) fn slots(&self) -> Slots {
        self.slots
    }

    /// Bytes that one token takes in all layers.
    pub fn token_bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerPool::all).map(Rows::row_bytes).sum()
    }

    /// Slots of a layer group with committed memory: it doubles from a first few hundred, and never
    /// exceeds the capacity.
    pub fn grown(&self, group: GroupId) -> usize {
        self.grown.get(group.index()).map_or(0, |grown| grown.load(Ordering::Relaxed))
    }

    /// Commits memory for slots of a layer group below `bound`; ring buffers grow with group 0. No
    /// row moves.
    pub(crate) fn grow(&self, group: GroupId, bound: Slot) {
        let (have, slots) = (self.grown(group), self.slots[group.index()] as usize);
        if bound as usize <= have {
            return;
        }
        let want = (bound as usize).max(INITIAL_SLOTS);
        let want = want.checked_next_power_of_two().unwrap_or(slots).min(slots);
        for (of, region) in &self.regions {
            if of.group() == group {
                region.grow(have..want);
            }
        }
        self.grown[group.index()].store(want, Ordering::Relaxed);
    }

    /// Returns the memory of whole extents of free slots of a layer group to the system. They are
    /// committed again when they are written. Ring buffers stay. No row of these slots may be in
    /// use.
    pub(crate) fn release(&self, group: GroupId, slots: Range<Slot>) {
        let slots = slots.start as usize..(slots.end as usize).min(self.grown(group));
        let regions = self.regions.iter().filter(|(of, _)| *of == LayerSlots::Group(group));
        regions.for_each(|(_, region)| region.release(slots.clone()));
    }

    /// Whether some layer keeps its rows in a ring buffer.
    pub(crate) fn has_rings(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.slots, LayerSlots::Ring(_)))
    }

    /// Whether all layers have the slots of group 0, so that a slot holds a row of every layer.
    pub(crate) fn is_joined(&self) -> bool {
        self.layers.iter().all(|layer| layer.slots == LayerSlots::Group(GroupId::FULL))
    }

    /// Copies slots of a layer group, except in ring buffers: plans of a cache with rings have no
    /// copies. `scratch` is reused between calls.
    ///
    /// # Safety
    /// The slots must exist, and no other thread may access them during the call.
    pub(crate) unsafe fn apply(&self, group: GroupId, moves: &[SlotCopy], scratch: &mut Vec<u8>) {
        if !moves.is_empty() {
            let layers = self.layers.iter().filter(|layer| layer.slots == LayerSlots::Group(group));
            // SAFETY: upheld by the caller.
            layers.flat_map(LayerPool::all).for_each(|rows| unsafe { rows.apply(moves, scratch) });
        }
    }
}

/// A slot's row is the stored bytes of all layers in order: keys, values and indexer keys by head.
/// Pools of any size have the same row.
impl Pool {
    /// Copies the row of a slot to the front of `into`, of at least
    /// [`token_bytes`](Self::token_bytes); returns the rest of it.
    ///
    /// # Safety
    /// No thread may write the pool during the call.
    pub(crate) unsafe fn copy_out<'a>(&self, slot: Slot, into: &'a mut [u8]) -> &'a mut [u8] {
        assert!(slot < self.slots[0] && self.is_joined());
        let rows = self.layers.iter().flat_map(LayerPool::all);
        // SAFETY: the slot exists; the caller excludes writes.
        rows.fold(into, |into, rows| unsafe { rows.copy_out(slot, into) })
    }

    /// Replaces the row of a slot by the front of `from`; returns the rest of it.
    ///
    /// # Safety
    /// No other thread may access the pool during the call.
    pub(crate) unsafe fn copy_in<'a>(&self, slot: Slot, from: &'a [u8]) -> &'a [u8] {
        assert!(slot < self.slots[0] && self.is_joined());
        self.grow(GroupId::FULL, slot + 1);
        let rows = self.layers.iter().flat_map(LayerPool::all);
        // SAFETY: the slot exists; the caller excludes other accesses.
        rows.fold(from, |from, rows| unsafe { rows.copy_in(slot, from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::Isa;
    use kvasir_program::LayerGroup;

    fn facts(value_in_key: bool, index_dim: usize) -> LayerFacts {
        LayerFacts {
            kv_heads: 2,
            key_dim: 96,
            value_dim: 48,
            value_in_key,
            window: None,
            lookahead: 0,
            index_dim,
        }
    }

    #[test]
    fn tokens_take_predicted_bytes_and_pools_at_most_double() {
        let layers = [facts(false, 0), facts(true, 32)];
        for kind in KvType::ALL {
            let pool = Pool::new(&layers, kind, 100_000).unwrap();
            assert_eq!(pool.token_bytes(), kind.slot_bytes(&layers));
            let mut sizes = Vec::new();
            for tokens in [0, 1, 500, 513, 5_000, 40_000, 99_999, 100_000] {
                pool.grow(GroupId::FULL, tokens);
                let (grown, tokens) = (pool.grown(GroupId::FULL), tokens as usize);
                assert!(grown >= tokens && grown <= (2 * tokens).clamp(INITIAL_SLOTS, 100_000), "{grown}");
                sizes.push(grown);
            }
            assert!(sizes.is_sorted());
        }
    }

    #[test]
    fn layer_groups_grow_copy_and_release_separately() {
        let window = |window| LayerFacts { window: Some(window), ..facts(false, 0) };
        let layers = [window(8), facts(false, 0), window(8), facts(true, 32), window(30)];
        let kinds = vec![LayerGroup::Full, LayerGroup::Window(8), LayerGroup::Window(30)];
        let of_layer = vec![1, 0, 1, 0, 2];
        let grouping = Grouping { kinds, of_layer, of_state: None, slot_elements: vec![0; 3] };
        let slots = [8 * EXTENT_SLOTS as Slot, 600, EXTENT_SLOTS as Slot, 0];
        let pool = Pool::with_groups(&layers, &grouping, KvType::Bf16, slots).unwrap();
        let sizes: Vec<_> = pool.regions.iter().map(|(of, region)| (of.group().0, region.slots)).collect();
        assert_eq!(sizes, [(1, 600), (0, 8 * EXTENT_SLOTS), (2, EXTENT_SLOTS)]);
        let grown = || [0, 1, 2].map(|group| pool.grown(GroupId(group)));
        pool.grow(GroupId(1), 513);
        assert_eq!(grown(), [0, 600, 0]);
        pool.grow(GroupId::FULL, 1);
        assert_eq!(grown(), [INITIAL_SLOTS, 600, 0]);
        // Slot 5 of a group is a row of its layers only, and so are copies and releases.
        let x: Vec<f32> = (0..192).map(|i| i as f32 + 1.0).collect();
        let read = |layer: usize, slot: Slot| {
            let mut read = [0.0; 4];
            // SAFETY: one thread; the slots exist.
            unsafe { pool.layers[layer].keys.read(Isa::PORTABLE, slot, 0, &mut read) };
            read == [1.0, 2.0, 3.0, 4.0]
        };
        // SAFETY: as above.
        [0, 1].into_iter().for_each(|layer| unsafe { pool.layers[layer].keys.write(Isa::PORTABLE, 5, &x) });
        // SAFETY: as above.
        unsafe { pool.apply(GroupId(1), &[SlotCopy { from: 5, to: 7 }], &mut Vec::new()) };
        assert_eq!([read(0, 5), read(0, 7), read(1, 5), read(1, 7)], [true, true, true, false]);
        #[cfg(target_os = "linux")]
        {
            pool.release(GroupId(1), 0..EXTENT_SLOTS as Slot);
            assert_eq!([read(0, 5), read(0, 7), read(1, 5)], [false, false, true]);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_extents_are_zero_and_their_neighbors_stay() {
        let layers = [facts(false, 0)];
        let pool = Pool::new(&layers, KvType::F32, 8 * EXTENT_SLOTS as Slot).unwrap();
        let rows = &pool.layers[0].keys;
        pool.grow(GroupId::FULL, 8 * EXTENT_SLOTS as Slot);
        let slots = [0, 600, 1100, 1535, 1536, 4000];
        let x: Vec<f32> = (0..192).map(|i| i as f32 + 1.0).collect();
        // SAFETY: one thread; the slots exist.
        slots.iter().for_each(|slot| unsafe { rows.write(Isa::PORTABLE, *slot, &x) });
        pool.release(GroupId::FULL, 600..1537);
        let stays = |slot: &Slot| {
            let mut read = [0.0; 96];
            // SAFETY: as above.
            unsafe { rows.read(Isa::PORTABLE, *slot, 1, &mut read) };
            read == x[96..]
        };
        // Slots 1024 to 1535 are the only whole group.
        assert_eq!(slots.map(|slot| stays(&slot)), [true, true, false, false, true, true]);
    }

    #[test]
    fn no_two_head_rows_share_a_byte() {
        let layers = [facts(false, 0), facts(false, 32), LayerFacts { kv_heads: 6, ..facts(false, 0) }];
        let (slots, kind) = (700, KvType::Q8_0);
        let pool = Pool::new(&layers, kind, slots as u32).unwrap();
        let mut parts: Vec<(usize, usize)> = Vec::new();
        for (facts, layer) in layers.iter().zip(&pool.layers) {
            for (i, rows) in layer.all().enumerate() {
                let heads = if i < 2 { facts.kv_heads } else { 1 };
                let each = (0..slots as Slot).flat_map(|slot| (0..heads).map(move |head| (slot, head)));
                parts.extend(each.map(|(slot, head)| (rows.part(slot, head) as usize, rows.part_bytes())));
            }
        }
        parts.sort_unstable();
        assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), slots * kind.slot_bytes(&layers));
        assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
    }

    #[test]
    fn rows_are_copied_between_pools_byte_for_byte() {
        let layers = [facts(false, 0), facts(true, 32), LayerFacts { kv_heads: 3, ..facts(false, 0) }];
        for kind in KvType::ALL {
            let pools = [Pool::new(&layers, kind, 600).unwrap(), Pool::new(&layers, kind, 5_000).unwrap()];
            let row: Vec<u8> = (0..pools[0].token_bytes()).map(|i| (i * 31 + i / 256) as u8).collect();
            let mut read = vec![0; row.len()];
            // SAFETY: one thread; the slots exist.
            unsafe {
                assert!(pools[0].copy_in(599, &row).is_empty());
                assert!(pools[0].copy_out(599, &mut read).is_empty());
                assert!(pools[1].copy_in(4_097, &read).is_empty());
                read.fill(0);
                assert!(pools[1].copy_out(4_097, &mut read).is_empty());
            }
            assert_eq!(read, row, "{kind}");
        }
    }

    #[test]
    fn growing_moves_no_row_and_slot_copies_are_exact() {
        let layers = [facts(false, 0)];
        for kind in KvType::ALL {
            let pool = Pool::new(&layers, kind, 5_000).unwrap();
            let rows = &pool.layers[0].keys;
            let x: Vec<f32> = (0..192).map(|i| (i as f32 * 0.37).sin()).collect();
            let stored = |slot: u32| -> Vec<Vec<u8>> {
                // SAFETY: the slot exists, and no step runs.
                let part =
                    |head| unsafe { std::slice::from_raw_parts(rows.part(slot, head), rows.part_bytes()) };
                (0..2).map(|head| part(head).to_vec()).collect()
            };
            pool.grow(GroupId::FULL, 64);
            // SAFETY: one thread; the slots exist.
            unsafe { rows.write(Isa::PORTABLE, 63, &x) };
            let (at, before) = (rows.part(63, 1), stored(63));
            pool.grow(GroupId::FULL, 4_999);
            assert_eq!((rows.part(63, 1), stored(63)), (at, before.clone()), "{kind}");
            // All sources are read before any write: a chain of copies must not shift.
            let zeros = stored(64);
            let moves = [SlotCopy { from: 63, to: 64 }, SlotCopy { from: 64, to: 4_998 }];
            // SAFETY: as above.
            unsafe { pool.apply(GroupId::FULL, &moves, &mut Vec::new()) };
            assert_eq!((stored(64), stored(4_998)), (before, zeros), "{kind}");
        }
    }
}
