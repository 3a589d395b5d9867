//! Messages between the front and its workers: typed, versioned msgpack.
//!
//! Each has two frames: a [`Header`] of fixed size, and the message. The reader drops what it cannot
//! read, what is larger than [`MAX_BYTES`], what belongs to an earlier process of the replica, and what
//! has a number that was used ([`Numbers`]). It counts what it drops.

use bytes::Bytes;
use kvasir_engine::{Message, Outbox};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeromq::ZmqMessage;

/// Version of the messages.
pub(crate) const PROTOCOL: u32 = 1;
/// Largest message.
const MAX_BYTES: usize = 256 << 20;

/// What both sides must agree on. A worker that differs is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Version of the program.
    pub version: String,
    /// Hash of the model's files.
    pub model: u64,
    /// Hash of the options that decide what an engine answers.
    pub options: u64,
}

impl Identity {
    /// The name of the first difference to a worker's, if there is one.
    pub(crate) fn difference(&self, worker: &Self) -> Option<String> {
        if self.version != worker.version {
            return Some(format!("version {} is not the front's, {}", worker.version, self.version));
        }
        if self.model != worker.model {
            return Some("its model is not the front's".into());
        }
        (self.options != worker.options).then(|| "its options are not the front's".into())
    }
}

/// What a worker tells about its engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// KV cache slots.
    pub slots: u32,
    /// Slots per block.
    pub block_size: u32,
    /// Context length.
    pub max_len: u32,
    /// Why no range can be cut out of a session, if so.
    pub cut_obstacle: Option<String>,
    /// More facts, in the notation of the program that runs both sides.
    pub more: String,
}

/// From the front to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// The worker is accepted.
    Welcome,
    /// The worker is refused, and ends.
    Refused { why: String },
    /// For the engine. The recipe is that of a new request's constraint.
    Engine { message: Message, recipe: Option<String> },
}

/// From a worker to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// The first message.
    Hello { protocol: u32, identity: Identity, facts: Facts },
    /// Results of a step.
    Results(Outbox),
    /// Counters of the engine, in an order that the program knows.
    Counters(Vec<u64>),
    /// The engine has stopped.
    Stopped { why: String },
}

/// Begin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// How many processes the replica had before this one.
    pub(crate) generation: u32,
    /// Number of the message in its direction, from 1.
    pub(crate) number: u64,
}

const HEADER_BYTES: usize = 16;

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let number = u128::from(self.number) << 64;
        (u128::from(self.replica) | u128::from(self.generation) << 32 | number).to_le_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let all = u128::from_le_bytes(bytes.try_into().ok()?);
        Some(Self { replica: all as u32, generation: (all >> 32) as u32, number: (all >> 64) as u64 })
    }
}

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It cannot be read.
    Malformed,
    /// It is larger than allowed.
    Oversized,
}

/// Frames of a message. Fields have names: some are left out when they have their default.
pub(crate) fn encode<T: Serialize>(header: Header, message: &T) -> Option<ZmqMessage> {
    let body = rmp_serde::to_vec_named(message).ok().filter(|body| body.len() <= MAX_BYTES)?;
    let mut frames = ZmqMessage::from(Bytes::copy_from_slice(&header.to_bytes()));
    frames.push_back(body.into());
    Some(frames)
}

/// Reads the last two frames of a message. The header of a dropped message is known if it can be read.
pub(crate) fn decode<T: DeserializeOwned>(
    frames: &ZmqMessage,
) -> Result<(Header, T), (Option<Header>, Dropped)> {
    let count = frames.len();
    let header = count.checked_sub(2).and_then(|at| frames.get(at)).and_then(|frame| Header::read(frame));
    let (Some(header), Some(body)) = (header, count.checked_sub(1).and_then(|at| frames.get(at))) else {
        return Err((None, Dropped::Malformed));
    };
    if body.len() > MAX_BYTES {
        return Err((Some(header), Dropped::Oversized));
    }
    let message = rmp_serde::from_slice(body).map_err(|_| (Some(header), Dropped::Malformed))?;
    Ok((header, message))
}

/// Numbers of the messages in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The number of the next message to send.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Whether a received message has a new number. Messages arrive in order.
    pub(crate) fn is_new(&mut self, number: u64) -> bool {
        let is_new = number > self.0;
        self.0 = self.0.max(number);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_engine::{Params, Request, Resumption};
    use kvasir_testkit::Random;

    const HEADER: Header = Header { replica: 3, generation: 7, number: 1 << 40 };

    fn request() -> ToWorker {
        let resumption = Resumption { outputs: vec![4, 5], mu: Some(0.5), ..Resumption::default() };
        let params = Params { resumption: Some(resumption.into()), eos: vec![2], ..Params::default() };
        let request = Request { tag: 9, prompt: (0..300).collect(), params };
        let message = Message::Add { request: Box::new(request), n: 1 };
        ToWorker::Engine { message, recipe: Some("{}".into()) }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let message = request();
        let frames = encode(HEADER, &message).unwrap();
        assert_eq!(decode::<ToWorker>(&frames), Ok((HEADER, message)));
        let results = FromWorker::Results(Outbox { tokens: vec![1, 2], ..Outbox::default() });
        let frames = encode(HEADER, &results).unwrap();
        assert_eq!(decode::<FromWorker>(&frames), Ok((HEADER, results)));
    }

    #[test]
    fn garbled_messages_are_dropped() {
        let whole = encode(HEADER, &request()).unwrap();
        let body = whole.get(1).unwrap().to_vec();
        let mut read = 0;
        for seed in 0..3000 {
            let mut random = Random::new(seed);
            let mut garbled = body.clone();
            match random.below(3) {
                0 => garbled.truncate(random.below(body.len() as u64) as usize),
                1 => garbled.extend((0..random.between(1, 9)).map(|_| random.below(256) as u8)),
                _ => {
                    for _ in 0..random.between(1, 8) {
                        let at = random.below(garbled.len() as u64) as usize;
                        garbled[at] = random.below(256) as u8;
                    }
                }
            }
            let mut frames = ZmqMessage::from(whole.get(0).unwrap().clone());
            frames.push_back(garbled.into());
            read += u32::from(decode::<ToWorker>(&frames).is_ok());
        }
        assert!(read < 2000, "{read}");
        let mut short = ZmqMessage::from(vec![0; HEADER_BYTES - 1]);
        assert_eq!(decode::<ToWorker>(&short), Err((None, Dropped::Malformed)));
        short.push_back(body.into());
        assert_eq!(decode::<ToWorker>(&short), Err((None, Dropped::Malformed)));
    }

    #[test]
    fn used_numbers_are_no_news() {
        let (mut sent, mut seen) = (Numbers::default(), Numbers::default());
        let numbers = [sent.next(), sent.next()];
        assert!(numbers.iter().all(|number| seen.is_new(*number)));
        assert!(!numbers.iter().any(|number| seen.is_new(*number)));
    }

    #[test]
    fn differences_are_named() {
        let front = Identity { version: "1".into(), model: 2, options: 3 };
        assert_eq!(front.difference(&front), None);
        let named = |worker: Identity| front.difference(&worker).unwrap();
        assert!(named(Identity { version: "2".into(), ..front.clone() }).contains("version 2"));
        assert!(named(Identity { model: 9, ..front.clone() }).contains("model"));
        assert!(named(Identity { options: 9, ..front.clone() }).contains("options"));
    }
}
