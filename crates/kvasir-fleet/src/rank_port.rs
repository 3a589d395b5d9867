//! Ports of data-parallel ranks: rank `i` listens on `port + i`.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

/// Binds the port of a rank; `first` is the address of rank 0. Port 0 selects a free port. An error
/// contains the address.
pub(crate) fn bind_rank(
    first: SocketAddr,
    rank: u32,
) -> Result<(TcpListener, SocketAddr), (SocketAddr, io::Error)> {
    let mut address = first;
    if first.port() != 0 {
        let port = u16::try_from(u32::from(first.port()) + rank);
        let port = port.map_err(|_| (first, io::Error::other("the ports of all engines exceed 65535")))?;
        address.set_port(port);
    }
    let bound = TcpListener::bind(address).and_then(|listener| {
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    });
    bound.map_err(|error| (address, error))
}
