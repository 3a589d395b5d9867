//! Messages between the front and its workers: typed, versioned msgpack.
//!
//! Each has two frames: a [`Header`] of fixed size, and the message. The receiver drops malformed
//! messages, those larger than [`MAX_BYTES`], those of an earlier process of the replica, and those
//! with a number that was already received ([`MessageNumbers`]). The front counts the results that
//! it drops.

use bytes::Bytes;
use kvasir_engine::{Message, Outbox, StepEvent};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeromq::ZmqMessage;

/// Version of the message format.
pub(crate) const PROTOCOL: u32 = 4;
/// Maximum size of an encoded message.
pub(crate) const MAX_BYTES: usize = 256 << 20;

/// What front and workers must have in common. The front refuses a worker that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Version of the program.
    pub version: String,
    /// Hash of the model's files.
    pub model: u64,
    /// Hash of the options that affect an engine's answers.
    pub options: u64,
}

impl Identity {
    /// Describes the first difference from a worker's identity, if any.
    pub(crate) fn difference(&self, worker: &Self) -> Option<String> {
        if self.version != worker.version {
            return Some(format!("it has version `{}`, the front has `{}`", worker.version, self.version));
        }
        if self.model != worker.model {
            return Some("its model differs from the front's".into());
        }
        (self.options != worker.options).then(|| "its options differ from the front's".into())
    }
}

/// Describes the difference between the versions of the front's and a process's message protocol,
/// if they differ.
pub(crate) fn protocol_difference(front: u32, process: u32) -> Option<String> {
    (process != front)
        .then(|| format!("it has message protocol version `{process}`, the front has `{front}`"))
}

/// Properties of a worker's engine, sent in its `Hello`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// KV cache slots.
    pub slots: u32,
    /// Slots per block.
    pub block_size: u32,
    /// Context length.
    pub max_len: u32,
    /// Whether the engine records KV events.
    pub has_kv_events: bool,
    /// Whether the model has recurrent states, so that prefix hits end at checkpoints.
    pub has_states: bool,
    /// Why ranges cannot be cut out of a session; `None` if they can.
    pub cut_obstacle: Option<String>,
    /// Further properties in the program's own format, which this crate does not read.
    pub more: String,
}

/// From the front to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// The worker is accepted.
    Welcome,
    /// The worker is refused and must exit.
    Refused { why: String },
    /// A message to the engine, with the recipe of the constraint if it adds a constrained request,
    /// and the location of the rows if it imports K/V blocks.
    Engine { message: Message, recipe: Option<String>, rows: Option<RecordLocation> },
    /// Subscribes to live steps: with all requests, or only those of client `key`. The initial
    /// credit is `events`.
    Subscribe { subscriber: u64, key: Option<u64>, events: u32 },
    /// Increases the credit of a subscriber.
    AddCredit { subscriber: u64, events: u32 },
    /// Ends a subscription.
    Unsubscribe { subscriber: u64 },
    /// Inherited file descriptors of the segments, by the replica that writes to them.
    Segments { descriptors: Vec<Option<u32>> },
}

/// Location of a record in a segment, and what the reader must find there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordLocation {
    /// Index of the replica that writes to the segment.
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Size of the rows.
    pub(crate) bytes: u64,
    /// Number of the record.
    pub(crate) number: u64,
    /// xxh64 of the rows.
    pub(crate) checksum: u64,
}

/// Exported blocks of a run's prompt, for the worker that will decode the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exported {
    /// Tag of the run.
    pub(crate) run: u64,
    /// First token of the blocks.
    pub(crate) start: u32,
    /// Number of tokens.
    pub(crate) tokens: u32,
    /// Location of the rows; `None` if they could not be written.
    pub(crate) rows: Option<RecordLocation>,
    /// Whether the prompt is computed, so that no export of the run follows.
    pub(crate) is_last: bool,
}

/// From a worker to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// The first message.
    Hello { protocol: u32, identity: Identity, facts: Facts },
    /// Results of a step.
    Results(Outbox),
    /// Tags of runs whose results exceed the maximum message size. The worker has aborted them.
    Oversized { runs: Vec<u64> },
    /// Progress and counters of the engine.
    Counters {
        /// Number of steps.
        steps: u64,
        /// Whether all open requests still wait for their constraints to be built.
        is_building: bool,
        /// All counters, in an order that the program defines.
        counters: Vec<u64>,
    },
    /// Live steps for a subscriber; empty if the worker refuses the stream.
    Steps { subscriber: u64, events: Vec<StepEvent> },
    /// The engine has exported blocks.
    Exported(Exported),
    /// The engine has stopped.
    Stopped { why: String },
}

/// First frame of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// How many processes the replica had before this one.
    pub(crate) generation: u32,
    /// Number of the message in its direction, from 1.
    pub(crate) number: u64,
}

impl Header {
    /// Size of an encoded header.
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let number = u128::from(self.number) << 64;
        (u128::from(self.replica) | u128::from(self.generation) << 32 | number).to_le_bytes()
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let all = u128::from_le_bytes(bytes.try_into().ok()?);
        Some(Self { replica: all as u32, generation: (all >> 32) as u32, number: (all >> 64) as u64 })
    }
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// It cannot be decoded.
    Malformed,
    /// It is larger than `MAX_BYTES`.
    Oversized,
}

/// Encodes a message; `None` if it is larger than `MAX_BYTES`. Fields are written with their names,
/// because some are omitted when they have their default.
pub(crate) fn encode<T: Serialize>(header: Header, message: &T) -> Option<ZmqMessage> {
    let body = rmp_serde::to_vec_named(message).ok().filter(|body| body.len() <= MAX_BYTES)?;
    let mut frames = ZmqMessage::from(Bytes::copy_from_slice(&header.to_bytes()));
    frames.push_back(body.into());
    Some(frames)
}

/// Decodes the last two frames of a message. The error has the header if that could be decoded.
pub(crate) fn decode<T: DeserializeOwned>(
    frames: &ZmqMessage,
) -> Result<(Header, T), (Option<Header>, DropReason)> {
    let count = frames.len();
    let header = count.checked_sub(2).and_then(|at| frames.get(at)).and_then(|frame| Header::read(frame));
    let (Some(header), Some(body)) = (header, count.checked_sub(1).and_then(|at| frames.get(at))) else {
        return Err((None, DropReason::Malformed));
    };
    if body.len() > MAX_BYTES {
        return Err((Some(header), DropReason::Oversized));
    }
    let message = rmp_serde::from_slice(body).map_err(|_| (Some(header), DropReason::Malformed))?;
    Ok((header, message))
}

/// Message numbers in one direction: the last one sent, or the last one received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageNumbers(u64);

impl MessageNumbers {
    /// The number of the next message to send.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Records a received number. True if it is higher than all before; messages arrive in order.
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
        ToWorker::Engine { message, recipe: Some("{}".into()), rows: None }
    }

    #[test]
    fn messages_survive_encoding() {
        let message = request();
        let frames = encode(HEADER, &message).unwrap();
        assert_eq!(decode::<ToWorker>(&frames), Ok((HEADER, message)));
        let results = FromWorker::Results(Outbox { tokens: vec![1, 2], ..Outbox::default() });
        let frames = encode(HEADER, &results).unwrap();
        assert_eq!(decode::<FromWorker>(&frames), Ok((HEADER, results)));
    }

    #[test]
    fn malformed_messages_are_errors() {
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
        let mut short = ZmqMessage::from(vec![0; Header::BYTES - 1]);
        assert_eq!(decode::<ToWorker>(&short), Err((None, DropReason::Malformed)));
        short.push_back(body.into());
        assert_eq!(decode::<ToWorker>(&short), Err((None, DropReason::Malformed)));
    }

    #[test]
    fn repeated_message_numbers_are_rejected() {
        let (mut sent, mut seen) = (MessageNumbers::default(), MessageNumbers::default());
        let numbers = [sent.next(), sent.next()];
        assert!(numbers.iter().all(|number| seen.is_new(*number)));
        assert!(!numbers.iter().any(|number| seen.is_new(*number)));
    }

    #[test]
    fn identity_differences_are_described() {
        let front = Identity { version: "1".into(), model: 2, options: 3 };
        assert_eq!(front.difference(&front), None);
        let named = |worker: Identity| front.difference(&worker).unwrap();
        assert!(named(Identity { version: "2".into(), ..front.clone() }).contains("version `2`"));
        assert!(named(Identity { model: 9, ..front.clone() }).contains("model"));
        assert!(named(Identity { options: 9, ..front.clone() }).contains("options"));
    }
}
