//! Handshake messages over the socket between rank 0 and another rank: length-prefixed MessagePack.
//!
//! After the handshake the socket carries no messages. Each side watches it for the exit of its
//! peer.

use crate::message::Identity;
use kvasir_kv::{StateConfig, WindowConfig};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

/// Version of the messages and of the records in shared memory.
pub(crate) const PROTOCOL: u32 = 3;
/// Maximum size of an encoded message.
const MAX_BYTES: u32 = 1 << 20;

/// From another rank to rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromRank {
    /// The first message.
    Hello { protocol: u32, identity: Identity },
    /// The executor is ready.
    Ready,
    /// The rank cannot start.
    Failed { why: String },
}

/// Sizes of the pools of every rank. Plans of rank 0 name slots of these pools, so all ranks have
/// the same number of slots. The bytes per slot differ between ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSizes {
    /// K/V slots of the full group.
    pub slots: u32,
    /// The pools of the window groups.
    pub windows: Vec<WindowConfig>,
    /// The pool of recurrent states, if the model has any.
    pub states: Option<StateConfig>,
}

/// From rank 0 to another rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToRank {
    /// Build an executor with pools of these sizes.
    Start(PoolSizes),
}

/// Writes a message.
pub(crate) fn send<T: Serialize>(mut socket: &UnixStream, message: &T) -> io::Result<()> {
    let body = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    socket.write_all(&length.to_le_bytes())?;
    socket.write_all(&body)
}

/// Reads a message.
pub(crate) fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(io::Error::other(format!(
            "message of {length} bytes is too large; at most {MAX_BYTES} are allowed"
        )));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    rmp_serde::from_slice(&body).map_err(io::Error::other)
}

/// Blocks until the peer has closed its socket.
pub(crate) fn wait_for_close(mut socket: &UnixStream) {
    let mut buffer = [0; 64];
    while socket.read(&mut buffer).is_ok_and(|read| read > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_a_socket_and_corrupt_ones_are_errors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let hello = FromRank::Hello { protocol: PROTOCOL, identity: Identity::default() };
        send(&ours, &hello).unwrap();
        send(&ours, &FromRank::Ready).unwrap();
        assert_eq!(receive::<FromRank>(&theirs).unwrap(), hello);
        assert_eq!(receive::<FromRank>(&theirs).unwrap(), FromRank::Ready);
        send(&ours, &7).unwrap();
        assert!(receive::<FromRank>(&theirs).is_err());
        (&ours).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<ToRank>(&theirs).unwrap_err().to_string().contains("too large"));
        drop(ours);
        assert!(receive::<ToRank>(&theirs).is_err());
        wait_for_close(&theirs);
    }
}
