//! ZeroMQ sockets between the front and its workers, and their paths in the socket directory.

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
