//! Executes the ops that read key pools: `SelectKeys` and `CompressedAttend`.

use crate::attention::layer::LayerAttention;
use crate::attention::views::Views;
use crate::exec::run::Run;
use crate::exec::run::memory::{Memory, Selection};
use crate::ops::compressed_attend::CompressedAttention;
use crate::ops::indexer::{Indexer, select};
use crate::ops::key_pools::KeyPools;
use crate::ops::pooled_key::{GatedValues, IndexRows, KeySource, ResolvedKeyPool, ResolvedPooling};
use kvasir_exec::StepError;
use kvasir_program::{KeyPool, KeyPooling, LayerId, Op, RopeId, ValueId, WeightId};
use std::sync::Arc;

impl Run<'_> {
    /// The plan's key pools of `size` entries, computed once per step: all layers share them.
    fn key_pools(&self, m: &mut Memory, size: usize, window: Option<u32>) -> Arc<KeyPools> {
        if let Some(known) = m.key_pools.iter().find(|known| known.matches(size, window)) {
            return Arc::clone(known);
        }
        let pools = Arc::new(KeyPools::new(self.plan, size, window));
        m.key_pools.push(Arc::clone(&pools));
        pools
    }

    /// Maximum length of the sequence of each plan row.
    fn final_lens_of_rows(&self) -> Vec<u32> {
        let first = |row: &kvasir_kv::PlanRow| self.final_lens.get(row.queries.start as usize).copied();
        self.plan.rows.iter().map(|row| first(row).unwrap_or_default()).collect()
    }

    /// The cached rows from which a layer's keys are computed, up to the last element that `pool`
    /// reads.
    fn index_rows(&self, layer: LayerId, pool: Option<KeyPool>) -> IndexRows<'_> {
        let layer = layer.0 as usize;
        let all = self.model.program.layers[layer].index_dim;
        let width = match pool.map(|pool| pool.combine) {
            // Quantized KV types are read in whole blocks of 32 elements.
            Some(KeyPooling::Compressed { start, dim, parts, .. }) => {
                all.min((start + 2 * parts * dim).next_multiple_of(32))
            }
            _ => all,
        };
        IndexRows { pools: self.pools, layer, width }
    }

    /// Writes the indexer rows of the step, and selects the entries that each token attends to.
    pub(crate) fn select_keys(&self, op: &Op, m: &mut Memory) {
        let Op::SelectKeys { q, k, weights, layer, top_k, pool, out } = op else { return };
        let layer_pool = &self.pools[0].layers[layer.0 as usize];
        let Some(index) = &layer_pool.index else { return };
        self.write_kv(layer_pool.slots, &[Some((index, self.value(&m.values, *k)))]);
        let window = self.model.program.layers[layer.0 as usize].window;
        let size = pool.map_or(1, |pool| pool.size);
        let pools = self.key_pools(m, size, window);
        let x = |value: ValueId| self.value(&m.values, value);
        let keys = KeySource {
            pools: &pools,
            rows: self.index_rows(*layer, *pool),
            key_pool: pool.map(|pool| self.resolve_key_pool(pool)),
            final_lens: &self.final_lens_of_rows(),
        };
        let indexer = Indexer {
            keys,
            q: x(*q),
            q_width: self.width(*q),
            weights: weights.map(x),
            heads: self.indexer_heads(*layer, *q, *pool),
            top_k: top_k / size,
        };
        // SAFETY: the plan's slots were checked, and writes come before reads.
        let entries = unsafe { select(&self.model.threads, self.model.isa, &indexer, &mut m.indexer_keys) };
        let is_compressed = pool.is_some_and(|pool| matches!(pool.combine, KeyPooling::Compressed { .. }));
        let selection = if is_compressed {
            Selection::Entries(entries)
        } else {
            let mut views = Views::default();
            views.build_selection(self.plan, |token| &entries[token]);
            Selection::Views(views)
        };
        m.selections.push((*out, selection));
    }

    /// Number of query heads of a layer's indexer, from the widths of `q` and of a key.
    fn indexer_heads(&self, layer: LayerId, q: ValueId, pool: Option<KeyPool>) -> usize {
        let row_width = self.model.program.layers[layer.0 as usize].index_dim;
        let key_width = pool.map_or(row_width, |pool| pool.combine.key_width(row_width));
        self.width(q) / key_width.max(1)
    }

    /// Looks up the weights and the RoPE of a key pool.
    fn resolve_key_pool(&self, pool: KeyPool) -> ResolvedKeyPool<'_> {
        let weight = |id: WeightId| &self.model.vectors[&id][..];
        let rope_of = |rope: RopeId| &self.model.program.ropes[rope.0 as usize];
        let combine = match pool.combine {
            KeyPooling::Gated { bias } => {
                let bias = weight(bias);
                ResolvedPooling::Gated(GatedValues { start: 0, dim: bias.len() / pool.size, parts: 1, bias })
            }
            KeyPooling::Mean { norm, plus, eps, rope } => {
                ResolvedPooling::Mean { norm: weight(norm), plus, eps, rope: rope_of(rope) }
            }
            KeyPooling::Compressed { start, dim, parts, bias, norm, eps, rope } => {
                let values = GatedValues { start, dim, parts, bias: weight(bias) };
                ResolvedPooling::Compressed { values, norm: weight(norm), eps, rope: rope_of(rope) }
            }
        };
        ResolvedKeyPool { size: pool.size, combine }
    }

    /// Appends the step's rows to the KV cache, then computes attention to a sliding window and to
    /// compressed entries.
    pub(crate) fn attend_compressed(&self, op: &Op, m: &mut Memory) {
        let Op::CompressedAttend { q, k, row, selection, layer, scale, sinks, window, pool, out } = op else {
            return;
        };
        let facts = &self.model.program.layers[layer.0 as usize];
        let layer_pool = &self.pools[0].layers[layer.0 as usize];
        let x = |value: ValueId| self.value(&m.values, value);
        let index = layer_pool.index.as_ref().zip(*row);
        let keys = Some((&layer_pool.keys, x(*k)));
        self.write_kv(layer_pool.slots, &[keys, index.map(|(rows, row)| (rows, x(row)))]);
        let pools = self.key_pools(m, pool.size, None);
        let selection = selection.and_then(|s| m.selections.iter().find(|(of, _)| *of == s));
        let selected = selection.and_then(|(_, selection)| match selection {
            Selection::Entries(entries) => Some(&entries[..]),
            Selection::Views(_) => None,
        });
        let (threads, isa) = (&*self.model.threads, self.model.isa);
        let keys = KeySource {
            pools: &pools,
            rows: self.index_rows(*layer, Some(*pool)),
            key_pool: Some(self.resolve_key_pool(*pool)),
            final_lens: &self.final_lens_of_rows(),
        };
        let kind = self.pools[0].kind();
        let (plan, window) = (self.plan, *window);
        let attention = CompressedAttention { plan, facts, kind, keys, selected, window };
        let (entries, views) = (&mut m.compressed_entries, &mut m.compressed_views);
        // SAFETY: the plan's slots were checked, and writes come before reads.
        let prepared = unsafe { attention.prepare(threads, isa, entries, views) };
        if let Err(error) = prepared {
            m.error = Some(StepError::Failed(format!("cannot map memory for compressed entries: {error}")));
            return;
        }
        let q_stride = self.width(*q);
        let attend = LayerAttention {
            isa,
            q: self.value(&m.values, *q),
            q_stride,
            heads: q_stride / facts.key_dim.max(1),
            facts,
            layer: layer.0 as usize,
            pools: self.pools,
            compressed: m.compressed_entries.layer(),
            views: &m.compressed_views,
            positions: &self.plan.positions,
            scale: *scale,
            soft_cap: None,
            sinks: Some(&self.model.vectors[&sinks.weight][sinks.offset..]),
        };
        self.run_attention(&attend, &m.values, &mut m.group_ends, *out);
    }
}
