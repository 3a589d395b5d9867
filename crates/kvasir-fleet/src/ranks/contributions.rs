//! [`Contributions`]: all-reduce and all-gather over shared memory, double-buffered.
//!
//! A collective exchanges its data in *chunks* of limited size (as NCCL does). Each rank has two
//! chunk buffers and publishes the number of chunks that it has written. For chunk `n`, a rank:
//!
//! 1. waits until every other rank has published `n` chunks; true at once after a complete
//!    exchange;
//! 2. writes header and data to its buffer `n % 2`, and publishes `n + 1`;
//! 3. for each rank in rank order: waits until it has published `n + 1` chunks, and reads its chunk
//!    `n`.
//!
//! Invariant: no buffer is overwritten while it is read. Chunk `n` overwrites chunk `n - 2`, and a
//! rank that has published `n` chunks has finished reading all chunks up to `n - 2`.
//!
//! Every rank accumulates in rank order, so all get the same bits. The header holds step, index of
//! the collective in the step, kind and length. Ranks whose headers differ are out of step, which
//! is an error. A rank that cannot run a step publishes an *abort* header as its first chunk.
//!
//! `loom/` checks the protocol; `tests` compares the bits with `kvasir_testkit::ranks::ThreadRank`.

use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::{CHUNK_HEADER_WORDS, Layout};
use crate::ranks::ring_error::RingError;
use crate::ranks::sync::{AtomicBool, AtomicU32, Ordering};

/// The kind of a collective, as in the chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    AllReduce = 1,
    AllGather = 2,
    Abort = 3,
}

/// The collectives of one rank. Only one thread at a time may call them.
pub(crate) struct Contributions {
    /// Chunks published so far.
    chunks: AtomicU32,
    /// Number of the running step.
    step: AtomicU32,
    /// Collectives called in the step.
    calls: AtomicU32,
    /// Whether another rank has aborted the step.
    aborted: AtomicBool,
}

impl Contributions {
    pub(crate) fn new() -> Self {
        let (chunks, step, calls) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Self { chunks, step, calls, aborted: AtomicBool::new(false) }
    }

    /// Begins the next step and returns its number.
    pub(crate) fn begin_step(&self) -> u32 {
        self.calls.store(0, Ordering::Relaxed);
        self.aborted.store(false, Ordering::Relaxed);
        let next = self.step.load(Ordering::Relaxed).wrapping_add(1);
        self.step.store(next, Ordering::Relaxed);
        next
    }

    /// Whether the step has called a collective.
    pub(crate) fn has_called_collective(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    /// Whether another rank has aborted the step.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Aborts the step before its first collective, where every other rank then fails with
    /// [`RingError::Aborted`].
    pub(crate) fn abort(&self, endpoint: &Endpoint) -> Result<(), RingError> {
        let call = self.begin_call(Kind::Abort, 0);
        self.publish_chunk(endpoint, &call, &[]).map(drop)
    }

    /// Replaces `rows` by the sum over all ranks, accumulated in rank order from 0.
    pub(crate) fn all_reduce(&self, endpoint: &Endpoint, rows: &mut [f32]) -> Result<(), RingError> {
        let call = self.begin_call(Kind::AllReduce, rows.len());
        for part in rows.chunks_mut(endpoint.layout.chunk_words) {
            let chunk = self.publish_chunk(endpoint, &call, part)?;
            part.fill(0.0);
            for rank in 0..endpoint.layout.ranks {
                let at = self.receive_chunk(endpoint, &call, chunk, rank)?;
                // SAFETY: the chunk is published, and not overwritten before this rank's next
                // chunk.
                unsafe { endpoint.memory.add_f32(at, part) };
            }
        }
        Ok(())
    }

    /// Concatenates the ranks' rows of `width` values in rank order.
    pub(crate) fn all_gather(
        &self,
        endpoint: &Endpoint,
        rows: &[f32],
        width: usize,
        all: &mut [f32],
    ) -> Result<(), RingError> {
        let call = self.begin_call(Kind::AllGather, rows.len());
        let (width, ranks) = (width.max(1), endpoint.layout.ranks);
        for (index, part) in rows.chunks(endpoint.layout.chunk_words).enumerate() {
            let start = index * endpoint.layout.chunk_words;
            let chunk = self.publish_chunk(endpoint, &call, part)?;
            for rank in 0..ranks {
                let at = self.receive_chunk(endpoint, &call, chunk, rank)?;
                let mut done = 0;
                while done < part.len() {
                    let (row, column) = ((start + done) / width, (start + done) % width);
                    let count = (width - column).min(part.len() - done);
                    let to = (row * ranks + rank) * width + column;
                    let Some(into) = all.get_mut(to..to + count) else { break };
                    // SAFETY: as in `all_reduce`.
                    unsafe { endpoint.memory.read_f32(at + done, into) };
                    done += count;
                }
            }
        }
        Ok(())
    }

    /// Begins a collective and returns the header of its chunks.
    fn begin_call(&self, kind: Kind, length: usize) -> [u32; CHUNK_HEADER_WORDS] {
        let call = self.calls.load(Ordering::Relaxed);
        self.calls.store(call.wrapping_add(1), Ordering::Relaxed);
        [self.step.load(Ordering::Relaxed), call, kind as u32, length as u32]
    }

    /// Publishes this rank's next chunk and returns its index.
    fn publish_chunk(
        &self,
        endpoint: &Endpoint,
        call: &[u32; CHUNK_HEADER_WORDS],
        values: &[f32],
    ) -> Result<u32, RingError> {
        let chunk = self.chunks.load(Ordering::Relaxed);
        for rank in endpoint.others() {
            self.wait_for(endpoint, rank, chunk, 0)?;
        }
        // SAFETY: all other ranks have read this buffer; see the module's invariant.
        unsafe {
            endpoint.memory.write(endpoint.layout.chunk(endpoint.rank, chunk), call);
            endpoint.memory.write_f32(endpoint.layout.chunk_data(endpoint.rank, chunk), values);
        }
        self.chunks.store(chunk.wrapping_add(1), Ordering::Relaxed);
        endpoint.publish(Layout::chunks(endpoint.rank), chunk.wrapping_add(1), endpoint.others());
        Ok(chunk)
    }

    /// Waits until a rank has published `chunk + more` chunks.
    fn wait_for(&self, endpoint: &Endpoint, rank: usize, chunk: u32, more: u32) -> Result<(), RingError> {
        endpoint.wait(|| {
            let ahead = endpoint.load(Layout::chunks(rank)).wrapping_sub(chunk) as i32;
            match ahead {
                _ if ahead >= more as i32 && ahead <= 2 => Some(Ok(())),
                -1..=2 => None,
                _ => {
                    let why = format!("it is {ahead} chunks ahead");
                    Some(Err(RingError::OutOfStep { rank, why }))
                }
            }
        })?
    }

    /// Waits for a rank's chunk and checks its header. Returns the first word of its data.
    fn receive_chunk(
        &self,
        endpoint: &Endpoint,
        call: &[u32; CHUNK_HEADER_WORDS],
        chunk: u32,
        rank: usize,
    ) -> Result<usize, RingError> {
        self.wait_for(endpoint, rank, chunk, 1)?;
        let mut header = [0; CHUNK_HEADER_WORDS];
        // SAFETY: as in `all_reduce`.
        unsafe { endpoint.memory.read(endpoint.layout.chunk(rank, chunk), &mut header) };
        let [step, index, kind, _] = header;
        if header == *call {
            return Ok(endpoint.layout.chunk_data(rank, chunk));
        }
        Err(if kind == Kind::Abort as u32 && (step, index) == (call[0], 0) {
            self.aborted.store(true, Ordering::Relaxed);
            RingError::Aborted(rank)
        } else {
            let why = format!(
                "its chunk header (step, collective, kind, length) is `{header:?}`, expected `{call:?}`"
            );
            RingError::OutOfStep { rank, why }
        })
    }
}
