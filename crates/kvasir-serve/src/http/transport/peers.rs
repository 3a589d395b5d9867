//! Connections per peer, so that one host does not take every connection.
//!
//! A peer is an IPv4 address or an IPv6 network of 64 bits, which one host may own as a whole. Loopback
//! addresses are not limited: they belong to this machine, and often to a proxy in front of all clients.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Open connections per peer.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    limit: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection of a peer, counted until drop.
#[derive(Debug)]
pub(crate) struct PeerPermit {
    peer: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

fn locked(open: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    // No holder of the lock can leave it half changed.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The peer of an address.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

impl Peers {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, open: Arc::default() }
    }

    /// Counts a connection, unless its peer is at the limit.
    pub(super) fn try_acquire(&self, address: IpAddr) -> Option<PeerPermit> {
        let (mut open, peer) = (locked(&self.open), peer(address));
        let count = open.entry(peer).or_default();
        if *count >= self.limit && !address.to_canonical().is_loopback() {
            return None;
        }
        *count += 1;
        Some(PeerPermit { peer, open: self.open.clone() })
    }
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        let mut open = locked(&self.open);
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_share_of_the_connections() {
        let peers = Peers::new(2);
        let take = |address: &str| peers.try_acquire(address.parse().unwrap());
        let held = [take("192.0.2.1"), take("::ffff:192.0.2.1")];
        assert!(held.iter().all(Option::is_some) && take("192.0.2.1").is_none());
        assert!(take("192.0.2.2").is_some());
        let network = [take("2001:db8::1"), take("2001:db8::2")];
        assert!(network.iter().all(Option::is_some));
        assert!(take("2001:db8::3").is_none() && take("2001:db8:0:1::1").is_some());
        let local: Vec<_> = (0..9).map(|_| take("127.0.0.1")).collect();
        assert!(local.iter().all(Option::is_some));
        drop((held, network, local));
        assert!(take("192.0.2.1").is_some());
        assert!(locked(&peers.open).is_empty());
    }
}
