//! [`BroadcastBench`]: benchmark of the step broadcast from rank 0 to another rank.
//!
//! The latency covers encoding, the ring and decoding. The reader is a thread with its own mapping
//! of the shared memory.

use crate::monotonic;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::step_broadcast::{STEP_RING, StepBroadcast};
use crate::ranks::step_words::decode;
use kvasir_exec::{BatchRow, RankControl, RowKind, Step, StepError};
use kvasir_kv::{CacheConfig, CacheError, CacheKind, ClaimRow, Span, StepId, build};
use std::{
    fmt,
    hint::spin_loop,
    io,
    sync::Arc,
    sync::mpsc::{self, TryRecvError},
    thread,
};

/// Broadcasts before the first measured one.
const WARM_UP: usize = 100;
/// Slots per block of the paged KV cache.
const BLOCK: u32 = 16;

/// Parameters of the benchmark: the decode step and the number of broadcasts.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastBench {
    /// Sequences in the decode step.
    pub rows: u32,
    /// Tokens per sequence.
    pub context: u32,
    /// Number of measured broadcasts.
    pub repetitions: usize,
}

/// Why a broadcast cannot be measured.
#[derive(Debug)]
#[allow(missing_docs)] // `Display` documents the variants
pub enum BroadcastError {
    Io(io::Error),
    Cache(CacheError),
    Step(StepError),
    Corrupt(String),
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "shared memory: {error}"),
            Self::Cache(error) => write!(f, "the step cannot be planned: {error}"),
            Self::Step(error) => write!(f, "the step cannot be sent: {error}"),
            Self::Corrupt(why) => write!(f, "the received step is corrupt: {why}"),
        }
    }
}

impl std::error::Error for BroadcastError {}

impl BroadcastBench {
    /// Returns the latency of each repetition in nanoseconds, and the size of the encoded step in
    /// bytes.
    ///
    /// # Errors
    /// The shared memory cannot be created, or the step cannot be planned, sent or decoded.
    pub fn run(&self) -> Result<(Vec<u64>, usize), BroadcastError> {
        let step = self.step().map_err(BroadcastError::Cache)?;
        let (member, memory) = Member::create(2).map_err(BroadcastError::Io)?;
        let reader = Member::open(&memory, 2, 1).map_err(BroadcastError::Io)?;
        let count = self.repetitions + WARM_UP;
        let (received_to, received) = mpsc::channel();
        let reading = thread::spawn(move || {
            let (mut ring, mut words, mut step) =
                (BroadcastRing::new(STEP_RING), Vec::new(), Step::default());
            for _ in 0..count {
                ring.read(&reader.endpoint, &mut words).map_err(|error| error.to_string())?;
                decode(&words, &mut step)?;
                // The channel is closed only if the measuring thread has ended.
                let _ = received_to.send((monotonic::now(), words.len() * 4));
            }
            Ok::<_, String>(())
        });
        let mut broadcast = StepBroadcast::new(Arc::new(member));
        let (mut times, mut bytes) = (Vec::new(), 0);
        'measured: for _ in 0..count {
            let sent = monotonic::now();
            broadcast.begin_step(&step).map_err(BroadcastError::Step)?;
            // Polls, so that the next broadcast starts before the reader goes to sleep.
            let (at, size) = loop {
                match received.try_recv() {
                    Ok(measured) => break measured,
                    Err(TryRecvError::Empty) => spin_loop(),
                    Err(TryRecvError::Disconnected) => break 'measured,
                }
            };
            times.push(at.saturating_sub(sent));
            bytes = size;
        }
        match reading.join() {
            Ok(Ok(())) => Ok((times.split_off(WARM_UP.min(times.len())), bytes)),
            Ok(Err(why)) => Err(BroadcastError::Corrupt(why)),
            Err(_) => Err(BroadcastError::Corrupt("the reading thread has panicked".into())),
        }
    }

    /// Plans a decode step over a paged KV cache.
    fn step(&self) -> Result<Step, CacheError> {
        let slots_per_sequence = self.context.next_multiple_of(BLOCK);
        let config = CacheConfig {
            max_sequences: self.rows,
            block_size: BLOCK,
            ..CacheConfig::new(self.rows.saturating_mul(slots_per_sequence))
        };
        let mut cache = build(CacheKind::Paged, &config)?;
        let mut step = Step::default();
        let sequences = (0..self.rows).map(|_| cache.open()).collect::<Result<Vec<_>, _>>()?;
        for (id, tokens) in [(StepId(1), self.context - 1), (StepId(2), 1)] {
            let rows: Vec<_> = sequences.iter().map(|seq| ClaimRow::new(*seq, tokens)).collect();
            cache.claim(id, &rows)?;
            cache.plan(id, &mut step.plan)?;
            cache.retire(id)?;
        }
        step.batch.reset(StepId(2));
        for (row, seq) in sequences.into_iter().enumerate() {
            let (kind, tokens) = (RowKind::Decode, Span::new(row, 1));
            step.batch.tokens.push(row as u32);
            step.batch.rows.push(BatchRow { seq, kind, tokens, ..BatchRow::default() });
        }
        Ok(step)
    }
}
