//! Ports of data-parallel ranks: rank `i` has the port of rank 0 plus `i`.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

/// Listens on the address of a rank; with port 0, on a free one. An error names the address.
pub(crate) fn listen_as_rank(
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
