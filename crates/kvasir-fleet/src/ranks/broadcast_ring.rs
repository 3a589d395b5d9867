//! [`BroadcastRing`]: a ring buffer through which one rank sends records to all others.
//!
//! Rank 0 writes, every other rank reads each record once and in order. A record is a header of four
//! words (number, kind, length, checksum) and its body. Positions count words and wrap at 2³²; the
//! ring's length is a power of two.
//!
//! The writer publishes `head` after it has written the words before it. A reader publishes its `tail`
//! after it has read the words before that. So the words `tail..head` belong to the readers, the others
//! to the writer. A record may be longer than the ring: it is then written as readers make room.
//!
//! A record whose number, length or checksum is wrong is an error: the group ends.

use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::Layout;
use crate::ranks::ring_error::RingError;

const HEADER: usize = 4;
/// Longest body of a record, in words.
const LONGEST: usize = 1 << 28;

/// One end of a ring: the writer's of rank 0, or a reader's.
pub(crate) struct BroadcastRing {
    number: usize,
    /// Words written or read.
    position: u32,
    /// Records written or read.
    records: u32,
}

impl BroadcastRing {
    /// The end of ring `number` that belongs to the rank of `endpoint`.
    pub(crate) fn new(number: usize) -> Self {
        Self { number, position: 0, records: 0 }
    }

    /// Writes a record. Waits while the slowest reader leaves no room.
    pub(crate) fn write(&mut self, endpoint: &Endpoint, kind: u32, body: &[u32]) -> Result<(), RingError> {
        let header = [self.records, kind, body.len() as u32, checksum(self.records ^ kind, body)];
        self.records = self.records.wrapping_add(1);
        // Published with the body unless that is longer than what is free.
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
                let (now, later) = rest.split_at(rest.len().min(free));
                self.copy_in(endpoint, unpublished, now);
                unpublished += now.len() as u32;
                rest = later;
            }
        }
        self.publish(endpoint, &mut unpublished);
        Ok(())
    }

    /// Words that no reader still needs, behind `unpublished` more than the position.
    fn free(&self, endpoint: &Endpoint, unpublished: u32) -> Result<usize, RingError> {
        let (head, length) = (self.position.wrapping_add(unpublished), endpoint.layout.ring_words);
        let mut free = length;
        for rank in endpoint.others() {
            let unread = head.wrapping_sub(endpoint.load(Layout::tail(rank, self.number))) as usize;
            let Some(left) = length.checked_sub(unread) else {
                let why = format!("it has {unread} unread words in a ring of {length}");
                return Err(RingError::Garbled { rank, why });
            };
            free = free.min(left);
        }
        Ok(free)
    }

    fn publish(&mut self, endpoint: &Endpoint, unpublished: &mut u32) {
        self.position = self.position.wrapping_add(std::mem::take(unpublished));
        endpoint.publish(Layout::head(self.number), self.position, endpoint.others());
    }

    /// Copies words to behind the position, of which so many are free.
    fn copy_in(&self, endpoint: &Endpoint, unpublished: u32, words: &[u32]) {
        let (ring, length) = (endpoint.layout.ring(self.number), endpoint.layout.ring_words);
        let at = self.position.wrapping_add(unpublished) as usize & (length - 1);
        let (first, second) = words.split_at(words.len().min(length - at));
        // SAFETY: free words are the writer's.
        unsafe {
            endpoint.memory.write(ring + at, first);
            endpoint.memory.write(ring, second);
        }
    }

    /// Reads the next record: its body, and its kind. Waits until there is one.
    pub(crate) fn read(&mut self, endpoint: &Endpoint, body: &mut Vec<u32>) -> Result<u32, RingError> {
        let mut header = [0; HEADER];
        self.copy_out(endpoint, &mut header)?;
        let [number, kind, length, check] = header;
        if number != self.records || length as usize > LONGEST {
            return Err(self.garbled(&format!("number {number} and {length} words")));
        }
        body.resize(length as usize, 0);
        self.copy_out(endpoint, body)?;
        if checksum(number ^ kind, body) != check {
            return Err(self.garbled("a wrong checksum"));
        }
        self.records = self.records.wrapping_add(1);
        self.publish_tail(endpoint);
        Ok(kind)
    }

    fn garbled(&self, has: &str) -> RingError {
        let why = format!("record {} of ring {} has {has}", self.records, self.number);
        RingError::Garbled { rank: 0, why }
    }

    /// Reads the next words, as they come.
    fn copy_out(&mut self, endpoint: &Endpoint, into: &mut [u32]) -> Result<(), RingError> {
        let (ring, length) = (endpoint.layout.ring(self.number), endpoint.layout.ring_words);
        let mut done = 0;
        while done < into.len() {
            let unread = || endpoint.load(Layout::head(self.number)).wrapping_sub(self.position) as usize;
            if unread() == 0 {
                // The writer may wait for this room.
                self.publish_tail(endpoint);
                endpoint.wait(|| Some(()).filter(|()| unread() > 0))?;
            }
            let unread = unread();
            if unread > length {
                return Err(self.garbled(&format!("{unread} unread words in a ring of {length}")));
            }
            let at = self.position as usize & (length - 1);
            let count = unread.min(into.len() - done).min(length - at);
            // SAFETY: published words that this rank has not read stay as they are.
            unsafe { endpoint.memory.read(ring + at, &mut into[done..done + count]) };
            self.position = self.position.wrapping_add(count as u32);
            done += count;
        }
        Ok(())
    }

    fn publish_tail(&self, endpoint: &Endpoint) {
        endpoint.publish(Layout::tail(endpoint.rank, self.number), self.position, std::iter::once(0));
    }
}

/// A checksum of a record: rotations and exclusive ors in sixteen lanes, which compilers vectorize.
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
