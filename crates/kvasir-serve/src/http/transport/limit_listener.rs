//! Connection listener: bounds open connections, terminates TLS, and sends overflow to a [`Reserve`] for
//! probes.
//!
//! Each connection holds a semaphore permit, released on drop. TLS handshakes run in tasks of their
//! own, so a slow client does not block `accept`.

use crate::http::transport::{
    connection::{Connection, Patience, Stream},
    probe_reserve::Reserve,
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
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Pause after `accept` fails, for instance when file descriptors run out.
const BREATHER: Duration = Duration::from_millis(100);

/// Listener with a connection limit, plain or TLS.
pub struct Gate {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// Takes connections beyond the limit.
    reserve: Reserve,
    tls: Option<TlsAcceptor>,
    patience: Patience,
    /// Connections after their TLS handshake, and probes after their request head.
    ready: mpsc::Receiver<(Connection, SocketAddr)>,
    agreed: mpsc::Sender<(Connection, SocketAddr)>,
}

/// Default read timeout within a request.
const PATIENCE: Duration = Duration::from_secs(30);

/// Listen backlog of the socket. The kernel drops connections beyond it, and their clients retry
/// after a second.
const BACKLOG: u32 = 4096;

impl Gate {
    /// Binds and listens. `places` is the maximum number of connections.
    pub fn open(address: SocketAddr, places: usize, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Lets a restarted server bind while old connections are in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self::new(socket.listen(BACKLOG)?, places, tls))
    }

    /// Sets the read timeout within a request.
    pub fn waiting(self, patience: Duration) -> Self {
        Self { patience: Patience(patience), ..self }
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A gate over a listening socket, with at most `places` connections.
    pub fn new(listener: TcpListener, places: usize, tls: Option<TlsAcceptor>) -> Self {
        let (agreed, ready) = mpsc::channel(64);
        Self {
            listener,
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            reserve: Reserve::new(agreed.clone()),
            tls,
            patience: Patience(PATIENCE),
            ready,
            agreed,
        }
    }

    /// Returns a connection that can be served at once. TLS connections arrive via `ready` after
    /// their handshake.
    fn receive(&mut self, stream: TcpStream, from: SocketAddr) -> Option<(Connection, SocketAddr)> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.reserve.take(stream, from, self.tls.clone(), self.patience.0);
            return None;
        };
        // Disables Nagle's algorithm: SSE events must not wait for each other. Failure costs
        // latency only.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = self.tls.clone() else {
            return Some((Connection::new(Stream::Plain(stream), self.patience.0, place), from));
        };
        let (agreed, patience) = (self.agreed.clone(), self.patience.0);
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                let connection = Connection::new(Stream::Tls(Box::new(stream)), patience, place);
                // Sending fails only during shutdown.
                let _ = agreed.send((connection, from)).await;
            }
        });
        None
    }
}

impl Listener for Gate {
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
                    Err(_) => sleep(BREATHER).await,
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
    async fn a_burst_of_connections_waits_to_be_taken() {
        let gate = Gate::open("127.0.0.1:0".parse().unwrap(), 1000, None).unwrap();
        let address = gate.address().unwrap();
        let connect = |_| net::TcpStream::connect_timeout(&address, Duration::from_secs(60)).is_ok();
        assert!((0..300).all(connect), "nobody takes them, and the system keeps them");
    }

    #[tokio::test]
    async fn who_does_not_take_what_it_is_told_is_left() {
        let gate = Gate::open("127.0.0.1:0".parse().unwrap(), 1, None).unwrap();
        let mut gate = gate.waiting(Duration::from_millis(20));
        let mut client = TcpStream::connect(gate.address().unwrap()).await.unwrap();
        let (mut connection, _) = gate.accept().await;
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
        assert!(gate.places.try_acquire().is_err());
        drop(connection);
        assert!(gate.places.try_acquire().is_ok(), "its place is free again");
    }
}
