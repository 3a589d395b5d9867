//! The KV cache pool: storage of K and V rows behind the slots that a cache hands out.
//!
//! A slot holds one token's rows in all layers. Invariants:
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
use crate::memory::kv_pool::rows::{GROUP, Placement, Region, Rows};

use crate::isa::features::Isa;
use kvasir_kv::{Slot, SlotCopy};
use kvasir_program::LayerFacts;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots committed at first; from there on the pool doubles.
const FIRST: usize = GROUP;

/// The KV cache of one layer.
pub(crate) struct LayerPool {
    pub(crate) keys: Rows,
    /// Absent where V is a prefix of K (MLA latent attention).
    pub(crate) values: Option<Rows>,
    /// Keys of the sparse-attention indexer (DSA).
    pub(crate) index: Option<Rows>,
    /// Ring size in slots of a sliding-window layer, in place of a slot per position.
    pub(crate) ring: Option<Slot>,
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
    /// Backing memory of the layers' rows, one region per number of slots.
    regions: Vec<Arc<Region>>,
    pub(crate) slots: usize,
    kind: KvType,
    /// Slots committed so far.
    grown: AtomicUsize,
}

impl Pool {
    /// A pool of `slots` tokens. Reserves address space, not memory. Fails if the size overflows or
    /// cannot be mapped.
    pub fn new(layers: &[LayerFacts], kind: KvType, slots: usize) -> io::Result<Self> {
        Self::with_rings(layers, kind, slots, None)
    }

    /// A pool whose sliding-window layers use ring buffers of `window + longest_write - 1` slots,
    /// if a longest write is given; see [`Rings`](kvasir_kv::Rings).
    pub fn with_rings(
        layers: &[LayerFacts],
        kind: KvType,
        slots: usize,
        longest_write: Option<u32>,
    ) -> io::Result<Self> {
        let slots = slots.max(1);
        let ring = |facts: &LayerFacts| {
            let window = facts.retained_window()?;
            let ring = window.saturating_add(longest_write?).saturating_sub(1);
            Some(ring).filter(|ring| (*ring as usize) < slots)
        };
        // Layers with equally many slots share a region, in which each has its offset.
        let mut regions = Vec::<(Option<Slot>, Arc<Region>, usize)>::new();
        let mut made = Vec::with_capacity(layers.len());
        for facts in layers {
            let wanted = ring(facts);
            let at = match regions.iter().position(|(ring, ..)| *ring == wanted) {
                Some(at) => at,
                None => {
                    let alike = layers.iter().filter(|facts| ring(facts) == wanted);
                    let row = alike.map(|facts| kind.slot_bytes(std::slice::from_ref(facts))).sum();
                    let region = Region::new(wanted.map_or(slots, |ring| ring as usize), row)?;
                    regions.push((wanted, Arc::new(region), 0));
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
                ring: wanted,
            });
        }
        let regions = regions.into_iter().map(|(_, region, _)| region).collect();
        Ok(Self { layers: made, facts: layers.to_vec(), regions, slots, kind, grown: AtomicUsize::new(0) })
    }

    /// Shapes of the layers that it was made for.
    pub(crate) fn facts(&self) -> &[LayerFacts] {
        &self.facts
    }

    /// Storage type of its rows.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Bytes that one token takes in all layers.
    pub fn token_bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerPool::all).map(Rows::row_bytes).sum()
    }

    /// Slots with committed memory: it doubles from a first few hundred, and never exceeds the
    /// capacity.
    pub fn grown(&self) -> usize {
        self.grown.load(Ordering::Relaxed)
    }

    /// Commits memory for slots below `bound`. No row moves.
    pub(crate) fn grow(&self, bound: Slot) {
        let have = self.grown();
        if bound as usize <= have {
            return;
        }
        let want = (bound as usize).max(FIRST).checked_next_power_of_two().unwrap_or(self.slots);
        let want = want.min(self.slots);
        self.regions.iter().for_each(|region| region.grow(have..want));
        self.grown.store(want, Ordering::Relaxed);
    }

    /// Returns the memory of whole groups of free slots to the system; they are committed again when
    /// they are written. Ring buffers stay. No row of these slots may be in use.
    pub(crate) fn release(&self, slots: Range<Slot>) {
        let slots = slots.start as usize..(slots.end as usize).min(self.grown());
        self.regions.iter().filter(|region| region.slots == self.slots).for_each(|region| {
            region.release(slots.clone());
        });
    }

    /// Whether some layer keeps its rows in a ring buffer.
    pub(crate) fn has_rings(&self) -> bool {
        self.layers.iter().any(|layer| layer.ring.is_some())
    }

    /// Carries out a plan's slot copies in all layers. `scratch` is reused between calls.
    ///
    /// # Safety
    /// The slots must exist, and no other thread may access them during the call.
    pub(crate) unsafe fn apply(&self, moves: &[SlotCopy], scratch: &mut Vec<u8>) {
        if !moves.is_empty() {
            // SAFETY: as the caller vouches.
            self.layers
                .iter()
                .flat_map(LayerPool::all)
                .for_each(|rows| unsafe { rows.apply(moves, scratch) });
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
        assert!((slot as usize) < self.slots && !self.has_rings());
        let rows = self.layers.iter().flat_map(LayerPool::all);
        // SAFETY: the slot exists; the caller excludes writes.
        rows.fold(into, |into, rows| unsafe { rows.copy_out(slot, into) })
    }

    /// Replaces the row of a slot by the front of `from`; returns the rest of it.
    ///
    /// # Safety
    /// No other thread may access the pool during the call.
    pub(crate) unsafe fn copy_in<'a>(&self, slot: Slot, from: &'a [u8]) -> &'a [u8] {
        assert!((slot as usize) < self.slots && !self.has_rings());
        self.grow(slot + 1);
        let rows = self.layers.iter().flat_map(LayerPool::all);
        // SAFETY: the slot exists; the caller excludes other accesses.
        rows.fold(from, |from, rows| unsafe { rows.copy_in(slot, from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::Isa;

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
                pool.grow(tokens);
                let (grown, tokens) = (pool.grown(), tokens as usize);
                assert!(grown >= tokens && grown <= (2 * tokens).max(FIRST).min(pool.slots), "{grown}");
                sizes.push(grown);
            }
            assert!(sizes.is_sorted());
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_groups_are_zero_and_their_neighbors_stay() {
        let layers = [facts(false, 0)];
        let pool = Pool::new(&layers, KvType::F32, 8 * GROUP).unwrap();
        let rows = &pool.layers[0].keys;
        pool.grow(8 * GROUP as Slot);
        let slots = [0, 600, 1100, 1535, 1536, 4000];
        let x: Vec<f32> = (0..192).map(|i| i as f32 + 1.0).collect();
        // SAFETY: one thread; the slots exist.
        slots.iter().for_each(|slot| unsafe { rows.write(Isa::PORTABLE, *slot, &x) });
        pool.release(600..1537);
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
        let pool = Pool::new(&layers, kind, slots).unwrap();
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
            pool.grow(64);
            // SAFETY: one thread; the slots exist.
            unsafe { rows.write(Isa::PORTABLE, 63, &x) };
            let (at, before) = (rows.part(63, 1), stored(63));
            pool.grow(4_999);
            assert_eq!((rows.part(63, 1), stored(63)), (at, before.clone()), "{kind}");
            // All sources are read before any write: a chain of copies must not shift.
            let zeros = stored(64);
            let moves = [SlotCopy { from: 63, to: 64 }, SlotCopy { from: 64, to: 4_998 }];
            // SAFETY: as above.
            unsafe { pool.apply(&moves, &mut Vec::new()) };
            assert_eq!((stored(64), stored(4_998)), (before, zeros), "{kind}");
        }
    }
}
