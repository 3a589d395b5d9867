//! Pinned prefixes (`cache_control`): which ones the engine keeps, for whom, and until when.
//!
//! The engine retains a pin's K/V under an id that stands for its tokens, so a prefix that is pinned
//! again is renewed.

use crate::host::lock::{Mutex, locked};
use kvasir_engine::SessionId;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum pins of one key: its least recently used one ends for a new one.
const MAX_OF_KEY: usize = 256;

/// The pins of all keys.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<HashMap<SessionId, Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: u64,
    used: Instant,
    expires: Instant,
}

/// A pin as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedPin {
    pub(crate) id: SessionId,
    pub(crate) owner: u64,
    pub(crate) expires_in: Duration,
}

/// Public name of a pin.
pub(crate) fn name(id: SessionId) -> String {
    format!("pin_{:016x}", id.0)
}

/// The pin of a public name.
pub(crate) fn id_of(name: &str) -> Option<SessionId> {
    let digits = name.strip_prefix("pin_").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SessionId)
}

impl Pins {
    /// Begins a pin, or renews it. Returns a pin of the key that ends for it.
    pub(crate) fn renew(&self, id: SessionId, owner: u64, ttl: Duration, now: Instant) -> Option<SessionId> {
        let mut pins = locked(&self.0);
        let entry = pins.entry(id).or_insert(Entry { owner, used: now, expires: now });
        entry.used = now;
        entry.expires = entry.expires.max(now + ttl);
        let own = || pins.iter().filter(|(_, entry)| entry.owner == owner);
        if own().count() <= MAX_OF_KEY {
            return None;
        }
        let oldest = own().filter(|(other, _)| **other != id).min_by_key(|(_, entry)| entry.used);
        let oldest = oldest.map(|(id, _)| *id)?;
        pins.remove(&oldest);
        Some(oldest)
    }

    /// The pins of a key, or all, most recently used first.
    pub(crate) fn list(&self, owner: Option<u64>, now: Instant) -> Vec<ListedPin> {
        let pins = locked(&self.0);
        let mut listed: Vec<_> =
            pins.iter().filter(|(_, entry)| owner.is_none_or(|owner| entry.owner == owner)).collect();
        listed.sort_by_key(|(id, entry)| (Reverse(entry.used), **id));
        let expires_in = |entry: &Entry| entry.expires.saturating_duration_since(now);
        listed
            .into_iter()
            .map(|(id, entry)| ListedPin { id: *id, owner: entry.owner, expires_in: expires_in(entry) })
            .collect()
    }

    /// Removes a pin, or all, of a key or of all keys; returns them.
    pub(crate) fn remove(&self, id: Option<SessionId>, owner: Option<u64>) -> Vec<SessionId> {
        let is_meant = |of: &SessionId, entry: &mut Entry| {
            id.is_none_or(|id| id == *of) && owner.is_none_or(|owner| entry.owner == owner)
        };
        locked(&self.0).extract_if(is_meant).map(|(id, _)| id).collect()
    }

    /// Removes the pins whose time is over; returns them.
    pub(crate) fn expire(&self, now: Instant) -> Vec<SessionId> {
        locked(&self.0).extract_if(|_, entry| entry.expires <= now).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_end_after_their_time_unless_they_are_renewed() {
        let (pins, start) = (Pins::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (short, long) = (Duration::from_secs(300), Duration::from_secs(3600));
        for (id, ttl) in [(1, short), (2, long), (3, short)] {
            assert_eq!(pins.renew(SessionId(id), 7, ttl, at(0)), None);
        }
        pins.renew(SessionId(3), 7, short, at(200));
        pins.renew(SessionId(2), 7, short, at(200));
        assert_eq!(pins.expire(at(299)), []);
        assert_eq!(pins.expire(at(300)), [SessionId(1)]);
        assert_eq!(pins.expire(at(500)), [SessionId(3)]);
        assert_eq!(pins.expire(at(3600)), [SessionId(2)], "a shorter time does not cut a longer one");
    }

    #[test]
    fn a_key_lists_and_removes_its_own_pins_only() {
        let (pins, now, ttl) = (Pins::default(), Instant::now(), Duration::from_secs(300));
        for (id, owner, age) in [(1, 7, 2), (2, 7, 1), (3, 8, 0)] {
            pins.renew(SessionId(id), owner, ttl, now - Duration::from_secs(age));
        }
        let ids = |owner| pins.list(owner, now).iter().map(|pin| pin.id.0).collect::<Vec<_>>();
        assert_eq!((ids(Some(7)), ids(None)), (vec![2, 1], vec![3, 2, 1]));
        assert_eq!(pins.list(Some(7), now)[1].expires_in, Duration::from_secs(298));
        assert_eq!(pins.remove(Some(SessionId(3)), Some(7)), [], "another key's");
        assert_eq!(pins.remove(Some(SessionId(3)), None), [SessionId(3)]);
        assert_eq!((pins.remove(None, Some(7)).len(), ids(None)), (2, vec![]));
        assert_eq!(id_of(&name(SessionId(0xabc))), Some(SessionId(0xabc)));
        assert_eq!((id_of("pin_1"), id_of("sess_0000000000000001")), (None, None));
    }

    #[test]
    fn the_least_recently_used_pin_of_a_key_ends_for_a_new_one() {
        let (pins, now, ttl) = (Pins::default(), Instant::now(), Duration::from_secs(300));
        pins.renew(SessionId(u64::MAX), 8, ttl, now);
        for id in 0..MAX_OF_KEY as u64 {
            assert_eq!(pins.renew(SessionId(id), 7, ttl, now + Duration::from_secs(id)), None);
        }
        let later = now + Duration::from_secs(600);
        assert_eq!(pins.renew(SessionId(0), 7, ttl, later), None);
        assert_eq!(pins.renew(SessionId(999), 7, ttl, later), Some(SessionId(1)));
    }
}
