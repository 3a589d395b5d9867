//! Executes `SelectKeys`: writes indexer keys to the KV cache, then selects what sparse attention
//! reads.

use crate::exec::run::Run;
use crate::exec::run::memory::Memory;
use crate::ops::indexer::{Indexer, ResolvedKeyPool, ResolvedPooling, select};
use kvasir_program::{KeyPool, KeyPooling, LayerId, Op, ValueId, WeightId};

impl Run<'_> {
    /// Appends the step's indexer keys to the KV cache, then computes the selection of op `op`.
    pub(crate) fn select_keys(&self, op: &Op, m: &mut Memory) {
        let Op::SelectKeys { q, k, weights, layer, top_k, pool: key_pool, out } = op else { return };
        let pool = &self.pools[0].layers[layer.0 as usize];
        let Some(index) = &pool.index else { return };
        let x = |v: ValueId| self.value(&m.values, v);
        self.write_kv(pool.slots, &[Some((index, x(*k)))]);
        let indexer = Indexer {
            plan: self.plan,
            pools: self.pools,
            layer: layer.0 as usize,
            facts: &self.model.program.layers[layer.0 as usize],
            q: x(*q),
            q_width: self.width(*q),
            weights: weights.map(x),
            heads: self.indexer_heads(*layer, *q, *key_pool),
            top_k: *top_k,
            key_pool: key_pool.and_then(|pool| self.resolve_key_pool(pool)),
            final_lens: self.final_lens,
        };
        // SAFETY: the plan's slots were checked, and writes come before reads.
        let views = unsafe { select(&self.model.threads, self.model.isa, &indexer) };
        m.selections.push((*out, views));
    }

    /// Number of query heads of a layer's indexer, from the widths of `q` and of a key.
    fn indexer_heads(&self, layer: LayerId, q: ValueId, pool: Option<KeyPool>) -> usize {
        let row_width = self.model.program.layers[layer.0 as usize].index_dim;
        let key_width = pool.map_or(row_width, |pool| pool.combine.key_width(row_width));
        self.width(q) / key_width.max(1)
    }

    /// Looks up the weights and the RoPE of a key pool. `None` for compressed entries: `load`
    /// refuses models that have them.
    fn resolve_key_pool(&self, pool: KeyPool) -> Option<ResolvedKeyPool<'_>> {
        let weight = |id: WeightId| &self.model.vectors[&id][..];
        let combine = match pool.combine {
            KeyPooling::Gated { bias } => ResolvedPooling::Gated { bias: weight(bias) },
            KeyPooling::Mean { norm, plus, eps, rope } => {
                let rope = &self.model.program.ropes[rope.0 as usize];
                ResolvedPooling::Mean { norm: weight(norm), plus, eps, rope }
            }
            KeyPooling::Compressed { .. } => return None,
        };
        Some(ResolvedKeyPool { size: pool.size, combine })
    }
}
