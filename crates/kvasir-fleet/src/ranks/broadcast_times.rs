//! Measures how long a step takes from rank 0 to another rank.

use crate::monotonic;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::step_broadcast::{STEPS, StepBroadcast};
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

/// Steps between the first and the first that is measured.
const WARM_UP: usize = 100;
/// Slots per block of the step's cache.
const BLOCK: u32 = 16;

/// A decode step that is broadcast again and again.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastBench {
    /// Sequences of the step.
    pub rows: u32,
    /// Tokens of each sequence.
    pub context: u32,
    /// Measured broadcasts.
    pub repetitions: usize,
}

/// Why a broadcast cannot be measured.
#[derive(Debug)]
#[allow(missing_docs)] // the variants: see their messages
pub enum BroadcastError {
    Io(io::Error),
    Cache(CacheError),
    Step(StepError),
    Garbled(String),
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "shared memory: {error}"),
            Self::Cache(error) => write!(f, "the step cannot be planned: {error}"),
            Self::Step(error) => write!(f, "the step cannot be sent: {error}"),
            Self::Garbled(why) => write!(f, "the step was received garbled: {why}"),
        }
    }
}

impl std::error::Error for BroadcastError {}

impl BroadcastBench {
    /// Nanoseconds from the call that sends the step until it is decoded on another thread, which has
    /// mapped the shared memory by itself as a rank does; one per repetition. And the bytes of the step.
    pub fn run(&self) -> Result<(Vec<u64>, usize), BroadcastError> {
        let step = self.step().map_err(BroadcastError::Cache)?;
        let (member, memory) = Member::create(2).map_err(BroadcastError::Io)?;
        let reader = Member::open(&memory, 2, 1).map_err(BroadcastError::Io)?;
        let count = self.repetitions + WARM_UP;
        let (received_to, received) = mpsc::channel();
        let reading = thread::spawn(move || {
            let (mut ring, mut words, mut step) = (BroadcastRing::new(STEPS), Vec::new(), Step::default());
            for _ in 0..count {
                ring.read(&reader.endpoint, &mut words).map_err(|error| error.to_string())?;
                decode(&words, &mut step)?;
                // Fails only if the measuring thread has ended.
                let _ = received_to.send((monotonic::now(), words.len() * 4));
            }
            Ok::<_, String>(())
        });
        let mut broadcast = StepBroadcast::new(Arc::new(member));
        let (mut times, mut bytes) = (Vec::new(), 0);
        'measured: for _ in 0..count {
            let sent = monotonic::now();
            broadcast.begin(&step).map_err(BroadcastError::Step)?;
            // Both sides poll: a thread that sleeps here would let the other one fall asleep.
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
            Ok(Err(why)) => Err(BroadcastError::Garbled(why)),
            Err(_) => Err(BroadcastError::Garbled("the reading thread has panicked".into())),
        }
    }

    /// A decode step over a paged cache.
    fn step(&self) -> Result<Step, CacheError> {
        let each = self.context.next_multiple_of(BLOCK);
        let config = CacheConfig {
            max_sequences: self.rows,
            block_size: BLOCK,
            ..CacheConfig::new(self.rows.saturating_mul(each))
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
