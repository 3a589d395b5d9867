//! Executes `UpdateAndAttend`: writes K and V rows to the KV cache, then runs attention on them.

use crate::attention::f32::attend_f32;
use crate::attention::layer::LayerAttention;
use crate::attention::views::Views;
use crate::exec::run::Run;
use crate::exec::run::memory::{Memory, Selection};
use crate::memory::buffer::Buffer;
use crate::memory::kv_pool::LayerSlots;
use crate::memory::kv_pool::rows::Rows as PoolRows;
use crate::threads::rows::{DisjointRows, for_each_row};
use crate::weights::precision::Precision;
use kvasir_program::{Op, ValueId};

impl Run<'_> {
    /// Builds the views of sliding-window layers whose KV cache is a ring buffer, once per window
    /// size.
    pub(crate) fn build_ring_views(&self, m: &mut Memory) {
        let layers = self.pools[0].layers.iter().zip(&self.model.program.layers);
        let mut seen = 0;
        for (pool, facts) in layers {
            let (Some(window), LayerSlots::Ring(ring)) = (facts.window, pool.slots) else { continue };
            if m.rings[..seen].iter().any(|(of, _)| *of == window) {
                continue;
            }
            if seen == m.rings.len() {
                m.rings.push((window, Views::default()));
            }
            m.rings[seen].0 = window;
            m.rings[seen].1.build_ring(self.plan, window, ring);
            seen += 1;
        }
    }

    /// Writes each token's K and V rows of a layer to its slot in the layer's group, or to its
    /// position modulo the ring of the layer.
    pub(crate) fn write_kv(&self, slots: LayerSlots, operands: &[Option<(&PoolRows, &[f32])>]) {
        let tokens = self.tokens.len().max(1);
        let writes = &self.writes[slots.group().index()];
        for_each_row(&self.model.threads, writes.len(), &|_, i| {
            let (slot, row) = writes[i];
            let slot = match slots {
                LayerSlots::Group(_) => slot,
                LayerSlots::Ring(ring) => self.plan.positions[row as usize] % ring,
            };
            for (pool, x) in operands.iter().flatten() {
                let width = x.len() / tokens;
                let x = &x[row as usize * width..][..width];
                // SAFETY: slots were checked, and each is named once; so is each ring slot, as a
                // ring is no shorter than a step.
                unsafe { pool.write(self.model.isa, slot, x) };
            }
        });
    }

    /// Appends the step's K and V rows to the KV cache, then computes attention of op `op`.
    pub(crate) fn attend(&self, op: &Op, m: &mut Memory) {
        let Op::UpdateAndAttend { q, k, v, layer, scale, soft_cap, sinks, selection, out, .. } = op else {
            return;
        };
        let facts = &self.model.program.layers[layer.0 as usize];
        let pool = &self.pools[0].layers[layer.0 as usize];
        let x = |v: ValueId| self.value(&m.values, v);
        // Shared K/V: without K, an earlier op of the same layer has written the rows.
        if let Some(k) = k {
            let values = pool.values.as_ref().zip(*v);
            self.write_kv(pool.slots, &[Some((&pool.keys, x(*k))), values.map(|(rows, v)| (rows, x(v)))]);
        }
        let selection = selection.and_then(|s| m.selections.iter().find(|(of, _)| *of == s));
        let selected_views = selection.and_then(|(_, selection)| match selection {
            Selection::Views(views) => Some(views),
            Selection::Entries(_) => None,
        });
        let ring_views = match pool.slots {
            LayerSlots::Group(_) => None,
            LayerSlots::Ring(_) => m.rings.iter().find(|(of, _)| Some(*of) == facts.window),
        };
        let views = match (selected_views, ring_views) {
            (Some(views), _) | (None, Some((_, views))) => views,
            (None, None) => &m.views[pool.slots.group().index()],
        };
        let q_stride = self.width(*q);
        let attend = LayerAttention {
            isa: self.model.isa,
            q: self.value(&m.values, *q),
            q_stride,
            heads: q_stride / facts.key_dim.max(1),
            facts,
            layer: layer.0 as usize,
            pools: self.pools,
            compressed: None,
            views,
            positions: &self.plan.positions,
            scale: *scale,
            soft_cap: *soft_cap,
            sinks: sinks.map(|s| &self.model.vectors[&s.weight][s.offset..]),
        };
        self.run_attention(&attend, &m.values, &mut m.group_ends, *out);
    }

    /// Computes attention into the value `out`, at the precision of the model.
    pub(crate) fn run_attention(
        &self,
        attend: &LayerAttention<'_>,
        values: &[Buffer],
        group_ends: &mut Vec<usize>,
        out: ValueId,
    ) {
        // SAFETY: only this op writes its output now.
        let results = DisjointRows::new(unsafe { self.value_mut(values, out) }, self.width(out));
        let threads = &*self.model.threads;
        // SAFETY: the plan's slots were checked; writes come before reads; only this op writes
        // `out`.
        unsafe {
            match self.model.precision {
                Precision::Auto if !self.pools[0].kind().needs_f32_attention() => {
                    attend.run(threads, group_ends, &results);
                }
                _ => attend_f32(attend, threads, &results),
            }
        }
    }
}
