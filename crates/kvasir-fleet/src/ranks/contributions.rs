//! Collectives over shared memory: sums and concatenations of what each rank contributes.
//!
//! A contribution is exchanged in *pieces* of limited size. Each rank has room for two, and counts the
//! pieces that it has published. Piece `n` of a rank:
//!
//! 1. The rank waits until every other one has published `n` pieces, which is so after a full exchange.
//! 2. It writes the piece to room `n % 2`, with a header, and publishes the count `n + 1`.
//! 3. It waits for each rank, in rank order, to have published `n + 1` pieces, and reads its piece `n`.
//!
//! A room is free when it is written: piece `n` replaces piece `n - 2`, and a rank that has published `n`
//! pieces has read all pieces before its last one, `n - 1`.
//!
//! Every rank accumulates in rank order, so all get the same bits. The header says which step, which
//! collective of the step, what kind and how long; ranks that differ are out of step, and fail. A rank
//! that cannot run a step publishes a piece that says so in place of its first one (*abort*).

use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::{Layout, PIECE_HEADER};
use crate::ranks::ring_error::RingError;
use crate::ranks::sync::{AtomicBool, AtomicU32, Ordering};

/// What the ranks do with their contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    Sum = 1,
    Join = 2,
    Aborted = 3,
}

/// The collectives of one rank. One thread at a time calls them.
pub(crate) struct Contributions {
    /// Pieces exchanged so far.
    pieces: AtomicU32,
    /// The step that runs, and the collectives that it has called.
    step: AtomicU32,
    calls: AtomicU32,
    /// Whether another rank has aborted the step.
    aborted: AtomicBool,
}

impl Contributions {
    pub(crate) fn new() -> Self {
        let (pieces, step, calls) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Self { pieces, step, calls, aborted: AtomicBool::new(false) }
    }

    /// Begins the next step, and returns its number.
    pub(crate) fn begin_step(&self) -> u32 {
        self.calls.store(0, Ordering::Relaxed);
        self.aborted.store(false, Ordering::Relaxed);
        let next = self.step.load(Ordering::Relaxed).wrapping_add(1);
        self.step.store(next, Ordering::Relaxed);
        next
    }

    /// Whether the step has called a collective.
    pub(crate) fn has_begun(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    /// Whether another rank has aborted the step.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Aborts the step before its first collective: the others stop at theirs.
    pub(crate) fn abort(&self, endpoint: &Endpoint) -> Result<(), RingError> {
        let call = self.begin_call(Kind::Aborted, 0);
        self.contribute(endpoint, &call, &[]).map(drop)
    }

    /// Replaces `rows` by the sum over all ranks, accumulated in rank order from 0.
    pub(crate) fn sum(&self, endpoint: &Endpoint, rows: &mut [f32]) -> Result<(), RingError> {
        let call = self.begin_call(Kind::Sum, rows.len());
        for part in rows.chunks_mut(endpoint.layout.piece) {
            let piece = self.contribute(endpoint, &call, part)?;
            part.fill(0.0);
            for rank in 0..endpoint.layout.ranks {
                let at = self.receive(endpoint, &call, piece, rank)?;
                // SAFETY: the piece is published, and stays until this rank has published its next.
                unsafe { endpoint.memory.add(at, part) };
            }
        }
        Ok(())
    }

    /// Concatenates the ranks' rows of `width` numbers in rank order.
    pub(crate) fn join(
        &self,
        endpoint: &Endpoint,
        rows: &[f32],
        width: usize,
        all: &mut [f32],
    ) -> Result<(), RingError> {
        let call = self.begin_call(Kind::Join, rows.len());
        let (width, ranks) = (width.max(1), endpoint.layout.ranks);
        for (number, part) in rows.chunks(endpoint.layout.piece).enumerate() {
            let start = number * endpoint.layout.piece;
            let piece = self.contribute(endpoint, &call, part)?;
            for rank in 0..ranks {
                let at = self.receive(endpoint, &call, piece, rank)?;
                let mut done = 0;
                while done < part.len() {
                    let (row, column) = ((start + done) / width, (start + done) % width);
                    let count = (width - column).min(part.len() - done);
                    let to = (row * ranks + rank) * width + column;
                    let Some(into) = all.get_mut(to..to + count) else { break };
                    // SAFETY: as in `sum`.
                    unsafe { endpoint.memory.read_numbers(at + done, into) };
                    done += count;
                }
            }
        }
        Ok(())
    }

    /// The header of the pieces of the next collective.
    fn begin_call(&self, kind: Kind, length: usize) -> [u32; PIECE_HEADER] {
        let call = self.calls.load(Ordering::Relaxed);
        self.calls.store(call.wrapping_add(1), Ordering::Relaxed);
        [self.step.load(Ordering::Relaxed), call, kind as u32, length as u32]
    }

    /// Publishes a piece of this rank, and returns its number.
    fn contribute(
        &self,
        endpoint: &Endpoint,
        call: &[u32; PIECE_HEADER],
        numbers: &[f32],
    ) -> Result<u32, RingError> {
        let piece = self.pieces.load(Ordering::Relaxed);
        for rank in endpoint.others() {
            self.wait_for(endpoint, rank, piece, 0)?;
        }
        // SAFETY: all others have read what is in this room; see the module's page.
        unsafe {
            endpoint.memory.write(endpoint.layout.piece(endpoint.rank, piece), call);
            endpoint.memory.write_numbers(endpoint.layout.numbers(endpoint.rank, piece), numbers);
        }
        self.pieces.store(piece.wrapping_add(1), Ordering::Relaxed);
        endpoint.publish(Layout::pieces(endpoint.rank), piece.wrapping_add(1), endpoint.others());
        Ok(piece)
    }

    /// Waits until a rank has published `piece + more` pieces.
    fn wait_for(&self, endpoint: &Endpoint, rank: usize, piece: u32, more: u32) -> Result<(), RingError> {
        endpoint.wait(|| {
            let ahead = endpoint.load(Layout::pieces(rank)).wrapping_sub(piece) as i32;
            match ahead {
                _ if ahead >= more as i32 && ahead <= 2 => Some(Ok(())),
                -1..=2 => None,
                _ => {
                    let why = format!("its collectives are {ahead} ahead");
                    Some(Err(RingError::Garbled { rank, why }))
                }
            }
        })?
    }

    /// Waits for a rank's piece and checks its header. Returns where its numbers are.
    fn receive(
        &self,
        endpoint: &Endpoint,
        call: &[u32; PIECE_HEADER],
        piece: u32,
        rank: usize,
    ) -> Result<usize, RingError> {
        self.wait_for(endpoint, rank, piece, 1)?;
        let mut header = [0; PIECE_HEADER];
        // SAFETY: as in `sum`.
        unsafe { endpoint.memory.read(endpoint.layout.piece(rank, piece), &mut header) };
        let [step, number, kind, _] = header;
        if header == *call {
            return Ok(endpoint.layout.numbers(rank, piece));
        }
        Err(if kind == Kind::Aborted as u32 && (step, number) == (call[0], 0) {
            self.aborted.store(true, Ordering::Relaxed);
            RingError::Aborted(rank)
        } else {
            let why = format!("its collective is {header:?} (step, number, kind, length), not {call:?}");
            RingError::Garbled { rank, why }
        })
    }
}
