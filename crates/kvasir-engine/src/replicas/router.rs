//! Routing over data-parallel replicas: picks a replica per request and tracks outstanding requests
//! and prompt tokens. Pure logic over counters and block hashes.
//!
//! [`Route::Prefix`]:
//!
//! 1. Hash the prompt's blocks and match the chain as far as any replica holds it. The replicas' KV
//!    events tell which blocks they hold ([`Router::apply`]). Under load
//!    ([`RouterConfig::gather_at`]) the blocks of an outstanding prompt count as held by its
//!    replica from the pick on, so that requests with the same new prefix are routed to the same
//!    replica.
//! 2. Of the replicas that hold the longest prefix, pick the least loaded, if it is within the
//!    [`Imbalance`](crate::Imbalance). Otherwise find the longest shorter prefix with such a
//!    replica, by binary search: the holders of a prefix also hold all shorter ones.
//!
//!    With recurrent states ([`RouterConfig::hits_end_at_checkpoints`]), a replica can reuse a
//!    prefix only if it has a checkpoint at the prefix's end. It may lack one at the end of shorter
//!    prefixes, so the search is linear. Blocks of outstanding prompts count without a checkpoint,
//!    because the positions of a prompt's checkpoints are unknown before it is computed.
//! 3. If there is none, pick the session's replica if it is within the imbalance, else the least
//!    loaded.
//!
//! Cost of a pick: linear in the prompt and O(log n) in n replicas; [`Route::Prefix`] also searches
//! holders by load, about O(√n) per binary-search step or block with a checkpoint.
//!
//! Invariant: every `Charge` is released exactly once, when its request has ended or could not be
//! sent. Guarded by `replicas/tests.rs`, against a naive model.

use crate::replicas::load_order::{Load, LoadKey, LoadOrder};
use crate::replicas::prefix_map::PrefixMap;
use crate::replicas::route::{Route, RouteError, RouteRequest, RouterConfig};
use crate::replicas::session_map::SessionMap;
use kvasir_kv::{KvEvent, prefix_hashes};
use std::cmp::Reverse;

/// The load charged for one request. Pass it to [`Router::release`] once, when the request has
/// ended or could not be sent.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Charge {
    replica: usize,
    tokens: u64,
    /// Blocks that the request is expected to add to its replica's prefix cache.
    expected: Vec<u64>,
}

impl Charge {
    /// Index of the chosen replica.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

/// A prefix that a replica holds. The best one compares lowest: the longest, on the least loaded
/// replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldPrefix {
    blocks: Reverse<usize>,
    load: LoadKey,
    replica: u32,
}

/// Router over replicas.
#[derive(Clone, Debug)]
pub struct Router {
    config: RouterConfig,
    loads: Vec<Load>,
    /// Available replicas by load.
    order: LoadOrder,
    /// Start of the search; rotates, so that ties are broken round-robin.
    start: usize,
    /// Blocks in the replicas' prefix caches.
    stored: PrefixMap,
    /// Blocks at whose end the replicas have a checkpoint.
    checkpoints: PrefixMap,
    /// Blocks of outstanding prompts.
    expected: PrefixMap,
    sessions: SessionMap,
    /// Block hashes of the prompt that is being routed; reused memory.
    hashes: Vec<u64>,
}

impl Router {
    /// A router over `replicas` idle replicas; 0 counts as 1.
    pub fn new(config: RouterConfig, replicas: usize) -> Self {
        Self::with_loads(config, vec![Load::default(); replicas.max(1)])
    }

    /// A router over replicas with existing load; an empty list means one idle replica.
    pub fn with_loads(config: RouterConfig, mut loads: Vec<Load>) -> Self {
        if loads.is_empty() {
            loads.push(Load::default());
        }
        let mut order = LoadOrder::default();
        (0..).zip(&loads).for_each(|(replica, load)| order.insert(key(&config, load), replica));
        Self {
            config,
            loads,
            order,
            start: 0,
            stored: PrefixMap::default(),
            checkpoints: PrefixMap::default(),
            expected: PrefixMap::default(),
            sessions: SessionMap::default(),
            hashes: Vec::new(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// Outstanding load by replica.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Whether a replica may be picked.
    pub fn is_available(&self, replica: usize) -> bool {
        self.loads
            .get(replica)
            .is_some_and(|load| self.order.contains(key(&self.config, load), replica as u32))
    }

    /// Number of distinct blocks that the replicas hold according to their KV events.
    pub fn known_blocks(&self) -> usize {
        self.stored.len()
    }

    /// Sets whether a replica may be picked; initially all may. Its outstanding load is unchanged.
    /// Ignores unknown replicas.
    pub fn set_available(&mut self, replica: usize, is_available: bool) {
        let Some(load) = self.loads.get(replica) else { return };
        let key = key(&self.config, load);
        if is_available {
            self.order.insert(key, replica as u32);
        } else {
            self.order.remove(key, replica as u32);
        }
    }

    /// Applies a KV event of a replica; events must come in order. Only [`Route::Prefix`] uses them.
    pub fn apply(&mut self, replica: usize, event: &KvEvent) {
        if self.config.route != Route::Prefix || replica >= self.loads.len() {
            return;
        }
        let replica = replica as u32;
        match event {
            KvEvent::BlockStored { hashes, .. } => {
                hashes.iter().for_each(|&hash| self.stored.set(hash, replica));
            }
            KvEvent::BlockRemoved { hashes } => {
                hashes.iter().for_each(|&hash| self.stored.remove(hash, replica));
            }
            KvEvent::CheckpointStored { hash } => self.checkpoints.set(*hash, replica),
            KvEvent::CheckpointRemoved { hash } => self.checkpoints.remove(*hash, replica),
            KvEvent::AllBlocksCleared => {
                self.stored.clear(replica);
                self.checkpoints.clear(replica);
            }
        }
    }

    /// Number of leading blocks of a prompt that a replica can reuse, according to its KV events. 0
    /// unless the policy is [`Route::Prefix`].
    pub(crate) fn held_blocks(&self, replica: usize, request: &RouteRequest<'_>) -> u32 {
        let replica = replica as u32;
        let hashes = prefix_hashes(request.prompt, request.salt, self.config.block_size);
        let held = (1..).zip(hashes.take_while(|hash| self.stored.is_held_by(*hash, replica)));
        let can_end_at =
            |hash: u64| !self.config.hits_end_at_checkpoints || self.checkpoints.is_held_by(hash, replica);
        held.filter(|(_, hash)| can_end_at(*hash)).last().map_or(0, |(blocks, _)| blocks)
    }

    /// Forgets the blocks of a replica that restarts with an empty prefix cache.
    pub fn restarted(&mut self, replica: usize) {
        self.apply(replica, &KvEvent::AllBlocksCleared);
    }

    /// Picks a replica for a request, or the requested one, and charges it. On error nothing is
    /// charged.
    pub fn pick(&mut self, request: &RouteRequest<'_>) -> Result<Charge, RouteError> {
        let has_prefixes = self.config.route == Route::Prefix;
        self.hashes.clear();
        if has_prefixes {
            // The last token is always computed, because its logits are needed.
            let reusable = &request.prompt[..request.prompt.len().saturating_sub(1)];
            self.hashes.extend(prefix_hashes(reusable, request.salt, self.config.block_size));
        }
        let (replica, held) = match request.requested {
            Some(replica) if self.is_available(replica) => (replica, 0),
            Some(replica) if replica < self.loads.len() => return Err(RouteError::Unavailable(replica)),
            Some(replica) => return Err(RouteError::UnknownReplica(replica)),
            None => self.choose(request)?,
        };
        if let Some(session) = request.session
            && (has_prefixes || self.config.route == Route::Session)
        {
            self.sessions.set(session, replica as u32);
        }
        // A checkpoint may be evicted while a request uses the blocks before it.
        let first_expected = if self.config.hits_end_at_checkpoints { 0 } else { held };
        let expected = self.hashes[first_expected..].to_vec();
        expected.iter().for_each(|&hash| self.expected.add(hash, replica as u32));
        self.charge(replica, |load| Load {
            requests: load.requests.saturating_add(1),
            tokens: load.tokens.saturating_add(request.tokens),
        });
        Ok(Charge { replica, tokens: request.tokens, expected })
    }

    /// The replica that the policy picks, and how many leading blocks of the prompt it is expected
    /// to hold.
    fn choose(&mut self, request: &RouteRequest<'_>) -> Result<(usize, usize), RouteError> {
        let own = request.session.and_then(|session| self.sessions.replica(session));
        let own = own.filter(|&replica| self.is_available(replica as usize));
        match self.config.route {
            Route::Prefix => {
                if let Some(chosen) = self.longest_prefix() {
                    return Ok(chosen);
                }
                if let Some(own) = own.filter(|&own| self.loads[own as usize].requests <= self.max_requests())
                {
                    return Ok((own as usize, 0));
                }
            }
            Route::Session => {
                if let Some(own) = own {
                    return Ok((own as usize, 0));
                }
            }
            Route::RoundRobin | Route::LeastRequests | Route::LeastTokens => {}
        }
        self.least_loaded().map(|replica| (replica, 0))
    }

    /// The least loaded replica. Ties go to the first index from `start` on, which then advances by
    /// one, or under round robin to the index after the picked replica.
    fn least_loaded(&mut self) -> Result<usize, RouteError> {
        let from = self.start;
        let least = self.order.least_loaded(from as u32).ok_or(RouteError::NoneAvailable)? as usize;
        let passed = if self.config.route == Route::RoundRobin { least } else { from };
        self.start = (passed + 1) % self.loads.len();
        Ok(least)
    }

    /// Outstanding requests of the least loaded replica, under a policy that compares requests
    /// first.
    fn least_requests(&self) -> u64 {
        self.order.iter().next().map_or(0, |((requests, _), _)| requests)
    }

    /// Maximum of outstanding requests of a replica that may be chosen for its prefix or session.
    fn max_requests(&self) -> u64 {
        self.config.imbalance.max_requests(self.least_requests())
    }

    /// The longest prefix of `hashes` that a replica within the imbalance holds: the least loaded
    /// of its holders, and the number of blocks.
    fn longest_prefix(&self) -> Option<(usize, usize)> {
        let gathers = self.least_requests() >= self.config.gather_at;
        let expected = |hash| if gathers { self.expected.holders(hash) } else { &[] };
        let found = if self.config.hits_end_at_checkpoints {
            let found = [self.longest_checkpoint(), self.longest_held(|hash| [&[], expected(hash)])];
            found.into_iter().flatten().min()
        } else {
            self.longest_held(|hash| [self.stored.holders(hash), expected(hash)])
        };
        found.map(|held| (held.replica as usize, held.blocks.0))
    }

    /// The longest prefix that a replica within the imbalance holds. `holders` lists the replicas
    /// that hold the block of a hash; those of a prefix must also hold all shorter ones.
    fn longest_held<'a>(&self, holders: impl Fn(u64) -> [&'a [u32]; 2]) -> Option<HeldPrefix> {
        let is_held = |hash: &&u64| holders(**hash).iter().any(|list| !list.is_empty());
        let matched = self.hashes.iter().take_while(is_held).count();
        let holder = |blocks: usize| {
            let holders = holders(*self.hashes.get(blocks.checked_sub(1)?)?);
            let least = holders.into_iter().filter_map(|list| self.least_loaded_of(list, |_| true)).min()?;
            self.within_imbalance(blocks, least)
        };
        let mut best = holder(matched);
        if best.is_none() {
            // Invariant: a replica within the imbalance holds `low` blocks (0: any), and none
            // `high`.
            let (mut low, mut high) = (0, matched);
            while low + 1 < high {
                let middle = low.midpoint(high);
                match holder(middle) {
                    Some(found) => (best, low) = (Some(found), middle),
                    None => high = middle,
                }
            }
        }
        best
    }

    /// The longest prefix with a checkpoint at its end that a replica within the imbalance holds.
    fn longest_checkpoint(&self) -> Option<HeldPrefix> {
        let is_held = |hash: &u64| !self.stored.holders(*hash).is_empty();
        let matched = self.hashes.iter().take_while(|hash| is_held(hash)).count();
        (1..=matched).rev().find_map(|blocks| {
            let hash = self.hashes[blocks - 1];
            let is_stored = |replica| self.stored.is_held_by(hash, replica);
            let least = self.least_loaded_of(self.checkpoints.holders(hash), is_stored)?;
            self.within_imbalance(blocks, least)
        })
    }

    /// The prefix of `blocks` blocks on a replica, if that is within the imbalance.
    fn within_imbalance(&self, blocks: usize, (load, replica): (LoadKey, u32)) -> Option<HeldPrefix> {
        let blocks = Reverse(blocks);
        Some(HeldPrefix { blocks, load, replica }).filter(|held| held.load.0 <= self.max_requests())
    }

    /// The least loaded available replica of a sorted list that `is_usable` accepts. A list longer
    /// than √n of the n available replicas is searched in load order up to the first holder; a
    /// shorter one is scanned.
    fn least_loaded_of(&self, holders: &[u32], is_usable: impl Fn(u32) -> bool) -> Option<(LoadKey, u32)> {
        let available = self.order.len();
        if holders.len().saturating_mul(holders.len()) > available {
            let is_holder = |replica| holders.binary_search(&replica).is_ok() && is_usable(replica);
            return self.order.iter().find(|(_, replica)| is_holder(*replica));
        }
        let usable = holders.iter().copied().filter(|&replica| is_usable(replica));
        let keyed = usable.map(|replica| (self.key_of(replica), replica));
        keyed.filter(|&(key, replica)| self.order.contains(key, replica)).min()
    }

    fn key_of(&self, replica: u32) -> LoadKey {
        self.loads.get(replica as usize).map_or((0, 0), |load| key(&self.config, load))
    }

    /// Changes the load of a replica, and its place in the order if it is available.
    fn charge(&mut self, replica: usize, change: impl FnOnce(Load) -> Load) {
        let Some(load) = self.loads.get_mut(replica) else { return };
        let before = key(&self.config, load);
        *load = change(*load);
        let after = key(&self.config, load);
        if before != after && self.order.contains(before, replica as u32) {
            self.order.remove(before, replica as u32);
            self.order.insert(after, replica as u32);
        }
    }

    /// Releases a charge.
    pub fn release(&mut self, charge: Charge) {
        let Charge { replica, tokens, expected } = charge;
        expected.into_iter().for_each(|hash| self.expected.remove(hash, replica as u32));
        self.charge(replica, |load| Load {
            requests: load.requests.saturating_sub(1),
            tokens: load.tokens.saturating_sub(tokens),
        });
    }

    /// Routes and sends a group of requests in order.
    ///
    /// At the first failed send, that charge and all later ones are rolled back; the charges
    /// already sent are returned with the error. If a request has no replica, nothing is charged.
    pub fn send_all<E>(
        &mut self,
        requests: &[RouteRequest<'_>],
        mut send: impl FnMut(usize, &Charge) -> Result<(), E>,
    ) -> Result<(Vec<Charge>, Option<E>), RouteError> {
        let mut picked = Vec::with_capacity(requests.len());
        let start = self.start;
        for request in requests {
            match self.pick(request) {
                Ok(charge) => picked.push(charge),
                Err(error) => {
                    picked.into_iter().for_each(|charge| self.release(charge));
                    self.start = start;
                    return Err(error);
                }
            }
        }
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

/// Sort key of a load under the policy.
fn key(config: &RouterConfig, load: &Load) -> LoadKey {
    match config.route {
        Route::RoundRobin => (0, 0),
        Route::LeastRequests | Route::Prefix | Route::Session => (load.requests, load.tokens),
        Route::LeastTokens => {
            (load.tokens.saturating_add(config.request_weight.saturating_mul(load.requests)), 0)
        }
    }
}
