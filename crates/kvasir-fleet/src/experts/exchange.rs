//! The exchange of rows: [`ExpertExchange`] over shared memory.
//!
//! Rows are exchanged in chunks of limited size. For each chunk, a replica:
//!
//! 1. writes its rows with their experts to its dispatch area, and completes a phase (a barrier: it
//!    publishes its number of phases, and waits until all others have completed as many);
//! 2. reads the rows of all replicas that chose a local expert, computes the outputs, writes each to
//!    the place of its row and expert, and completes a phase;
//! 3. reads the outputs for its own rows.
//!
//! All replicas exchange as many chunks: as the one with most rows needs.
//!
//! Invariant: nothing is overwritten while it is read. A dispatch area is rewritten after the second
//! phase of its chunk, which all replicas complete after they have read it. An output is rewritten
//! after the first phase of the next chunk, which its reader completes after it has read it.

use crate::experts::layout::{DISPATCH_WORDS, ExchangeLayout};
use crate::experts::lockstep::out_of_step;
use crate::experts::member::{ReplicaMember, locked};
use crate::experts::received_rows::ReceivedRows;
use crate::ranks::sync::Ordering;
use kvasir_exec::{ComputeExperts, DispatchRows, ExpertExchange, NO_EXPERT, StepError};
use std::ops::Range;

/// Shape of a replica's chunk: rows, values per row, and experts per row.
#[derive(Clone, Copy)]
struct ChunkShape {
    rows: usize,
    width: usize,
    chosen: usize,
}

impl ReplicaMember {
    /// Completes a phase of an exchange: waits until all replicas have.
    fn complete_phase(&self) -> Result<(), StepError> {
        let phase = Self::next(&self.phases);
        self.endpoint.publish(ExchangeLayout::phases(self.replica), phase, self.others());
        for replica in self.others() {
            let waited = self.endpoint.wait(|| {
                let ahead = self.endpoint.load(ExchangeLayout::phases(replica)).wrapping_sub(phase) as i32;
                match ahead {
                    0 | 1 => Some(Ok(())),
                    -1 => None,
                    _ => Some(Err(out_of_step(replica, format!("it is {ahead} phases ahead")))),
                }
            });
            waited.map_err(|error| StepError::Lost(error.to_string()))??;
        }
        Ok(())
    }

    /// Writes rows `chunk` of `own` to the dispatch area.
    fn dispatch(&self, header: &[u32; DISPATCH_WORDS], own: &DispatchRows<'_>, chunk: Range<usize>) {
        let (memory, layout) = (&self.endpoint.memory, &self.layout);
        let rows = &own.rows[chunk.start * own.width..chunk.end * own.width];
        let experts = &own.experts[chunk.start * own.chosen..chunk.end * own.chosen];
        // SAFETY: no replica reads this area now; see the module's invariant.
        unsafe {
            memory.write(layout.dispatch(self.replica), header);
            memory.write_f32(layout.rows(self.replica), rows);
            memory.write(layout.experts(self.replica), experts);
        }
    }

    /// Number of rows of a replica in this exchange. Fails if it is at another exchange.
    fn rows_of(&self, replica: usize, expected: &[u32; DISPATCH_WORDS]) -> Result<usize, StepError> {
        let mut header = [0; DISPATCH_WORDS];
        // SAFETY: the header is published; see the module's invariant.
        unsafe { self.endpoint.memory.read(self.layout.dispatch(replica), &mut header) };
        let [step, exchange, rows, width, chosen] = header;
        if [step, exchange, width, chosen] == [expected[0], expected[1], expected[3], expected[4]] {
            return Ok(rows as usize);
        }
        let why = format!(
            "its exchange (step, number, rows, width, experts) is `{header:?}`, expected `{expected:?}`"
        );
        Err(out_of_step(replica, why))
    }

    /// Appends the rows of a replica's chunk that chose a local expert.
    fn receive(&self, replica: usize, chunk: ChunkShape, local: &Range<usize>, received: &mut ReceivedRows) {
        let ChunkShape { rows: count, width, chosen } = chunk;
        let (memory, layout) = (&self.endpoint.memory, &self.layout);
        let ReceivedRows { rows, experts, from, row_experts } = received;
        row_experts.resize(chosen, NO_EXPERT);
        for row in 0..count {
            // SAFETY: the rows are published; see the module's invariant.
            unsafe { memory.read(layout.experts(replica) + row * chosen, row_experts) };
            let is_local = |expert: &u32| local.contains(&(*expert as usize));
            if !row_experts.iter().any(is_local) {
                continue;
            }
            experts.extend(row_experts.iter().map(|e| if is_local(e) { *e } else { NO_EXPERT }));
            from.push((replica, row));
            let at = rows.len();
            rows.resize(at + width, 0.0);
            // SAFETY: as above.
            unsafe { memory.read_f32(layout.rows(replica) + row * width, &mut rows[at..]) };
        }
    }

    /// Reads the outputs for `count` rows of this replica's chunk.
    fn read_outputs(&self, own: &DispatchRows<'_>, first: usize, count: usize, outputs: &mut [f32]) {
        for row in 0..count {
            for place in 0..own.chosen {
                let entry = (first + row) * own.chosen + place;
                if own.experts[entry] == NO_EXPERT {
                    continue;
                }
                let into = &mut outputs[entry * own.width..][..own.width];
                let at = self.layout.output(self.replica, row, place);
                // SAFETY: all outputs are published; see the module's invariant.
                unsafe { self.endpoint.memory.read_f32(at, into) };
            }
        }
    }
}

impl ExpertExchange for ReplicaMember {
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
        let DispatchRows { width, chosen, .. } = own;
        if width > layout.width || chosen > layout.chosen {
            return Err(StepError::Lost(format!(
                "row of {width} values with {chosen} experts exceeds the exchange of {layout:?}"
            )));
        }
        let (step, number) = (self.step.load(Ordering::Relaxed), Self::next(&self.exchanges));
        let total = own.experts.len() / chosen.max(1);
        let header = [step, number, total as u32, width as u32, chosen as u32];
        let chunk_of = |total: usize, first: usize| total.saturating_sub(first).min(layout.chunk_rows);
        let mut received = locked(&self.received);
        let (mut first, mut most) = (0, 0);
        loop {
            let count = chunk_of(total, first);
            self.dispatch(&header, &own, first.min(total)..first.min(total) + count);
            self.complete_phase()?;
            received.clear();
            for replica in 0..layout.replicas {
                let rows = self.rows_of(replica, &header)?;
                most = most.max(rows);
                let chunk = ChunkShape { rows: chunk_of(rows, first), width, chosen };
                self.receive(replica, chunk, &local, &mut received);
            }
            let ReceivedRows { rows, experts, from, .. } = &*received;
            let store = |entry: usize, output: &[f32]| {
                let (replica, row) = from[entry / chosen];
                let at = layout.output(replica, row, entry % chosen);
                // SAFETY: only this replica writes the outputs of its experts, each once, and none
                // is read now; see the module's invariant.
                unsafe { self.endpoint.memory.write_f32(at, output) };
            };
            if !from.is_empty() {
                compute(DispatchRows { rows, width, experts, chosen }, &store);
            }
            self.complete_phase()?;
            self.read_outputs(&own, first, count, outputs);
            first += layout.chunk_rows;
            if first >= most {
                return Ok(());
            }
        }
    }
}
