//! Cache construction: `CacheConfig`, the built-in `build`, and `Builders`, a registry of cache
//! builders per backend and kind.
//!
//! `Builders` is an owned value, not a global. A configuration that a kind cannot honor (a window,
//! rings) is refused.

use crate::blocks::BlockConfig;
use crate::blocks::paged::Paged;
use crate::blocks::radix::Radix;
use crate::cells::Cells;
use crate::contiguous::Contiguous;
use crate::contract::cache::Cache;
use crate::contract::error::CacheError;
use crate::contract::kind::CacheKind;
use crate::contract::rings::Rings;
use crate::tree::TreeCache;
use std::{collections::BTreeMap, fmt};

/// Run-time configuration of a cache. The KV shape and the storage type belong to the pool, not
/// here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Slots that may be allocated.
    pub capacity: u32,
    /// Maximum number of live sequences, for kinds that hold several.
    pub max_sequences: u32,
    /// Slots per block, for kinds that use blocks.
    pub block_size: u32,
    /// Whether prefix caching is on, for kinds that support it.
    pub sharing: bool,
    /// Whether block 0 is reserved as a dummy for redirected writes, for kinds that use blocks.
    pub dummy: bool,
    /// Sliding window of every layer, for `cells`. Only recorded cases set it: models have a window
    /// per layer, which the backend applies.
    pub window: Option<u32>,
    /// Ring buffers of sliding-window layers, for `contiguous`.
    pub rings: Option<Rings>,
}

impl CacheConfig {
    /// Default configuration with `capacity` slots.
    pub fn new(capacity: u32) -> Self {
        let BlockConfig { block_size, max_sequences, sharing, dummy, .. } = BlockConfig::default();
        Self { capacity, max_sequences, block_size, sharing, dummy, window: None, rings: None }
    }

    fn blocks(&self) -> Result<BlockConfig, CacheError> {
        let &Self { block_size, max_sequences, sharing, dummy, .. } = self;
        let blocks = self.capacity.checked_div(block_size);
        let blocks = blocks.ok_or(CacheError::BadConfig("the block size must be 1 to 256"))?;
        Ok(BlockConfig { block_size, blocks, max_sequences, sharing, dummy })
    }

    /// Refuses options that the kind does not support.
    fn check(&self, kind: CacheKind) -> Result<(), CacheError> {
        match kind {
            _ if self.window.is_some() && kind != CacheKind::Cells => {
                Err(CacheError::BadConfig("only a cells cache takes a window"))
            }
            _ if self.rings.is_some() && kind != CacheKind::Contiguous => {
                Err(CacheError::BadConfig("only a contiguous cache takes rings"))
            }
            _ => Ok(()),
        }
    }
}

/// Builds a cache from its configuration.
pub type CacheBuilder = Box<dyn Fn(&CacheConfig) -> Result<Box<dyn Cache>, CacheError> + Send + Sync>;

/// Why no cache was built or no builder registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// No builder for this backend and kind.
    NoBuilder {
        /// The backend.
        backend: String,
        /// The kind.
        kind: CacheKind,
    },
    /// There is a builder for this backend and kind already.
    HasBuilder {
        /// The backend.
        backend: String,
        /// The kind.
        kind: CacheKind,
    },
    /// The cache refused the configuration.
    Cache(CacheError),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBuilder { backend, kind } => write!(f, "backend {backend} builds no {kind} cache"),
            Self::HasBuilder { backend, kind } => {
                write!(f, "backend {backend} has a builder of {kind} caches already")
            }
            Self::Cache(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegistryError {}

impl From<CacheError> for RegistryError {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

/// Cache builders by backend and kind. An owned value, not a global.
#[derive(Default)]
pub struct Builders {
    builders: BTreeMap<(String, &'static str), CacheBuilder>,
}

impl Builders {
    /// Registers a builder. Refused if there is one already.
    pub fn register(
        &mut self,
        backend: &str,
        kind: CacheKind,
        builder: CacheBuilder,
    ) -> Result<(), RegistryError> {
        let key = (backend.to_owned(), kind.name());
        if self.builders.contains_key(&key) {
            return Err(RegistryError::HasBuilder { backend: key.0, kind });
        }
        self.builders.insert(key, builder);
        Ok(())
    }

    /// Registers this crate's caches of these kinds for a backend.
    pub fn register_own(&mut self, backend: &str, kinds: &[CacheKind]) -> Result<(), RegistryError> {
        kinds
            .iter()
            .try_for_each(|&kind| self.register(backend, kind, Box::new(move |config| build(kind, config))))
    }

    /// Builds a cache with the builder registered for this backend and kind.
    pub fn build(
        &self,
        backend: &str,
        kind: CacheKind,
        config: &CacheConfig,
    ) -> Result<Box<dyn Cache>, RegistryError> {
        match self.builders.get(&(backend.to_owned(), kind.name())) {
            Some(builder) => Ok(builder(config)?),
            None => Err(RegistryError::NoBuilder { backend: backend.to_owned(), kind }),
        }
    }
}

/// Builds this crate's cache of one kind.
pub fn build(kind: CacheKind, config: &CacheConfig) -> Result<Box<dyn Cache>, CacheError> {
    config.check(kind)?;
    Ok(match kind {
        CacheKind::Contiguous => match &config.rings {
            Some(rings) => Box::new(Contiguous::with_rings(config.capacity, rings.clone())),
            None => Box::new(Contiguous::new(config.capacity)),
        },
        CacheKind::Cells => Box::new(Cells::new(config.capacity, config.max_sequences, config.window)?),
        CacheKind::Tree => Box::new(TreeCache::new(config.capacity)),
        CacheKind::Paged => Box::new(Paged::new(config.blocks()?)?),
        CacheKind::Radix => Box::new(Radix::new(config.blocks()?)?),
    })
}

#[cfg(test)]
mod tests {
    use crate::contract::kind::Capability;
    use crate::registry::*;

    #[test]
    fn a_capability_that_a_cache_lacks_is_refused_by_name() {
        use CacheKind::{Cells, Paged, Radix, Tree};
        for &kind in CacheKind::ALL {
            let mut cache = build(kind, &CacheConfig::new(64)).unwrap();
            let expected = |capability, kinds: &[CacheKind]| {
                kinds.contains(&kind).then_some(()).ok_or(CacheError::NoCapability { kind, capability })
            };
            assert_eq!(cache.rewind().map(drop), expected(Capability::Rewind, CacheKind::ALL));
            assert_eq!(cache.sequences().map(drop), expected(Capability::Sequences, &[Cells, Paged, Radix]));
            assert_eq!(cache.prefix().map(drop), expected(Capability::Prefix, &[Paged, Radix]));
            assert_eq!(cache.tree().map(drop), expected(Capability::Tree, &[Cells, Tree, Paged, Radix]));
            assert_eq!(cache.sequences().is_err(), kind.holds_one_sequence());
        }
    }

    #[test]
    fn a_backend_builds_what_it_registered_and_nothing_else() {
        let mut builders = Builders::default();
        builders.register_own("cpu", CacheKind::ALL).unwrap();
        builders.register_own("plain", &[CacheKind::Contiguous]).unwrap();
        let config = CacheConfig::new(64);
        for &kind in CacheKind::ALL {
            let cache = builders.build("cpu", kind, &config).unwrap();
            assert_eq!((cache.kind(), cache.capacity()), (kind, 64));
        }
        let kind = CacheKind::Tree;
        let missing = RegistryError::NoBuilder { backend: "plain".into(), kind };
        assert_eq!(builders.build("plain", kind, &config).err(), Some(missing));
        let twice = RegistryError::HasBuilder { backend: "cpu".into(), kind };
        assert_eq!(builders.register_own("cpu", &[kind]), Err(twice));
    }

    #[test]
    fn a_kind_refuses_unsupported_options() {
        let window = CacheConfig { window: Some(4), ..CacheConfig::new(64) };
        let rings = CacheConfig { rings: Rings::new(vec![4], 2).ok(), ..CacheConfig::new(64) };
        for &kind in CacheKind::ALL {
            assert_eq!(build(kind, &window).is_ok(), kind == CacheKind::Cells, "{kind}");
            assert_eq!(build(kind, &rings).is_ok(), kind == CacheKind::Contiguous, "{kind}");
        }
        let blockless = CacheConfig { block_size: 0, ..CacheConfig::new(64) };
        assert!(build(CacheKind::Paged, &blockless).is_err());
    }
}
