//! The waiting requests under `Order::Fair`: one FIFO per client key, and the order of the keys.
//!
//! Keys whose next request is within their entitlement come first, then those with the lowest
//! dominant share (`fair_share.rs`). Keys of equal rank take turns by deficit round robin: each turn
//! grants a key `QUANTUM` tokens, and its first request may be admitted once the deficit covers its
//! cost: its prompt tokens plus its maximum of output tokens. Unused output tokens are refunded.
//!
//! A request larger than its key's entitlement would starve while smaller requests of other keys
//! arrive. The queue counts the slots that other keys were granted since the request became the
//! first of its key. Once they reach its own slots times the number of other keys, the queue
//! exempts it (`KeyUse::exempt`): its key is entitled to its slots until it ends. So over time keys
//! get equal slots, whatever the sizes of their requests.
//!
//! Cost: O(log n) per operation for n keys, and O(n log n) for the first lookup after the number of
//! keys or the exemption has changed, which changes every entitlement.

use crate::request::sequence::Sequence;
use crate::scheduler::fair_share::KeyUse;
use crate::scheduler::queued::Queued;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Tokens granted to a key per turn of the round robin.
const QUANTUM: i64 = 1024;

/// The requests of one key.
#[derive(Debug, Default)]
struct Flow {
    fifo: VecDeque<Queued>,
    /// Tokens that its requests may still use in this round (deficit round robin).
    deficit: i64,
    /// Tokens to feed, over all its waiting requests.
    tokens: u64,
    /// Position in the round robin; lower is earlier.
    turn: u64,
    /// `FairQueue::admitted` when its first request became the first, plus the key's own admissions
    /// since.
    first_since: u64,
    /// The entry in `FairQueue::ranking`, if it has one.
    ranked: Option<(Rank, u64)>,
    /// Skipped until the next scheduling attempt.
    is_passed: bool,
}

impl Flow {
    fn shortfall(&self) -> i64 {
        self.fifo.front().map_or(0, |head| head.cost - self.deficit)
    }
}

/// How the first request of a key relates to the key's entitlement; the best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EntitlementClass {
    /// Exempt from the entitlement.
    Exempt,
    Within,
    Beyond,
}

/// Sort key of a client key: the class of its first request, then its dominant share.
type Rank = (EntitlementClass, u64);

/// Waiting requests by key, and the resources that running requests use.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// Keys with waiting or running requests.
    flows: BTreeMap<u64, Flow>,
    /// Keys with waiting requests by `Flow::turn`; the round robin is at the first.
    turns: BTreeMap<u64, u64>,
    next_turn: u64,
    /// The key that has received its quantum in this turn.
    granted: Option<u64>,
    used: KeyUse,
    /// (rank, turn, key) of the keys with waiting requests that are not skipped.
    ranking: BTreeSet<(Rank, u64, u64)>,
    /// Entitlements have changed since `ranking` was sorted.
    is_unsorted: bool,
    /// Keys that are skipped for the rest of this scheduling attempt.
    passed: Vec<u64>,
    /// Slots of all requests admitted so far, each counted once.
    admitted: u64,
    /// `admitted` when the oversized requests were last examined.
    examined: u64,
}

impl FairQueue {
    pub(crate) fn new(used: KeyUse) -> Self {
        Self { used, ..Self::default() }
    }

    /// Resources that running requests use, per key.
    pub(crate) fn used(&self) -> &KeyUse {
        &self.used
    }

    /// Number of keys with waiting or running requests.
    pub(crate) fn keys(&self) -> usize {
        self.flows.len()
    }

    /// Enqueues a request as the last of its key. A preempted one becomes the first and its cost is
    /// refunded.
    pub(crate) fn push(&mut self, key: u64, queued: Queued, is_preempted: bool) {
        if is_preempted && self.used.is_exempt(queued.number) {
            // A context shift may have changed its size.
            self.used.exempt(key, &queued);
            self.is_unsorted = true;
        }
        let is_new = !self.flows.contains_key(&key);
        let flow = self.flows.entry(key).or_default();
        if flow.fifo.is_empty() {
            flow.turn = self.next_turn;
            self.turns.insert(flow.turn, key);
            self.next_turn += 1;
        }
        flow.tokens += queued.tokens;
        if is_preempted {
            flow.deficit += queued.cost;
            flow.fifo.push_front(queued);
        } else {
            flow.fifo.push_back(queued);
        }
        if flow.fifo.len() == 1 && !is_preempted {
            flow.first_since = self.admitted;
        }
        self.is_unsorted |= is_new;
        self.rank(key);
        self.advance();
    }

    /// Removes a waiting request. With `keeps_wait`, the slots admitted while it was the first
    /// count for the next request of its key.
    fn extract(&mut self, key: u64, entry: u32, keeps_wait: bool) -> Option<Queued> {
        let flow = self.flows.get_mut(&key)?;
        let at = flow.fifo.iter().position(|queued| queued.entry == entry)?;
        let queued = flow.fifo.remove(at)?;
        flow.tokens -= queued.tokens;
        if at == 0 && !keeps_wait {
            flow.first_since = self.admitted;
        }
        if flow.fifo.is_empty() {
            self.turns.remove(&flow.turn);
            flow.deficit = 0;
            if self.granted == Some(key) {
                self.granted = None;
            }
        }
        Some(queued)
    }

    /// Removes a request that ended while waiting. False if it was not queued.
    pub(crate) fn remove(&mut self, key: u64, entry: u32) -> bool {
        let removed = self.extract(key, entry, false);
        if let Some(queued) = removed {
            self.end_exemption(queued.number);
        }
        self.rank(key);
        self.advance();
        removed.is_some()
    }

    /// Removes an admitted request and charges its key. Returns the slots that it was charged.
    pub(crate) fn take(&mut self, key: u64, entry: u32, is_first_admission: bool) -> Option<u64> {
        // A readmission must not reset the wait of its key's next request.
        let queued = self.extract(key, entry, !is_first_admission)?;
        self.used.take(key, queued.slots);
        let Some(flow) = self.flows.get_mut(&key) else { return Some(queued.slots) };
        flow.deficit -= if flow.fifo.is_empty() { 0 } else { queued.cost };
        if is_first_admission {
            self.admitted += queued.slots;
            // The key's own slots do not count against its next request.
            flow.first_since += queued.slots;
        }
        self.rank(key);
        self.advance();
        Some(queued.slots)
    }

    /// Releases the resources of a running request that ends or is preempted.
    pub(crate) fn release(&mut self, sequence: &Sequence, ends: bool) {
        let key = sequence.params().key;
        self.used.release(key, sequence.cold.charged_slots);
        if ends {
            self.end_exemption(sequence.number());
        }
        self.rank(key);
    }

    /// Changes the token deficit of a key that has waiting requests.
    pub(crate) fn refund(&mut self, key: u64, tokens: i64) {
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| !flow.fifo.is_empty()) {
            flow.deficit += tokens;
            self.advance();
        }
    }

    /// The request to consider next.
    pub(crate) fn front(&mut self) -> Option<u32> {
        self.first().map(|(_, queued)| queued.entry)
    }

    /// The request to consider next, if it is within its key's entitlement.
    pub(crate) fn entitled(&mut self) -> Option<u32> {
        self.first().filter(|(class, _)| *class != EntitlementClass::Beyond).map(|(_, queued)| queued.entry)
    }

    fn first(&mut self) -> Option<(EntitlementClass, Queued)> {
        if std::mem::take(&mut self.is_unsorted) {
            self.ranking.clear();
            let waiting: Vec<u64> = self.turns.values().copied().collect();
            for key in waiting {
                self.flows.entry(key).or_default().ranked = None;
                self.rank(key);
            }
        }
        let &((class, _), _, key) = self.ranking.first()?;
        let queued = self.flows.get(&key)?.fifo.front()?;
        Some((class, *queued))
    }

    /// Skips the waiting requests of a key until `begin_attempt`.
    pub(crate) fn pass_over(&mut self, key: u64) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.is_passed = true;
            self.passed.push(key);
            self.rank(key);
        }
    }

    pub(crate) fn begin_attempt(&mut self) {
        while let Some(key) = self.passed.pop() {
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.is_passed = false;
                self.rank(key);
            }
        }
        if self.admitted != self.examined {
            self.examined = self.admitted;
            self.exempt_overtaken();
        }
    }

    /// Waiting requests of keys whose first request is within their entitlement, at most `n` per
    /// key, with their tokens to feed; then `None` with those of the key's other requests.
    pub(crate) fn entitled_tokens(&self, n: usize) -> impl Iterator<Item = (u64, Option<u32>, u64)> {
        let is_entitled = |key: &u64, flow: &Flow| self.rank_of(*key, flow).0 != EntitlementClass::Beyond;
        let waiting = self.turns.values().filter_map(|key| Some((key, self.flows.get(key)?)));
        waiting.filter(move |(key, flow)| is_entitled(key, flow)).flat_map(move |(key, flow)| {
            let first = flow.fifo.iter().take(n).map(|queued| (*key, Some(queued.entry), queued.tokens));
            let counted: u64 = flow.fifo.iter().take(n).map(|queued| queued.tokens).sum();
            first.chain(std::iter::once((*key, None, flow.tokens - counted)))
        })
    }

    /// All waiting requests, in the order they would be considered if none were admitted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        let waiting = self.turns.iter().filter_map(|(turn, key)| Some((turn, key, self.flows.get(key)?)));
        let mut ranked: Vec<_> =
            waiting.map(|(turn, key, flow)| (self.rank_of(*key, flow), turn, flow)).collect();
        ranked.sort_by_key(|(rank, turn, _)| (*rank, **turn));
        let deepest = ranked.iter().map(|(_, _, flow)| flow.fifo.len()).max().unwrap_or(0);
        (0..deepest).flat_map(move |depth| {
            let at_depth = ranked.iter().filter_map(|(_, _, flow)| flow.fifo.get(depth));
            at_depth.collect::<Vec<_>>()
        })
    }

    fn rank_of(&self, key: u64, flow: &Flow) -> Rank {
        let class = match flow.fifo.front() {
            Some(head) if self.used.is_exempt(head.number) => EntitlementClass::Exempt,
            Some(head) if self.used.entitles(key, head.slots, self.keys()) => EntitlementClass::Within,
            _ => EntitlementClass::Beyond,
        };
        (class, self.used.dominant_share(key))
    }

    /// Updates the rank of a key after its requests or its use have changed. Drops the key if it
    /// has neither.
    fn rank(&mut self, key: u64) {
        let Some(flow) = self.flows.get(&key) else { return };
        if flow.fifo.is_empty() && self.used.of(key).sequences == 0 {
            if let Some((rank, turn)) = flow.ranked {
                self.ranking.remove(&(rank, turn, key));
            }
            self.flows.remove(&key);
            self.is_unsorted = true;
            return;
        }
        let is_listed = !flow.fifo.is_empty() && !flow.is_passed;
        let rank = is_listed.then(|| (self.rank_of(key, flow), flow.turn));
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let before = std::mem::replace(&mut flow.ranked, rank);
        if before == rank {
            return;
        }
        if let Some((rank, turn)) = before {
            self.ranking.remove(&(rank, turn, key));
        }
        if let Some((rank, turn)) = rank {
            self.ranking.insert((rank, turn, key));
        }
    }

    /// Advances the round robin to a key whose deficit covers its first request.
    fn advance(&mut self) {
        let mut visited = 0;
        while let Some((&turn, &key)) = self.turns.first_key_value() {
            let Some(flow) = self.flows.get_mut(&key) else { return };
            if self.granted != Some(key) {
                self.granted = Some(key);
                flow.deficit += QUANTUM;
            }
            if flow.shortfall() <= 0 {
                return;
            }
            self.granted = None;
            flow.turn = self.next_turn;
            self.turns.remove(&turn);
            self.turns.insert(self.next_turn, key);
            self.next_turn += 1;
            self.rank(key);
            visited += 1;
            if visited == self.turns.len() {
                self.grant_rounds();
                visited = 0;
            }
        }
    }

    /// Grants at once all full rounds in which no key could afford its first request.
    fn grant_rounds(&mut self) {
        let waiting = || self.turns.values().filter_map(|key| self.flows.get(key));
        let rounds = waiting().map(|flow| (flow.shortfall() - 1).div_euclid(QUANTUM)).min().unwrap_or(0);
        if rounds > 0 {
            for key in self.turns.values() {
                if let Some(flow) = self.flows.get_mut(key) {
                    flow.deficit += rounds * QUANTUM;
                }
            }
        }
    }

    /// Exempts the first arrival among the oversized requests that were overtaken by their own
    /// slots times the number of other keys, unless another request is exempt.
    fn exempt_overtaken(&mut self) {
        if self.used.has_exempt() {
            return;
        }
        let (others, share) = (self.keys().saturating_sub(1) as u64, self.used.equal_share(self.keys()));
        let waiting = self.turns.values().filter_map(|key| Some((*key, self.flows.get(key)?)));
        let overtaken = waiting.filter_map(|(key, flow)| {
            let head = flow.fifo.front()?;
            let is_due = self.admitted - flow.first_since >= others * head.slots;
            let is_oversized = head.slots > share.slots && self.used.of(key).sequences == 0;
            (is_oversized && is_due).then_some((key, *head))
        });
        if let Some((key, queued)) = overtaken.min_by_key(|(_, queued)| queued.number) {
            self.used.exempt(key, &queued);
            self.is_unsorted = true;
        }
    }

    fn end_exemption(&mut self, number: u64) {
        if self.used.is_exempt(number) {
            self.used.end_exemption();
            self.is_unsorted = true;
            // The next oversized request may be due already.
            self.examined = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::{Params, Request};
    use crate::scheduler::fair_share::Resources;

    fn queue() -> FairQueue {
        FairQueue::new(KeyUse::new(Resources { sequences: 64, slots: 6400 }))
    }

    fn queued(entry: u32, slots: u64) -> Queued {
        Queued { entry, number: entry.into(), cost: slots as i64, tokens: slots, slots, priority: 0 }
    }

    /// Admits the first request.
    fn admit(queue: &mut FairQueue, entry: u32) -> Sequence {
        let &(_, _, key) = queue.ranking.first().unwrap();
        let params = Params { key, ..Params::default() };
        let mut sequence = Sequence::new(Request { params, ..Request::default() });
        sequence.cold.number = entry.into();
        sequence.cold.charged_slots = queue.take(key, entry, true).unwrap();
        sequence
    }

    /// `front` and `iter` agree on the first request after random operations.
    #[test]
    fn ranking_equals_sorting_all_keys() {
        let mut queue = queue();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut running: Vec<Sequence> = Vec::new();
        for entry in 0..4000 {
            queue.begin_attempt();
            match random(4) {
                0 | 1 => queue.push(random(40), queued(entry, 16 + random(3000)), false),
                2 => running.extend(queue.front().map(|first| admit(&mut queue, first))),
                _ if !running.is_empty() => {
                    let ended = running.swap_remove(random(running.len() as u64) as usize);
                    queue.release(&ended, true);
                }
                _ => {}
            }
            let first = queue.iter().next().map(|queued| queued.entry);
            assert_eq!(queue.front(), first);
            assert_eq!(queue.ranking.len(), queue.turns.len());
            let live = queue.flows.iter().filter(|(key, flow)| {
                !flow.fifo.is_empty() || running.iter().any(|sequence| sequence.params().key == **key)
            });
            assert_eq!(live.count(), queue.keys());
        }
    }

    /// If each admission counted and sorted all keys, this would take minutes.
    #[test]
    fn admissions_of_many_keys_take_less_than_quadratic_time() {
        let mut queue = queue();
        let keys = 30_000;
        (0..keys).for_each(|entry| queue.push(entry.into(), queued(entry, 16), false));
        for _ in 0..keys {
            let entry = queue.front().unwrap();
            queue.take(entry.into(), entry, true);
        }
        assert_eq!((queue.front(), queue.keys()), (None, keys as usize));
    }

    #[test]
    fn oversized_request_is_exempt_after_its_own_slots_of_each_other_key() {
        let mut queue = queue();
        queue.push(9, queued(0, 4000), false);
        for entry in 1..=200 {
            queue.push(u64::from(entry % 2), queued(entry, 400), false);
        }
        let mut overtaking = 0;
        loop {
            queue.begin_attempt();
            let entry = queue.front().unwrap();
            if entry == 0 {
                break;
            }
            overtaking += 400;
            let admitted = admit(&mut queue, entry);
            queue.release(&admitted, true);
        }
        // 4000 slots for each of the two other keys.
        assert_eq!(overtaking, 8000);
        assert_eq!(queue.used().entitlement(1, 3).slots, 1200, "half of what it leaves");
        queue.remove(9, 0);
        assert_eq!(queue.used().entitlement(1, 2).slots, 3200);
    }
}
