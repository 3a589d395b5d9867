//! Implements [`ExpertExchange`] over shared memory.
//!
//! Rows are exchanged in chunks of limited size. For each chunk, a replica:
//!
//! 1. writes its rows and their expert ids to its dispatch area, and waits at a barrier;
//! 2. reads the rows of all replicas that have a local expert, computes the outputs, writes each to
//!    the output area at its row and expert, and waits at a barrier;
//! 3. reads the outputs for its own rows.
//!
//! At a barrier, a replica publishes its barrier counter and waits until all others have reached
//! the same count. All replicas exchange as many chunks as the replica with the most rows needs.
//!
//! Invariant: nothing is overwritten while it is read. A dispatch area is rewritten after the second
//! barrier of its chunk, which each replica reaches after it has read the area. An output is
//! rewritten after the first barrier of the next chunk, which its reader reaches after the read.

use crate::experts::layout::{DISPATCH_WORDS, ExchangeLayout};
use crate::experts::lockstep::out_of_step;
use crate::experts::member::{ExpertGroupMember, locked};
use crate::experts::received_rows::{ReceivedRows, RowSource};
use crate::ranks::sync::Ordering;
use kvasir_exec::{ComputeExperts, DispatchRows, ExpertExchange, NO_EXPERT, StepError};
use std::ops::Range;

/// Shape of one replica's chunk.
#[derive(Clone, Copy)]
struct ChunkShape {
    /// Number of rows.
    rows: usize,
    /// Values per row.
    width: usize,
    /// Expert ids per row.
    top_k: usize,
}

impl ExpertGroupMember {
    /// Waits until all replicas have reached the same barrier.
    fn wait_at_barrier(&self) -> Result<(), StepError> {
        let barrier = Self::increment(&self.barriers);
        self.endpoint.publish(ExchangeLayout::barriers(self.replica), barrier, self.others());
        for replica in self.others() {
            self.wait_for_count(replica, ExchangeLayout::barriers(replica), barrier, "barriers")?;
        }
        Ok(())
    }

    /// Writes the rows `chunk` of `own` to the dispatch area.
    fn dispatch(&self, header: &[u32; DISPATCH_WORDS], own: &DispatchRows<'_>, chunk: Range<usize>) {
        let (memory, layout) = (&self.endpoint.memory, &self.layout);
        let rows = &own.rows[chunk.start * own.width..chunk.end * own.width];
        let experts = &own.experts[chunk.start * own.top_k..chunk.end * own.top_k];
        // SAFETY: no replica reads this area now; see the module's invariant.
        unsafe {
            memory.write(layout.dispatch(self.replica), header);
            memory.write_f32(layout.rows(self.replica), rows);
            memory.write(layout.experts(self.replica), experts);
        }
    }

    /// Reads the number of rows of a replica in this exchange. Fails if the replica is at another
    /// step or exchange.
    fn read_row_count(&self, replica: usize, expected: &[u32; DISPATCH_WORDS]) -> Result<usize, StepError> {
        let mut header = [0; DISPATCH_WORDS];
        // SAFETY: the header is published; see the module's invariant.
        unsafe { self.endpoint.memory.read(self.layout.dispatch(replica), &mut header) };
        let [step, exchange, rows, width, top_k] = header;
        if [step, exchange, width, top_k] == [expected[0], expected[1], expected[3], expected[4]] {
            return Ok(rows as usize);
        }
        let why = format!(
            "its exchange (step, index, rows, width, experts per row) is `{header:?}`, expected `{expected:?}`"
        );
        Err(out_of_step(replica, why))
    }

    /// Appends the rows of a replica's chunk that have a local expert to `received`.
    fn receive(&self, replica: usize, chunk: ChunkShape, local: &Range<usize>, received: &mut ReceivedRows) {
        let ChunkShape { rows: count, width, top_k } = chunk;
        let (memory, layout) = (&self.endpoint.memory, &self.layout);
        let ReceivedRows { rows, experts, sources, row_experts } = received;
        row_experts.resize(top_k, NO_EXPERT);
        for row in 0..count {
            // SAFETY: the rows are published; see the module's invariant.
            unsafe { memory.read(layout.experts(replica) + row * top_k, row_experts) };
            let is_local = |expert: &u32| local.contains(&(*expert as usize));
            if !row_experts.iter().any(is_local) {
                continue;
            }
            experts.extend(row_experts.iter().map(|e| if is_local(e) { *e } else { NO_EXPERT }));
            sources.push(RowSource { replica, row });
            let at = rows.len();
            rows.resize(at + width, 0.0);
            // SAFETY: as above.
            unsafe { memory.read_f32(layout.rows(replica) + row * width, &mut rows[at..]) };
        }
    }

    /// Reads the outputs for this replica's chunk: `count` rows of `own` from row `first`.
    fn read_outputs(&self, own: &DispatchRows<'_>, first: usize, count: usize, outputs: &mut [f32]) {
        for row in 0..count {
            for choice in 0..own.top_k {
                let entry = (first + row) * own.top_k + choice;
                if own.experts[entry] == NO_EXPERT {
                    continue;
                }
                let into = &mut outputs[entry * own.width..][..own.width];
                let at = self.layout.output(self.replica, row, choice);
                // SAFETY: all outputs are published; see the module's invariant.
                unsafe { self.endpoint.memory.read_f32(at, into) };
            }
        }
    }
}

impl ExpertExchange for ExpertGroupMember {
    fn count(&self) -> usize {
        self.layout.replicas
    }

    fn max_rows(&self) -> usize {
        self.layout.replicas * self.layout.chunk_rows
    }

    fn exchange(
        &self,
        own: DispatchRows<'_>,
        local: Range<usize>,
        compute: &mut ComputeExperts<'_>,
        outputs: &mut [f32],
    ) -> Result<(), StepError> {
        let layout = self.layout;
        let DispatchRows { width, top_k, .. } = own;
        if width > layout.width || top_k > layout.top_k {
            return Err(StepError::Lost(format!(
                "row of {width} values with {top_k} experts exceeds the exchange of {layout:?}"
            )));
        }
        let (step, index) = (self.step.load(Ordering::Relaxed), Self::increment(&self.exchanges));
        let total = own.experts.len() / top_k.max(1);
        let header = [step, index, total as u32, width as u32, top_k as u32];
        let chunk_len = |total: usize, first: usize| total.saturating_sub(first).min(layout.chunk_rows);
        let mut received = locked(&self.received);
        let (mut first, mut max_total) = (0, 0);
        loop {
            let count = chunk_len(total, first);
            self.dispatch(&header, &own, first.min(total)..first.min(total) + count);
            self.wait_at_barrier()?;
            received.clear();
            for replica in 0..layout.replicas {
                let rows = self.read_row_count(replica, &header)?;
                max_total = max_total.max(rows);
                let chunk = ChunkShape { rows: chunk_len(rows, first), width, top_k };
                self.receive(replica, chunk, &local, &mut received);
            }
            let ReceivedRows { rows, experts, sources, .. } = &*received;
            let store = |entry: usize, output: &[f32]| {
                let RowSource { replica, row } = sources[entry / top_k];
                let at = layout.output(replica, row, entry % top_k);
                // SAFETY: only this replica writes the outputs of its experts, each once, and none
                // is read now; see the module's invariant.
                unsafe { self.endpoint.memory.write_f32(at, output) };
            };
            if !sources.is_empty() {
                compute(DispatchRows { rows, width, experts, top_k }, &store);
            }
            self.wait_at_barrier()?;
            self.read_outputs(&own, first, count, outputs);
            first += layout.chunk_rows;
            if first >= max_total {
                return Ok(());
            }
        }
    }
}
