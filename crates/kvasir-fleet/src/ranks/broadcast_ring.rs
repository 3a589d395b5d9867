//! [`BroadcastRing`]: a single-producer, multi-consumer broadcast ring buffer in shared memory.
//!
//! Rank 0 writes. Every other rank reads each record exactly once, in order. A record is a header
//! of four words (sequence number, kind, length, checksum) and a body. Positions count words and
//! wrap at 2³²; the ring's length is a power of two.
//!
//! The writer publishes `head` after it has written the words below it. A reader publishes `tail`
//! after it has read the words below it. Words in `tail..head` belong to the readers, all others to
//! the writer. A record longer than the ring is written in parts, as readers free space.
//!
//! A wrong sequence number, length or checksum is [`RingError::OutOfStep`], which ends the group.

use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::Layout;
use crate::ranks::ring_error::RingError;

const HEADER_WORDS: usize = 4;
/// Maximum body of a record.
const MAX_BODY_WORDS: usize = 1 << 28;

/// The state of the writer or of one reader.
pub(crate) struct BroadcastRing {
    /// Index of the ring in the shared memory.
    ring: usize,
    /// Words written or read, modulo 2³².
    position: u32,
    /// Sequence number of the next record.
    sequence_number: u32,
}

impl BroadcastRing {
    /// The writer or a reader of an empty ring.
    pub(crate) fn new(ring: usize) -> Self {
        Self { ring, position: 0, sequence_number: 0 }
    }

    /// Writes a record. Blocks while the slowest reader leaves no free words.
    pub(crate) fn write(&mut self, endpoint: &Endpoint, kind: u32, body: &[u32]) -> Result<(), RingError> {
        let header =
            [self.sequence_number, kind, body.len() as u32, checksum(self.sequence_number ^ kind, body)];
        self.sequence_number = self.sequence_number.wrapping_add(1);
        // Header and body are published together if both fit into the free words.
        let mut unpublished = 0;
        for words in [&header[..], body] {
            let mut rest = words;
            while !rest.is_empty() {
                let mut free = self.free(endpoint, unpublished)?;
                if free == 0 {
                    self.publish(endpoint, &mut unpublished);
                    free = endpoint.wait(|| match self.free(endpoint, 0) {
                        Ok(0) => None,
                        free => Some(free),
                    })??;
                }
                let (part, remaining) = rest.split_at(rest.len().min(free));
                self.copy_in(endpoint, unpublished, part);
                unpublished += part.len() as u32;
                rest = remaining;
            }
        }
        self.publish(endpoint, &mut unpublished);
        Ok(())
    }

    /// Number of free words after `position + unpublished`, bounded by the slowest reader.
    fn free(&self, endpoint: &Endpoint, unpublished: u32) -> Result<usize, RingError> {
        let (head, length) = (self.position.wrapping_add(unpublished), endpoint.layout.ring_words);
        let mut free = length;
        for rank in endpoint.others() {
            let unread = head.wrapping_sub(endpoint.load(Layout::tail(rank, self.ring))) as usize;
            let Some(left) = length.checked_sub(unread) else {
                let why = format!("it has {unread} unread words in a ring of {length}");
                return Err(RingError::OutOfStep { rank, why });
            };
            free = free.min(left);
        }
        Ok(free)
    }

    fn publish(&mut self, endpoint: &Endpoint, unpublished: &mut u32) {
        self.position = self.position.wrapping_add(std::mem::take(unpublished));
        endpoint.publish(Layout::head(self.ring), self.position, endpoint.others());
    }

    /// Copies words to `position + unpublished`; the caller has checked that they are free.
    fn copy_in(&self, endpoint: &Endpoint, unpublished: u32, words: &[u32]) {
        let (ring, length) = (endpoint.layout.ring(self.ring), endpoint.layout.ring_words);
        let at = self.position.wrapping_add(unpublished) as usize & (length - 1);
        let (first, second) = words.split_at(words.len().min(length - at));
        // SAFETY: free words belong to the writer.
        unsafe {
            endpoint.memory.write(ring + at, first);
            endpoint.memory.write(ring, second);
        }
    }

    /// Reads the next record into `body` and returns its kind. Blocks until a record is published.
    pub(crate) fn read(&mut self, endpoint: &Endpoint, body: &mut Vec<u32>) -> Result<u32, RingError> {
        let mut header = [0; HEADER_WORDS];
        self.copy_out(endpoint, &mut header)?;
        let [sequence_number, kind, length, check] = header;
        if sequence_number != self.sequence_number || length as usize > MAX_BODY_WORDS {
            return Err(self.out_of_step(&format!("sequence number {sequence_number} and {length} words")));
        }
        body.resize(length as usize, 0);
        self.copy_out(endpoint, body)?;
        if checksum(sequence_number ^ kind, body) != check {
            return Err(self.out_of_step("a wrong checksum"));
        }
        self.sequence_number = self.sequence_number.wrapping_add(1);
        self.publish_tail(endpoint);
        Ok(kind)
    }

    fn out_of_step(&self, has: &str) -> RingError {
        let why = format!("record {} of ring {} has {has}", self.sequence_number, self.ring);
        RingError::OutOfStep { rank: 0, why }
    }

    /// Copies the next words out. Blocks until all are published, and frees them as it proceeds.
    fn copy_out(&mut self, endpoint: &Endpoint, into: &mut [u32]) -> Result<(), RingError> {
        let (ring, length) = (endpoint.layout.ring(self.ring), endpoint.layout.ring_words);
        let mut done = 0;
        while done < into.len() {
            let unread = || endpoint.load(Layout::head(self.ring)).wrapping_sub(self.position) as usize;
            if unread() == 0 {
                // The writer may be blocked on these words.
                self.publish_tail(endpoint);
                endpoint.wait(|| Some(()).filter(|()| unread() > 0))?;
            }
            let unread = unread();
            if unread > length {
                return Err(self.out_of_step(&format!("{unread} unread words in a ring of {length}")));
            }
            let at = self.position as usize & (length - 1);
            let count = unread.min(into.len() - done).min(length - at);
            // SAFETY: the writer does not overwrite published words that this rank has not read.
            unsafe { endpoint.memory.read(ring + at, &mut into[done..done + count]) };
            self.position = self.position.wrapping_add(count as u32);
            done += count;
        }
        Ok(())
    }

    fn publish_tail(&self, endpoint: &Endpoint) {
        endpoint.publish(Layout::tail(endpoint.rank, self.ring), self.position, std::iter::once(0));
    }
}

/// Checksum of a record: rotate and XOR in sixteen lanes, which the compiler vectorizes.
fn checksum(start: u32, words: &[u32]) -> u32 {
    const LANES: usize = 16;
    let mut lanes = [start; LANES];
    let chunks = words.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, word)| *lane = lane.rotate_left(5) ^ word);
    }
    let mix = |sum: u32, word: &u32| (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B1);
    rest.iter().chain(&lanes).fold(words.len() as u32, mix)
}
