//! Framing of messages on the socket of a tokenizer process.
//!
//! A frame has four fields: the size of the body in bytes (`u32`), a [`Header`], the xxh64 of the
//! body (`u64`), and the body, a message in msgpack. All integers are little-endian.
//!
//! Frames are numbered from 1 without gaps. A reader refuses a frame that is malformed, too large,
//! repeated, out of order, or from another process. A byte stream cannot be resynchronized, so the
//! first refused frame ends the connection and the process.

use crate::message::{Header, MAX_BYTES};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncReadExt};
use xxhash_rust::xxh64::xxh64;

const PREFIX_BYTES: usize = 4 + Header::BYTES + 8;

/// Why a frame could not be read.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The socket was closed.
    Closed(io::Error),
    /// The frame is refused.
    Refused(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(error) => write!(f, "its socket is closed: {error}"),
            Self::Refused(why) => write!(f, "it has sent a message that {why}"),
        }
    }
}

/// Encodes a message as a frame; `None` if the message is too large.
pub(super) fn encode<T: Serialize>(header: Header, message: &T) -> Option<Vec<u8>> {
    let mut frame = vec![0; PREFIX_BYTES];
    rmp_serde::encode::write_named(&mut frame, message).ok()?;
    let (prefix, body) = frame.split_at_mut(PREFIX_BYTES);
    let size = u32::try_from(body.len()).ok().filter(|size| *size as usize <= MAX_BYTES)?;
    let (size_field, rest) = prefix.split_at_mut(4);
    let (header_field, checksum_field) = rest.split_at_mut(Header::BYTES);
    size_field.copy_from_slice(&size.to_le_bytes());
    header_field.copy_from_slice(&header.to_bytes());
    checksum_field.copy_from_slice(&xxh64(body, 0).to_le_bytes());
    Some(frame)
}

/// Reads the next frame, which must have the header `expected`, and decodes its message.
pub(super) async fn read<T: DeserializeOwned>(
    socket: &mut (impl AsyncRead + Unpin),
    expected: Header,
) -> Result<T, FrameError> {
    let mut prefix = [0; PREFIX_BYTES];
    socket.read_exact(&mut prefix).await.map_err(FrameError::Closed)?;
    let (size, rest) = prefix.split_at(4);
    let (header, checksum) = rest.split_at(Header::BYTES);
    if Header::read(header) != Some(expected) {
        return Err(FrameError::Refused("is malformed, repeated, out of order, or from another process"));
    }
    let size = u32::from_le_bytes(size.try_into().unwrap_or_default()) as usize;
    if size > MAX_BYTES {
        return Err(FrameError::Refused("is too large"));
    }
    // Allocates memory as bytes arrive: the size field is not trusted.
    let mut body = Vec::new();
    let read = socket.take(size as u64).read_to_end(&mut body).await.map_err(FrameError::Closed)?;
    if read < size {
        return Err(FrameError::Closed(io::ErrorKind::UnexpectedEof.into()));
    }
    if xxh64(&body, 0).to_le_bytes() != checksum {
        return Err(FrameError::Refused("has a wrong checksum"));
    }
    rmp_serde::from_slice(&body).map_err(|_| FrameError::Refused("cannot be decoded"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizers::job::{Job, ToTokenizer, Work};
    use kvasir_testkit::Random;

    const HEADER: Header = Header { replica: 2, generation: 5, number: 9 };

    fn read_all(bytes: &[u8], expected: Header) -> Result<ToTokenizer, FrameError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(&mut &*bytes, expected))
    }

    fn message() -> ToTokenizer {
        let work = Work::Encode { text: "é🦀".repeat(40), add_special: true };
        ToTokenizer::Jobs(vec![Job { id: 3, work }])
    }

    #[test]
    fn an_encoded_message_decodes_to_itself() {
        let frame = encode(HEADER, &message()).unwrap();
        assert_eq!(read_all(&frame, HEADER).unwrap(), message());
    }

    #[test]
    fn corrupted_frames_are_refused() {
        let whole = encode(HEADER, &message()).unwrap();
        for seed in 0..3000 {
            let mut random = Random::new(seed);
            let mut corrupted = whole.clone();
            match random.below(3) {
                0 => corrupted.truncate(random.below(whole.len() as u64) as usize),
                1 => {
                    let at = random.below(whole.len() as u64) as usize;
                    corrupted[at] ^= 1 << random.below(8);
                }
                _ => corrupted = (0..random.between(1, 200)).map(|_| random.below(256) as u8).collect(),
            }
            assert!(read_all(&corrupted, HEADER).is_err(), "seed {seed}");
        }
    }

    #[test]
    fn frames_with_another_header_are_refused() {
        let frame = encode(HEADER, &message()).unwrap();
        for expected in [
            Header { number: 10, ..HEADER },
            Header { number: 8, ..HEADER },
            Header { generation: 6, ..HEADER },
            Header { replica: 1, ..HEADER },
        ] {
            assert!(matches!(read_all(&frame, expected), Err(FrameError::Refused(_))), "{expected:?}");
        }
        let mut large = frame;
        large[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read_all(&large, HEADER), Err(FrameError::Refused("is too large"))));
    }
}
