//! Activation buffers and scratch of one executor.

use crate::attention::views::Views;
use crate::exec::model::CpuModel;
use crate::gemm::bf16::activations::Bf16Terms;
use crate::gemm::linear::Prepared;
use crate::memory::buffer::Buffer;
use crate::ops::compressed_attend::EntryBuffer;
use crate::ops::key_pools::KeyPools;
use crate::ops::mixture::{MixtureMemory, Routes};
use kvasir_exec::{AllGatherBuffers, StepError};
use kvasir_program::{Rows, ValueId};
use std::io;
use std::sync::Arc;

/// The cache entries that a sparse key selection (DSA) chose for each token of a step.
pub(crate) enum Selection {
    /// As read lists, for attention to the selected entries.
    Views(Views),
    /// As numbers within the row's read, for attention to the compressed entries of their pools.
    Entries(Vec<Vec<u32>>),
}

/// Workspace of an executor; allocated once, for the largest step.
pub(crate) struct Memory {
    pub(crate) values: Vec<Buffer>,
    pub(crate) prepared: Prepared,
    pub(crate) mixture: MixtureMemory,
    /// Views of the plan by layer group, for layers without a ring.
    pub(crate) views: Vec<Views>,
    /// Views of ring buffers, by window size.
    pub(crate) rings: Vec<(u32, Views)>,
    /// MoE routing of the step, by value.
    pub(crate) routes: Vec<(ValueId, Vec<Routes>)>,
    /// Sparse key selections (DSA), by value.
    pub(crate) selections: Vec<(ValueId, Selection)>,
    /// Scratch of the indexer: the keys of all pools of a layer.
    pub(crate) indexer_keys: Vec<f32>,
    /// Key pools of the step, one per size and sliding window.
    pub(crate) key_pools: Vec<Arc<KeyPools>>,
    /// Compressed entries of the current layer, and the views of its queries.
    pub(crate) compressed_entries: EntryBuffer,
    pub(crate) compressed_views: Views,
    /// Scratch of attention: ends of its groups of work items.
    pub(crate) group_ends: Vec<usize>,
    /// Rotary tables, per rope and token: cosines, then sines.
    pub(crate) rotary_tables: Vec<Vec<f32>>,
    /// Scratch of the all-gather of logits over ranks with unequal vocabulary shards.
    pub(crate) gather_buffers: AllGatherBuffers,
    /// Scratch of slot copies.
    pub(crate) copy_scratch: Vec<u8>,
    /// Error of a failed op, such as a collective; it ends the step before the next op.
    pub(crate) error: Option<StepError>,
}

impl Memory {
    pub(crate) fn new(model: &CpuModel, tokens: usize) -> io::Result<Self> {
        let widest = model.program.values.iter().map(|v| v.width()).max().unwrap_or(0);
        let terms = Bf16Terms::of(model.isa, model.precision);
        // In huge pages: GEMMs write columns of rows pages apart, which would cost TLB misses.
        let size = |(width, _): &(usize, Rows)| Buffer::in_huge_pages(width * tokens * 4);
        Ok(Self {
            values: model.lowered.buffers.buffers.iter().map(size).collect::<io::Result<_>>()?,
            prepared: Prepared::new(model.isa, tokens, widest, terms)?,
            mixture: MixtureMemory::new(model.isa, &model.program, tokens, terms)?,
            views: Vec::new(),
            rings: Vec::new(),
            routes: Vec::new(),
            selections: Vec::new(),
            indexer_keys: Vec::new(),
            key_pools: Vec::new(),
            compressed_entries: EntryBuffer::default(),
            compressed_views: Views::default(),
            group_ends: Vec::new(),
            rotary_tables: vec![Vec::new(); model.program.ropes.len()],
            gather_buffers: AllGatherBuffers::default(),
            copy_scratch: Vec::new(),
            error: None,
        })
    }

    /// All numbers of a value buffer; the last step's rows come first.
    pub(crate) fn numbers(&self, buffer: usize) -> &[f32] {
        let values = &self.values[buffer];
        // SAFETY: the bytes belong to the buffer, nothing writes them while it is borrowed, and any
        // bytes are floats.
        unsafe { std::slice::from_raw_parts(values.ptr().cast(), values.len() / 4) }
    }
}
