//! Control by requests: each rank schedules by itself, and compares a hash of each step with rank 0's.
//!
//! Rank 0 writes the hash before a step, and its result and output behind it. The others take both: only
//! rank 0 samples and measures, so all engines go on from the same tokens and times.

use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::packed_bytes::{pack, unpack};
use crate::ranks::step_broadcast::STEPS;
use crate::ranks::step_words::encode;
use kvasir_exec::{Output, PoolRow, RankControl, Step, StepError};
use kvasir_kv::Slot;
use std::{fmt::Write, ops::Range, sync::Arc};

/// Kinds of records in the ring of steps.
mod record {
    /// Words: hash of a step, low and high.
    pub(super) const HASH: u32 = 11;
    /// Words: the length in bytes, and an encoded result: the output, or why the step failed.
    pub(super) const RESULT: u32 = 12;
}

/// The control of each rank with `requests`.
pub struct StepHashes {
    member: Arc<Member>,
    ring: BroadcastRing,
    words: Vec<u32>,
}

impl StepHashes {
    /// The control of the rank of `member`. A rank has one.
    pub fn new(member: Arc<Member>) -> Self {
        Self { member, ring: BroadcastRing::new(STEPS), words: Vec::new() }
    }

    fn leads(&self) -> bool {
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
            other => Err(StepError::Lost(format!("a record of kind {other} came in place of {kind}"))),
        }
    }

    /// The result of rank 0 in place of this rank's.
    fn take_result(&mut self, step: &mut Step) -> Result<(), StepError> {
        self.read(record::RESULT)?;
        let garbled = || StepError::Lost("the result of a step is garbled".into());
        let bytes = unpack(&self.words).ok_or_else(garbled)?;
        let result: Result<Output, String> = rmp_serde::from_slice(&bytes).map_err(|_| garbled())?;
        step.output = result.map_err(StepError::Failed)?;
        Ok(())
    }

    fn send_result(&mut self, step: &Step, result: &Result<(), StepError>) -> Result<(), StepError> {
        let encoded = match result {
            Ok(()) => rmp_serde::to_vec_named(&Ok::<_, String>(&step.output)),
            Err(StepError::Failed(why) | StepError::OutOfMemory(why) | StepError::Lost(why)) => {
                rmp_serde::to_vec_named(&Err::<&Output, _>(why))
            }
        };
        let bytes = encoded.map_err(|error| StepError::Lost(format!("an output: {error}")))?;
        let mut words = Vec::new();
        pack(&bytes, &mut words);
        self.write(record::RESULT, &words)
    }
}

impl RankControl for StepHashes {
    /// Every engine binds and releases by itself.
    fn bind(&mut self, _: PoolRow, _: u32) -> Result<(), StepError> {
        Ok(())
    }

    fn release(&mut self, _: &[Range<Slot>]) -> Result<(), StepError> {
        Ok(())
    }

    fn begin(&mut self, step: &Step) -> Result<(), StepError> {
        self.member.contributions.begin_step();
        self.words.clear();
        encode(step, &mut self.words);
        let hash = hash(&self.words);
        let own = [hash as u32, (hash >> 32) as u32];
        if self.leads() {
            return self.write(record::HASH, &own);
        }
        self.read(record::HASH)?;
        if self.words == own {
            return Ok(());
        }
        // Ends rank 0's wait in the step, which reports its own.
        self.member.endpoint.lose(self.member.rank());
        let rank = self.member.rank();
        Err(StepError::Lost(format!("rank {rank} diverges from rank 0; its step is {}", summary(step))))
    }

    fn end(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
        let result = self.member.settle(result);
        if let Err(StepError::Lost(why)) = result {
            return Err(StepError::Lost(format!(
                "{why}; the step of rank {} is {}",
                self.member.rank(),
                summary(step)
            )));
        }
        if self.leads() {
            self.send_result(step, &result)?;
            return result;
        }
        self.take_result(step)
    }
}

/// A hash of words: FNV-1a over 32-bit words, with a final mix.
fn hash(words: &[u32]) -> u64 {
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ u64::from(*word)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}

/// The rows of a step, for the log: request, kind, tokens, cached tokens.
fn summary(step: &Step) -> String {
    let batch = &step.batch;
    let mut text = format!("{} ({:?}, {} tokens):", batch.step.0, batch.kind, batch.tokens.len());
    for row in &batch.rows {
        let (request, kind, tokens, cached) = (row.request, row.kind, row.tokens.len, row.cached);
        // Writing to a string does not fail.
        let _ = write!(text, " [{request} {kind:?} {tokens} behind {cached}]");
    }
    text
}
