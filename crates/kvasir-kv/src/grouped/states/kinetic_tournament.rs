//! `KineticTournament`: finds the checkpoint with the lowest retention value `recompute / (1 + age)`.
//!
//! All ages grow by one with every stored checkpoint, so the order of values changes although no
//! checkpoint is used. `(1 + age) / recompute` is linear in the number of stored checkpoints
//! (`now`), so two values change their order at most once. A kinetic tournament tree uses that:
//!
//! 1. A leaf per slot of the pool; an inner node has the *winner* of its two children.
//! 2. A node also has the first time (`expires_at`) at which a winner below it may change.
//! 3. A search plays expired nodes again, from the root down.
//!
//! An update takes O(log n) time in n slots, and replays take amortized polylogarithmic time. All
//! memory is allocated at construction. Guarded by the test against a linear search, and by
//! `StateLedger::check`.

use crate::contract::ids::Slot;
use std::cmp::Ordering;

/// A checkpoint that may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Cost of the positions since the previous checkpoint.
    pub(crate) recompute: u64,
    /// Time of its last use, at most the current one.
    pub(crate) last_use: u64,
    /// Its number, which breaks ties: the lowest is evicted first.
    pub(crate) number: u64,
}

impl Contender {
    /// `1 + age`.
    fn divisor(&self, now: u64) -> u128 {
        u128::from(now - self.last_use) + 1
    }

    /// Both values, multiplied by both divisors.
    fn scaled(&self, other: &Self, now: u64) -> (u128, u128) {
        let of = |one: &Self, other: &Self| u128::from(one.recompute) * other.divisor(now);
        (of(self, other), of(other, self))
    }

    /// The order of `recompute / (1 + age)`, then of the numbers.
    pub(crate) fn compare(&self, other: &Self, now: u64) -> Ordering {
        let (own, others) = self.scaled(other, now);
        own.cmp(&others).then(self.number.cmp(&other.number))
    }

    /// The first time after `now` at which `other` is the lower one. It must be the greater one at
    /// `now`.
    fn overtaken_at(&self, other: &Self, now: u64) -> u64 {
        // Each unit of time reduces the difference of the scaled values by that of the costs.
        let Some(speed) = self.recompute.checked_sub(other.recompute).filter(|speed| *speed > 0) else {
            return u64::MAX;
        };
        let (own, others) = self.scaled(other, now);
        let (lead, speed) = (others - own, u128::from(speed));
        let wins_tie = self.number < other.number;
        let units = if wins_tie { lead / speed + 1 } else { lead.div_ceil(speed) };
        u64::try_from(units).map_or(u64::MAX, |units| now.saturating_add(units))
    }
}

const NONE: Slot = Slot::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    winner: Slot,
    /// First time at which a winner at or below the node may change.
    expires_at: u64,
}

const EMPTY: Node = Node { winner: NONE, expires_at: u64::MAX };

/// The contenders by slot, and the tree over them.
#[derive(Clone, Debug)]
pub(crate) struct KineticTournament {
    contenders: Vec<Option<Contender>>,
    /// In heap order: the root is node 1, the children of node `n` are `2 n` and `2 n + 1`.
    nodes: Vec<Node>,
    len: u32,
}

impl KineticTournament {
    /// A tree over `slots` slots, without contenders.
    pub(crate) fn new(slots: u32) -> Self {
        let leaves = (slots as usize).next_power_of_two();
        Self { contenders: vec![None; leaves], nodes: vec![EMPTY; 2 * leaves], len: 0 }
    }

    /// Number of contenders.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds, changes or removes the contender of a slot. `now` must not decrease from call to call.
    pub(crate) fn set(&mut self, slot: Slot, contender: Option<Contender>, now: u64) {
        if self.contenders[slot as usize] == contender {
            return;
        }
        self.set_leaf(slot, contender);
        let mut node = (self.contenders.len() + slot as usize) / 2;
        while node > 0 {
            self.nodes[node] = self.play(node, now);
            node /= 2;
        }
    }

    /// Replaces all contenders. Linear in the slots.
    pub(crate) fn reset(&mut self, now: u64, contender: impl Fn(Slot) -> Option<Contender>) {
        for slot in 0..self.contenders.len() as Slot {
            self.set_leaf(slot, contender(slot));
        }
        for node in (1..self.contenders.len()).rev() {
            self.nodes[node] = self.play(node, now);
        }
    }

    /// The slot of the contender with the lowest retention value.
    pub(crate) fn lowest(&mut self, now: u64) -> Option<Slot> {
        self.replay(1, now);
        Some(self.nodes[1].winner).filter(|winner| *winner != NONE)
    }

    /// The contender of a slot.
    pub(crate) fn get(&self, slot: Slot) -> Option<Contender> {
        self.contenders[slot as usize]
    }

    /// Sets the contender of a slot and its leaf, not the nodes above.
    fn set_leaf(&mut self, slot: Slot, contender: Option<Contender>) {
        let leaf = self.contenders.len() + slot as usize;
        self.len -= u32::from(self.contenders[slot as usize].is_some());
        self.len += u32::from(contender.is_some());
        self.contenders[slot as usize] = contender;
        let winner = if contender.is_some() { slot } else { NONE };
        self.nodes[leaf] = Node { winner, ..EMPTY };
    }

    /// The match of a node's children. The result expires no later than its children.
    fn play(&self, node: usize, now: u64) -> Node {
        let [left, right] = [self.nodes[2 * node], self.nodes[2 * node + 1]];
        let expires_at = left.expires_at.min(right.expires_at);
        let contender = |node: Node| self.contenders.get(node.winner as usize).copied().flatten();
        match (contender(left), contender(right)) {
            (Some(one), Some(other)) if one.compare(&other, now).is_lt() => {
                Node { winner: left.winner, expires_at: expires_at.min(one.overtaken_at(&other, now)) }
            }
            (Some(one), Some(other)) => {
                Node { winner: right.winner, expires_at: expires_at.min(other.overtaken_at(&one, now)) }
            }
            (Some(_), None) => Node { winner: left.winner, expires_at },
            (None, _) => Node { winner: right.winner, expires_at },
        }
    }

    /// Plays the expired nodes at and below a node again.
    fn replay(&mut self, node: usize, now: u64) {
        if self.nodes[node].expires_at > now {
            return;
        }
        self.replay(2 * node, now);
        self.replay(2 * node + 1, now);
        self.nodes[node] = self.play(node, now);
    }

    /// Compares all contenders with those expected, and the winner with that of a linear search.
    pub(crate) fn check(&self, now: u64, expected: impl Fn(Slot) -> Option<Contender>) -> Result<(), String> {
        let mut lowest: Option<(Contender, Slot)> = None;
        for slot in 0..self.contenders.len() as Slot {
            let contender = expected(slot);
            if self.get(slot) != contender {
                let found = self.get(slot);
                return Err(format!("state slot {slot} has contender {found:?}, expected {contender:?}"));
            }
            let Some(contender) = contender else { continue };
            if lowest.is_none_or(|(lowest, _)| contender.compare(&lowest, now).is_lt()) {
                lowest = Some((contender, slot));
            }
        }
        let (winner, lowest) = (self.clone().lowest(now), lowest.map(|(_, slot)| slot));
        if winner == lowest { Ok(()) } else { Err(format!("the victim is {winner:?}, expected {lowest:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::kinetic_tournament::*;
    use kvasir_testkit::{Random, rounds};

    #[test]
    fn the_winner_is_that_of_a_linear_search() {
        for seed in 0..rounds(200) {
            let mut random = Random::new(seed);
            let slots = random.between(1, 40);
            let largest = random.pick(&[4, 100, u64::MAX]);
            let mut tournament = KineticTournament::new(slots);
            let mut expected = vec![None; slots as usize];
            let mut now = 0;
            for number in 0..400 {
                let longest = random.pick(&[1, 3, 1000]);
                now += random.below(longest);
                let slot = random.below(u64::from(slots)) as usize;
                let (recompute, age) = (random.below(largest), random.below(9).min(now));
                let contender = Contender { recompute, last_use: now - age, number };
                expected[slot] = Some(contender).filter(|_| random.chance(80));
                tournament.set(slot as Slot, expected[slot], now);
                if random.one_in(50) {
                    tournament.reset(now, |slot| expected.get(slot as usize).copied().flatten());
                }
                let contender = |slot: Slot| expected.get(slot as usize).copied().flatten();
                tournament.check(now, contender).unwrap();
                if random.one_in(2) {
                    tournament.lowest(now);
                }
                assert_eq!(tournament.len() as usize, expected.iter().flatten().count());
            }
        }
    }
}
