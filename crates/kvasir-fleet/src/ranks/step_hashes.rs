//! [`StepHashes`]: the [`RankControl`] of every rank with `--rank-control requests`.
//!
//! 1. Before a step, rank 0 broadcasts its hash; every other rank compares its own.
//! 2. After a step, rank 0 broadcasts its result and output, which replace those of every other
//!    rank.
//!
//! So all engines continue with the tokens and step times of rank 0, which is the only one that
//! samples. A differing hash ends the group.

use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::packed_bytes::{decode_bytes, encode_bytes};
use crate::ranks::step_broadcast::STEP_RING;
use crate::ranks::step_words::encode;
use kvasir_exec::{Output, PoolRow, RankControl, Step, StepError};
use kvasir_kv::{GroupId, Slot};
use std::{fmt::Write, ops::Range, sync::Arc};

/// Record kinds of the step ring; distinct from those of `step_broadcast`.
mod record {
    /// Words: hash of a step, low and high.
    pub(super) const HASH: u32 = 11;
    /// Words: the length in bytes, and an encoded result: the output, or the error message.
    pub(super) const RESULT: u32 = 12;
}

/// Compares the steps of replicated engines.
pub struct StepHashes {
    member: Arc<Member>,
    ring: BroadcastRing,
    words: Vec<u32>,
}

impl StepHashes {
    /// The control of the rank of `member`. A rank must have one control.
    pub fn new(member: Arc<Member>) -> Self {
        Self { member, ring: BroadcastRing::new(STEP_RING), words: Vec::new() }
    }

    fn is_rank_0(&self) -> bool {
        self.member.rank() == 0
    }

    fn write(&mut self, kind: u32, words: &[u32]) -> Result<(), StepError> {
        let written = self.ring.write(&self.member.endpoint, kind, words);
        written.map_err(|error| self.member.step_error(&error))
    }

    /// Reads the next record, which must be of this kind.
    fn read(&mut self, kind: u32) -> Result<(), StepError> {
        let read = self.ring.read(&self.member.endpoint, &mut self.words);
        match read.map_err(|error| self.member.step_error(&error))? {
            read if read == kind => Ok(()),
            other => Err(StepError::Lost(format!("record of rank 0 has kind `{other}`, expected `{kind}`"))),
        }
    }

    /// Replaces this rank's output and result by those of rank 0.
    fn receive_result(&mut self, step: &mut Step) -> Result<(), StepError> {
        self.read(record::RESULT)?;
        let corrupt = || StepError::Lost("step result of rank 0 cannot be decoded".into());
        let bytes = decode_bytes(&self.words).ok_or_else(corrupt)?;
        let result: Result<Output, String> = rmp_serde::from_slice(&bytes).map_err(|_| corrupt())?;
        step.output = result.map_err(StepError::Failed)?;
        Ok(())
    }

    /// Broadcasts the output and the result of a step.
    fn send_result(&mut self, step: &Step, result: &Result<(), StepError>) -> Result<(), StepError> {
        let encoded = match result {
            Ok(()) => rmp_serde::to_vec_named(&Ok::<_, String>(&step.output)),
            Err(StepError::Failed(why) | StepError::OutOfMemory(why) | StepError::Lost(why)) => {
                rmp_serde::to_vec_named(&Err::<&Output, _>(why))
            }
        };
        let bytes =
            encoded.map_err(|error| StepError::Lost(format!("step result cannot be encoded: {error}")))?;
        let mut words = Vec::new();
        encode_bytes(&bytes, &mut words);
        self.write(record::RESULT, &words)
    }
}

impl RankControl for StepHashes {
    /// Nothing: every rank's engine binds and releases its own sequences.
    fn bind(&mut self, _: PoolRow, _: u32) -> Result<(), StepError> {
        Ok(())
    }

    fn release(&mut self, _: GroupId, _: &[Range<Slot>]) -> Result<(), StepError> {
        Ok(())
    }

    fn begin_step(&mut self, step: &Step) -> Result<(), StepError> {
        self.member.contributions.begin_step();
        self.words.clear();
        encode(step, &mut self.words);
        let hash = hash(&self.words);
        let own = [hash as u32, (hash >> 32) as u32];
        if self.is_rank_0() {
            return self.write(record::HASH, &own);
        }
        self.read(record::HASH)?;
        if self.words == own {
            return Ok(());
        }
        // Rank 0's collectives then fail, and it logs its own step.
        self.member.endpoint.mark_lost(self.member.rank());
        let rank = self.member.rank();
        Err(StepError::Lost(format!("rank {rank} diverges from rank 0; its step is {}", summary(step))))
    }

    fn end_step(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
        let result = self.member.finish_step(result);
        if let Err(StepError::Lost(why)) = result {
            return Err(StepError::Lost(format!(
                "{why}; the step of rank {} is {}",
                self.member.rank(),
                summary(step)
            )));
        }
        if self.is_rank_0() {
            self.send_result(step, &result)?;
            return result;
        }
        self.receive_result(step)
    }
}

/// FNV-1a over 32-bit words, with a final mix.
fn hash(words: &[u32]) -> u64 {
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ u64::from(*word)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}

/// The batch rows of a step for the log: request, kind, fed tokens, cached tokens.
fn summary(step: &Step) -> String {
    let batch = &step.batch;
    let mut text = format!("{} ({:?}, {} tokens):", batch.step.0, batch.kind, batch.tokens.len());
    for row in &batch.rows {
        let (request, kind, tokens, cached) = (row.request, row.kind, row.tokens.len, row.cached);
        // Writing to a string does not fail.
        let _ = write!(text, " [{request} {kind:?} {tokens} fed, {cached} cached]");
    }
    text
}
