//! `Sessions`: installed caches under keys, so that a backend finds the cache its steps name; a
//! missing capability is refused at installation.
//!
//! `Session<U>` removes its entry when dropped, on every exit path. A `HeldCache` is shared by the
//! session, the registry and each step in flight, so erasing a session in the middle of a step is
//! safe. The engine owns its one cache and does not need this module.

use crate::contract::cache::{Cache, Prefix, Rewind, Sequences, Tree};
use crate::contract::error::CacheError;
use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Key of an installed session; a registry never issues one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

/// A shared cache: held by the session, the registry and each step in flight. Lives until all have
/// dropped it, so erasing a session in the middle of a step is safe.
#[derive(Clone)]
pub struct HeldCache(Arc<Mutex<Box<dyn Cache>>>);

impl HeldCache {
    /// Locks the cache for one call. Operations leave nothing half done, so a lock poisoned by a
    /// panic is usable.
    pub fn lock(&self) -> MutexGuard<'_, Box<dyn Cache>> {
        lock(&self.0)
    }

    /// Number of holders.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

#[derive(Default)]
struct Table {
    /// Number of keys issued.
    issued: u64,
    installed: BTreeMap<SessionKey, HeldCache>,
}

/// Registry of installed sessions, by which a backend finds the cache its steps name. Clones are
/// the same registry.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<Table>>);

impl Sessions {
    /// Installs a cache for a use; refused with `NoCapability` if the cache lacks the capability.
    pub fn install<U: Use>(&self, mut cache: Box<dyn Cache>) -> Result<Session<U>, CacheError> {
        U::capability(&mut *cache)?;
        let cache = HeldCache(Arc::new(Mutex::new(cache)));
        let mut table = lock(&self.0);
        table.issued += 1;
        let key = SessionKey(table.issued);
        table.installed.insert(key, cache.clone());
        Ok(Session { key, cache, sessions: self.clone(), used: PhantomData })
    }

    /// The cache installed under a key; the submitter of a step must hold it until the step has
    /// ended.
    pub fn get(&self, key: SessionKey) -> Option<HeldCache> {
        lock(&self.0).installed.get(&key).cloned()
    }

    /// Removes an entry before its session ends. Existing holders keep the cache.
    pub fn erase(&self, key: SessionKey) -> bool {
        lock(&self.0).installed.remove(&key).is_some()
    }

    /// Number of installed sessions.
    pub fn len(&self) -> usize {
        lock(&self.0).installed.len()
    }

    /// Whether none is installed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An installed cache with the capability that its use needs; uninstalled on drop.
pub struct Session<U: Use> {
    key: SessionKey,
    cache: HeldCache,
    sessions: Sessions,
    used: PhantomData<U>,
}

impl<U: Use> Session<U> {
    /// The key under which a backend finds the cache.
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// Runs `work` on the locked cache.
    pub fn cache<R>(&self, work: impl FnOnce(&mut dyn Cache) -> R) -> R {
        work(&mut **self.cache.lock())
    }

    /// Runs `work` on the capability that the session was made for.
    pub fn capability<R>(
        &self,
        work: impl for<'a> FnOnce(&'a mut U::Capability<'a>) -> R,
    ) -> Result<R, CacheError> {
        U::capability(&mut **self.cache.lock()).map(work)
    }
}

impl<U: Use> Drop for Session<U> {
    fn drop(&mut self) {
        self.sessions.erase(self.key);
    }
}

/// What a session is for: the capability that its holder uses.
pub trait Use {
    /// The capability trait.
    type Capability<'a>: ?Sized;
    /// The cache's capability for this use, or `NoCapability`.
    fn capability<'a>(cache: &'a mut dyn Cache) -> Result<&'a mut Self::Capability<'a>, CacheError>;
}

/// Single-stream decoding with truncation.
pub enum Rewinding {}
/// Forks and range operations.
pub enum Branching {}
/// Prefix caching.
pub enum Matching {}
/// Speculative decoding with draft trees.
pub enum Speculating {}

impl Use for Rewinding {
    type Capability<'a> = dyn Rewind + 'a;
    fn capability<'a>(cache: &'a mut dyn Cache) -> Result<&'a mut Self::Capability<'a>, CacheError> {
        cache.rewind()
    }
}

impl Use for Branching {
    type Capability<'a> = dyn Sequences + 'a;
    fn capability<'a>(cache: &'a mut dyn Cache) -> Result<&'a mut Self::Capability<'a>, CacheError> {
        cache.sequences()
    }
}

impl Use for Matching {
    type Capability<'a> = dyn Prefix + 'a;
    fn capability<'a>(cache: &'a mut dyn Cache) -> Result<&'a mut Self::Capability<'a>, CacheError> {
        cache.prefix()
    }
}

impl Use for Speculating {
    type Capability<'a> = dyn Tree + 'a;
    fn capability<'a>(cache: &'a mut dyn Cache) -> Result<&'a mut Self::Capability<'a>, CacheError> {
        cache.tree()
    }
}

#[cfg(test)]
mod tests {
    use crate::contract::cache::ClaimRow;
    use crate::contract::ids::{SeqId, StepId};
    use crate::contract::kind::{CacheKind, Capability};
    use crate::contract::plan::Plan;
    use crate::registry::sessions::*;
    use crate::registry::{CacheConfig, build};

    fn cache(kind: CacheKind) -> Box<dyn Cache> {
        build(kind, &CacheConfig::new(64)).unwrap()
    }

    #[test]
    fn a_capability_that_a_cache_lacks_is_refused_by_name() {
        fn installs<U: Use>(capability: Capability, kinds: &[CacheKind]) {
            let sessions = Sessions::default();
            for &kind in CacheKind::ALL {
                let installed = sessions.install::<U>(cache(kind)).map(|_| ());
                let expected = if kinds.contains(&kind) {
                    Ok(())
                } else {
                    Err(CacheError::NoCapability { kind, capability })
                };
                assert_eq!(installed, expected);
            }
            assert!(sessions.is_empty(), "a refused cache is not installed, a dropped session is removed");
        }
        use CacheKind::{Cells, Paged, Radix, Tree};
        installs::<Rewinding>(Capability::Rewind, CacheKind::ALL);
        installs::<Branching>(Capability::Sequences, &[Cells, Paged, Radix]);
        installs::<Matching>(Capability::Prefix, &[Paged, Radix]);
        installs::<Speculating>(Capability::Tree, &[Cells, Tree, Paged, Radix]);
    }

    #[test]
    fn a_session_is_removed_on_every_way_out_and_its_key_never_comes_back() {
        let sessions = Sessions::default();
        let first = sessions.install::<Rewinding>(cache(CacheKind::Cells)).unwrap();
        let key = first.key();
        assert!(sessions.get(key).is_some());
        let early = || -> Result<(), CacheError> {
            let session = sessions.install::<Rewinding>(cache(CacheKind::Tree))?;
            session.capability(|rewind| rewind.rewind_to(SeqId(9), 0))??;
            Ok(())
        };
        assert!(early().is_err());
        let unwound = std::panic::catch_unwind(|| {
            let _session = sessions.install::<Rewinding>(cache(CacheKind::Tree)).unwrap();
            panic!("on the way");
        });
        assert!(unwound.is_err());
        assert_eq!(sessions.len(), 1);
        drop(first);
        assert!(sessions.get(key).is_none() && sessions.is_empty());
        assert!(sessions.install::<Rewinding>(cache(CacheKind::Cells)).unwrap().key() > key);
    }

    #[test]
    fn a_step_in_flight_keeps_an_erased_cache_alive() {
        let sessions = Sessions::default();
        let session = sessions.install::<Rewinding>(cache(CacheKind::Contiguous)).unwrap();
        let step = sessions.get(session.key()).unwrap();
        let row = session.cache(|cache| {
            let seq = cache.open().unwrap();
            let row = ClaimRow::new(seq, 3);
            cache.claim(StepId(1), &[row]).unwrap();
            cache.plan(StepId(1), &mut Plan::default()).unwrap();
            row
        });
        assert_eq!(step.holders(), 3);
        assert!(sessions.erase(session.key()));
        drop(session);
        assert_eq!(step.holders(), 1, "only the step is left");
        step.lock().retire(StepId(1)).unwrap();
        assert_eq!(step.lock().len(row.seq), Ok(3));
    }
}
