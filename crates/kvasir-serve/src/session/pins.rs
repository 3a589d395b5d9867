//! Pinned prefixes (`cache_control`): which ones the engine keeps, for whom, and until when.
//!
//! The engine retains a pin's K/V under an id that stands for its tokens, so a prefix that is pinned
//! again is renewed.

use crate::host::lock::{Mutex, locked};
use kvasir_engine::SessionId;
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
