//! ZeroMQ sockets between the front and its workers, and their paths in the socket directory.
//!
//! A send does not wait for the worker: the ZeroMQ library queues up to 100,000 messages per peer.
//! A suspended worker, whose socket buffer is full, therefore delays no message to other workers.

use crate::message::Header;
use std::path::Path;
use zeromq::{
    DealerSocket, PullSocket, PushSocket, RouterSocket, Socket, SocketOptions, ZmqError, util::PeerIdentity,
};

fn endpoint(directory: &Path, name: &str) -> String {
    format!("ipc://{}/{name}", directory.display())
}

/// Binds the front's sockets for requests and results.
pub(crate) async fn bind(directory: &Path) -> Result<(RouterSocket, PullSocket), ZmqError> {
    let (mut requests, mut results) = (RouterSocket::new(), PullSocket::new());
    requests.bind(&endpoint(directory, "requests")).await?;
    results.bind(&endpoint(directory, "results")).await?;
    Ok((requests, results))
}

/// Connects a worker's sockets for requests and results.
pub(crate) async fn connect(
    directory: &Path,
    replica: u32,
    generation: u32,
) -> Result<(DealerSocket, PushSocket), ZmqError> {
    let mut options = SocketOptions::default();
    options.peer_identity(PeerIdentity::try_from(identity(replica, generation))?);
    let (mut requests, mut results) = (DealerSocket::with_options(options), PushSocket::new());
    requests.connect(&endpoint(directory, "requests")).await?;
    results.connect(&endpoint(directory, "results")).await?;
    Ok((requests, results))
}

/// ZeroMQ identity of a worker's requests socket.
pub(crate) fn identity(replica: u32, generation: u32) -> bytes::Bytes {
    format!("{replica}.{generation}").into()
}

impl Header {
    /// Whether a message with this header came from the socket with this ZeroMQ identity.
    pub(crate) fn is_from(&self, name: &[u8]) -> bool {
        *name == *identity(self.replica, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::SocketDirectory;
    use std::time::Duration;
    use tokio::time::timeout;
    use zeromq::{SocketRecv, SocketSend, ZmqMessage};

    /// Number of messages; together they exceed the buffers of a socket.
    const MESSAGES: usize = 16;
    /// Bytes per message.
    const BYTES: usize = 1 << 20;

    fn message(replica: u32, bytes: Vec<u8>) -> ZmqMessage {
        let mut message = ZmqMessage::from(bytes);
        message.push_front(identity(replica, 0));
        message
    }

    #[test]
    fn a_worker_that_does_not_read_delays_no_send() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = SocketDirectory::create().unwrap();
        runtime.block_on(async {
            let (mut requests, _results) = bind(directory.path()).await.unwrap();
            let (mut suspended, _) = connect(directory.path(), 0, 0).await.unwrap();
            let (mut reading, _) = connect(directory.path(), 1, 0).await.unwrap();
            // The front can address a worker once it has received the worker's first message.
            for socket in [&mut suspended, &mut reading] {
                socket.send("hello".into()).await.unwrap();
                requests.recv().await.unwrap();
            }
            for number in 0..MESSAGES {
                let send = requests.send(message(0, vec![number as u8; BYTES]));
                timeout(Duration::from_secs(60), send).await.unwrap().unwrap();
            }
            requests.send(message(1, b"next".to_vec())).await.unwrap();
            assert_eq!(reading.recv().await.unwrap().get(0).unwrap()[..], *b"next");
            for number in 0..MESSAGES {
                let received = suspended.recv().await.unwrap();
                assert!(received.get(0).unwrap()[..] == vec![number as u8; BYTES], "message {number}");
            }
        });
    }
}
