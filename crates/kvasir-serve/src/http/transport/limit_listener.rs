//! Listener with limits on connections, of all and per peer: terminates TLS, and sends overflow to a [`ProbeReserve`].
//!
//! Each connection holds a semaphore permit, released on drop. TLS handshakes run in tasks of their
//! own, so a slow client does not block `accept`.

use crate::http::transport::{
    connection::{Connection, ReadTimeout, Stream},
    peers::Peers,
    probe_reserve::ProbeReserve,
};
use axum::serve::Listener;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after `accept` fails, for instance when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listener with a connection limit, plain or TLS.
pub struct LimitListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    peers: Peers,
    /// Receives connections beyond the limit.
    reserve: ProbeReserve,
    tls: Option<TlsAcceptor>,
    read_timeout: ReadTimeout,
    /// Connections after their TLS handshake, and probes after their request head.
    ready: mpsc::Receiver<(Connection, SocketAddr)>,
    ready_sender: mpsc::Sender<(Connection, SocketAddr)>,
}

/// Default read timeout within a request.
const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Listen backlog of the socket. The kernel drops connections beyond it, and their clients retry
/// after a second.
const BACKLOG: u32 = 4096;

impl LimitListener {
    /// Binds and listens. `permits` is the maximum number of connections.
    pub fn open(address: SocketAddr, permits: usize, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Lets a restarted server bind while old connections are in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self::new(socket.listen(BACKLOG)?, permits, tls))
    }

    /// Sets the read timeout within a request.
    pub fn with_read_timeout(self, read_timeout: Duration) -> Self {
        Self { read_timeout: ReadTimeout(read_timeout), ..self }
    }

    /// Sets the maximum number of connections per peer that is not this machine.
    pub fn with_peer_limit(self, connections: usize) -> Self {
        Self { peers: Peers::new(connections), ..self }
    }

    pub(crate) fn read_timeout(&self) -> ReadTimeout {
        self.read_timeout
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A listener over a listening socket, with at most `permits` connections.
    pub fn new(listener: TcpListener, permits: usize, tls: Option<TlsAcceptor>) -> Self {
        let (ready_sender, ready) = mpsc::channel(64);
        Self {
            listener,
            peers: Peers::new(usize::MAX),
            permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            reserve: ProbeReserve::new(ready_sender.clone()),
            tls,
            read_timeout: ReadTimeout(DEFAULT_READ_TIMEOUT),
            ready,
            ready_sender,
        }
    }

    /// Returns a connection that can be served at once. TLS connections arrive via `ready` after
    /// their handshake.
    fn receive(&mut self, stream: TcpStream, from: SocketAddr) -> Option<(Connection, SocketAddr)> {
        let peer = self.peers.try_acquire(from.ip());
        let permit = peer.and_then(|peer| Some((self.permits.clone().try_acquire_owned().ok()?, peer)));
        let Some((permit, peer)) = permit else {
            self.reserve.take(stream, from, self.tls.clone(), self.read_timeout.0);
            return None;
        };
        // Disables Nagle's algorithm: SSE events must not wait for each other. Failure costs
        // latency only.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = self.tls.clone() else {
            return Some((
                Connection::new(Stream::Plain(stream), self.read_timeout.0, permit).of_peer(peer),
                from,
            ));
        };
        let (ready_sender, read_timeout) = (self.ready_sender.clone(), self.read_timeout.0);
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                let connection = Connection::new(Stream::Tls(Box::new(stream)), read_timeout, permit);
                let connection = connection.of_peer(peer);
                // Sending fails only during shutdown.
                let _ = ready_sender.send((connection, from)).await;
            }
        });
        None
    }
}

impl Listener for LimitListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            tokio::select! {
                Some(ready) = self.ready.recv() => return ready,
                came = self.listener.accept() => match came {
                    Ok((stream, from)) => {
                        if let Some(connection) = self.receive(stream, from) {
                            return connection;
                        }
                    }
                    // The client left, or no file descriptor: retry.
                    Err(_) => sleep(ACCEPT_RETRY).await,
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bursts_of_connections_wait_in_the_backlog() {
        let listener = LimitListener::open("127.0.0.1:0".parse().unwrap(), 1000, None).unwrap();
        let address = listener.address().unwrap();
        let connect = |_| net::TcpStream::connect_timeout(&address, Duration::from_secs(60)).is_ok();
        assert!((0..300).all(connect), "the system queues connections that are not accepted");
    }

    #[tokio::test]
    async fn cut_connections_fail_their_pending_write() {
        let listener = LimitListener::open("127.0.0.1:0".parse().unwrap(), 1, None).unwrap();
        let mut listener = listener.with_read_timeout(Duration::from_secs(3600));
        let _client = TcpStream::connect(listener.address().unwrap()).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        let exchange = connection.exchange();
        let writing = tokio::spawn(async move {
            let piece = vec![b'x'; 1 << 20];
            loop {
                if let Err(error) = connection.write_all(&piece).await {
                    return error.kind();
                }
            }
        });
        sleep(Duration::from_millis(100)).await;
        assert!(!writing.is_finished(), "the client reads nothing");
        exchange.connection().cut();
        let ended = timeout(Duration::from_secs(60), writing).await.unwrap().unwrap();
        assert_eq!(ended, io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn stalled_writes_close_the_connection() {
        let listener = LimitListener::open("127.0.0.1:0".parse().unwrap(), 1, None).unwrap();
        let mut listener = listener.with_read_timeout(Duration::from_millis(20));
        let mut client = TcpStream::connect(listener.address().unwrap()).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        let piece = vec![b'x'; 1 << 20];
        // Slow reads within the socket buffer are fine; then the client stops reading.
        for _ in 0..3 {
            connection.write_all(b"hello").await.unwrap();
            client.read_exact(&mut [0; 5]).await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
        let error = async {
            loop {
                if let Err(error) = connection.write_all(&piece).await {
                    return error;
                }
            }
        };
        let error = timeout(Duration::from_secs(60), error).await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(listener.permits.try_acquire().is_err());
        drop(connection);
        assert!(listener.permits.try_acquire().is_ok(), "its place is free again");
    }
}
