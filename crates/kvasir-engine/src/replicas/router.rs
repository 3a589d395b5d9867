//! Load balancing over data-parallel replicas: picks a replica per request and tracks outstanding
//! requests and prompt tokens. Pure logic over counters.
//!
//! Invariant: every `Charge` is released exactly once, when its request has ended or could not be
//! sent.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Load-balancing policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Round robin.
    RoundRobin,
    /// Fewest outstanding requests, then fewest prompt tokens.
    #[default]
    LeastRequests,
    /// Fewest outstanding prompt tokens, plus `request_weight` per request.
    LeastTokens {
        /// Additional tokens counted per request.
        request_weight: u64,
    },
}

/// Error: there is no replica with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownReplica(pub usize);

impl fmt::Display for UnknownReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data_parallel_rank: no replica {}", self.0)
    }
}

impl std::error::Error for UnknownReplica {}

/// Outstanding load of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Outstanding requests.
    pub requests: u64,
    /// Prompt tokens of these.
    pub tokens: u64,
}

/// The load charged for one request. Pass it to [`Router::release`] once, when the request has
/// ended or could not be sent.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Charge {
    replica: usize,
    tokens: u64,
}

impl Charge {
    /// Index of the chosen replica.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

/// INTERIM
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RouteRequest<'a> {
    pub prompt: &'a [u32],
    pub tokens: u64,
    pub salt: u64,
    pub session: Option<crate::SessionId>,
    pub requested: Option<usize>,
}

/// Load balancer over replicas.
#[derive(Clone, Debug)]
pub struct Router {
    balance: Balance,
    loads: Vec<Load>,
    unavailable: Vec<bool>,
    /// Start of the search; rotates, so that ties are broken round-robin.
    start: usize,
}

impl Router {
    /// A router over `replicas` idle replicas; 0 counts as 1.
    pub fn new(balance: Balance, replicas: usize) -> Self {
        Self::with_loads(balance, vec![Load::default(); replicas.max(1)])
    }

    /// A router over replicas with existing load; an empty list means one idle replica.
    pub fn with_loads(balance: Balance, mut loads: Vec<Load>) -> Self {
        if loads.is_empty() {
            loads.push(Load::default());
        }
        Self { balance, unavailable: vec![false; loads.len()], loads, start: 0 }
    }

    /// INTERIM
    pub fn set_available(&mut self, replica: usize, available: bool) {
        self.unavailable[replica] = !available;
    }

    /// INTERIM
    pub fn load(&self, replica: usize) -> Option<Load> {
        self.loads.get(replica).copied()
    }

    /// INTERIM
    pub fn route(&mut self, request: &RouteRequest<'_>) -> Result<Charge, UnknownReplica> {
        if self.unavailable.iter().all(|one| *one) {
            return Err(UnknownReplica(0));
        }
        let requested = request.requested.filter(|replica| !self.unavailable[*replica]);
        let requested = requested.or_else(|| {
            let free = (0..self.loads.len()).filter(|replica| !self.unavailable[*replica]);
            free.min_by_key(|replica| self.loads[*replica].requests)
        });
        self.pick(request.tokens, requested)
    }

    /// Outstanding load by replica.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Picks a replica for a prompt of `tokens`, or the requested one, and charges it. On error
    /// nothing is charged.
    pub fn pick(&mut self, tokens: u64, requested: Option<usize>) -> Result<Charge, UnknownReplica> {
        let replica = match requested {
            Some(replica) if replica < self.loads.len() => replica,
            Some(replica) => return Err(UnknownReplica(replica)),
            None => self.best(),
        };
        let load = &mut self.loads[replica];
        load.requests = load.requests.saturating_add(1);
        load.tokens = load.tokens.saturating_add(tokens);
        Ok(Charge { replica, tokens })
    }

    /// The least loaded replica; ties go to the first from a start that advances by one per pick.
    fn best(&mut self) -> usize {
        let count = self.loads.len();
        let from = self.start;
        self.start = (from + 1) % count;
        let balance = self.balance;
        let weight = |load: &Load| match balance {
            Balance::RoundRobin => (0, 0),
            Balance::LeastRequests => (load.requests, load.tokens),
            Balance::LeastTokens { request_weight } => {
                (load.tokens.saturating_add(request_weight.saturating_mul(load.requests)), 0)
            }
        };
        let order = (0..count).map(|i| (from + i) % count);
        order.min_by_key(|replica| weight(&self.loads[*replica])).unwrap_or(0)
    }

    /// Releases a charge.
    pub fn release(&mut self, charge: Charge) {
        if let Some(load) = self.loads.get_mut(charge.replica) {
            load.requests = load.requests.saturating_sub(1);
            load.tokens = load.tokens.saturating_sub(charge.tokens);
        }
    }

    /// Routes and sends a group of requests in order, each given as (tokens, requested replica).
    ///
    /// At the first failed send, that charge and all later ones are rolled back; the charges
    /// already sent are returned with the error. If any requested replica does not exist, nothing
    /// is charged.
    pub fn send_all<E>(
        &mut self,
        requests: &[(u64, Option<usize>)],
        mut send: impl FnMut(usize, &Charge) -> Result<(), E>,
    ) -> Result<(Vec<Charge>, Option<E>), UnknownReplica> {
        let requested = requests.iter().filter_map(|(_, requested)| *requested);
        if let Some(unknown) = requested.into_iter().find(|replica| *replica >= self.loads.len()) {
            return Err(UnknownReplica(unknown));
        }
        let picked = requests.iter().map(|(tokens, requested)| self.pick(*tokens, *requested));
        let picked = picked.collect::<Result<Vec<Charge>, _>>()?;
        let (mut sent, mut failed) = (Vec::new(), None);
        for (i, charge) in picked.into_iter().enumerate() {
            if failed.is_some() {
                self.release(charge)
            } else {
                match send(i, &charge) {
                    Ok(()) => sent.push(charge),
                    Err(error) => {
                        failed = Some(error);
                        self.release(charge);
                    }
                }
            }
        }
        Ok((sent, failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(router: &mut Router, tokens: &[u64]) -> Vec<usize> {
        let charges = tokens.iter().map(|tokens| router.pick(*tokens, None));
        charges.map(|charge| charge.unwrap().replica()).collect()
    }

    #[test]
    fn ties_rotate() {
        let mut router = Router::new(Balance::LeastRequests, 3);
        assert_eq!(picks(&mut router, &[0, 0, 0, 0]), [0, 1, 2, 0]);
        assert_eq!(picks(&mut Router::new(Balance::RoundRobin, 2), &[9, 9, 9]), [0, 1, 0]);
    }

    #[test]
    fn request_weight_adds_to_tokens() {
        let loads = vec![Load { requests: 3, tokens: 10 }, Load { requests: 1, tokens: 100 }];
        let mut light = Router::with_loads(Balance::LeastTokens { request_weight: 0 }, loads.clone());
        let mut heavy = Router::with_loads(Balance::LeastTokens { request_weight: 100 }, loads);
        assert_eq!((picks(&mut light, &[1]), picks(&mut heavy, &[1])), (vec![0], vec![1]));
    }

    #[test]
    fn failed_send_rolls_back_it_and_later_charges() {
        let mut router = Router::new(Balance::LeastRequests, 3);
        let send = |i: usize, _: &Charge| if i == 1 { Err("gone") } else { Ok(()) };
        let (sent, failed) = router.send_all(&[(5, None); 3], send).unwrap();
        assert_eq!((sent.len(), failed), (1, Some("gone")));
        let used: Vec<u64> = router.loads().iter().map(|load| load.requests).collect();
        assert_eq!(used, [1, 0, 0]);
        sent.into_iter().for_each(|charge| router.release(charge));
        assert!(router.loads().iter().all(|load| *load == Load::default()));
    }

    #[test]
    fn groups_may_request_existing_replicas() {
        let mut router = Router::new(Balance::LeastRequests, 3);
        let send = |_: usize, charge: &Charge| if charge.replica() == 1 { Err(()) } else { Ok(()) };
        assert_eq!(router.send_all(&[(5, None), (5, Some(3))], send), Err(UnknownReplica(3)));
        assert!(router.loads().iter().all(|load| *load == Load::default()));
        let (sent, failed) = router.send_all(&[(5, Some(2)), (6, Some(1)), (7, None)], send).unwrap();
        assert_eq!((sent.len(), failed), (1, Some(())));
        let used: Vec<u64> = router.loads().iter().map(|load| load.tokens).collect();
        assert_eq!(used, [0, 0, 5]);
    }
}
