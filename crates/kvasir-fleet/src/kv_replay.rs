//! The newest batches of KV events of one stream, and the replay protocol over them: a client sends a
//! sequence number of 8 bytes, and receives the kept batches from it on, then the number -1.

use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use zeromq::{RouterSocket, SocketRecv, SocketSend, ZmqMessage};

/// Sequence number behind the last replayed batch.
const END: [u8; 8] = (-1_i64).to_be_bytes();
/// Time in which a client of a replay must take a batch.
const SEND_TIME: Duration = Duration::from_secs(5);

/// A payload that counts towards the bytes in memory as long as a queue or buffer refers to it.
pub(crate) struct Payload {
    bytes: Vec<u8>,
    in_memory: Arc<AtomicUsize>,
}

impl Payload {
    pub(crate) fn shared(bytes: Vec<u8>, in_memory: &Arc<AtomicUsize>) -> Bytes {
        in_memory.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Self { bytes, in_memory: in_memory.clone() })
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.in_memory.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

/// The newest batches of a stream.
#[derive(Clone)]
pub(crate) struct ReplayBuffer {
    kept: Arc<Mutex<Kept>>,
    max_batches: usize,
    max_bytes: usize,
}

impl ReplayBuffer {
    pub(crate) fn new(max_batches: usize, max_bytes: usize) -> Self {
        Self { kept: Arc::default(), max_batches, max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No holder of the lock can leave it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the kept batches.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Adds a batch, and drops the oldest beyond the limits.
    pub(crate) fn push(&self, number: u64, payload: Bytes) {
        let mut kept = self.lock();
        kept.bytes += payload.len();
        kept.batches.push_back((number, payload));
        while kept.batches.len() > self.max_batches || kept.bytes > self.max_bytes {
            let Some((_, oldest)) = kept.batches.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }

    /// The kept batches from a number on.
    fn from(&self, start: u64) -> Vec<(u64, Bytes)> {
        let kept = self.lock();
        let first = kept.batches.partition_point(|(number, _)| *number < start);
        kept.batches.range(first..).cloned().collect()
    }

    /// Answers requests for replays. Malformed ones are dropped.
    pub(crate) async fn serve(self, mut socket: RouterSocket) {
        while let Ok(request) = socket.recv().await {
            let frames = request.into_vec();
            // A REQ socket sends an empty frame after its identity; a DEALER may leave it out.
            let Some((start, envelope)) = frames.split_last() else { continue };
            let is_sound = envelope.len() == 1 || (envelope.len() == 2 && envelope[1].is_empty());
            let Some(start) = <[u8; 8]>::try_from(&start[..]).ok().filter(|_| is_sound) else { continue };
            let batches = self.from(u64::from_be_bytes(start)).into_iter();
            let batches = batches.map(|(number, payload)| (number.to_be_bytes(), payload));
            for (number, payload) in batches.chain([(END, Bytes::new())]) {
                let number = Bytes::copy_from_slice(&number);
                let frames: Vec<Bytes> = envelope.iter().cloned().chain([number, payload]).collect();
                let Ok(message) = ZmqMessage::try_from(frames) else { break };
                if !matches!(timeout(SEND_TIME, socket.send(message)).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_batches_are_kept_within_both_limits() {
        let in_memory = Arc::default();
        let buffer = ReplayBuffer::new(10, 50);
        for number in 0..100 {
            buffer.push(number, Payload::shared(vec![0; 4], &in_memory));
        }
        let numbers = |start| buffer.from(start).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!(numbers(0), (90..100).collect::<Vec<_>>());
        assert_eq!((numbers(97), numbers(100)), (vec![97, 98, 99], vec![]));
        assert_eq!((buffer.bytes(), in_memory.load(Ordering::Relaxed)), (40, 40));
        buffer.push(100, Payload::shared(vec![0; 30], &in_memory));
        assert_eq!((numbers(0), buffer.bytes()), (vec![95, 96, 97, 98, 99, 100], 50));
        buffer.push(101, Payload::shared(vec![0; 60], &in_memory));
        assert_eq!((numbers(0), in_memory.load(Ordering::Relaxed)), (vec![], 0));
    }
}
