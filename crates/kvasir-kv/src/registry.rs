//! Cache construction by kind: `CacheConfig` and `build`.
//!
//! Plans are the same for every backend, so every kind serves every backend and nothing is
//! registered. A configuration that a kind cannot honor (rings, a block size of 0) is refused.

use crate::blocks::BlockConfig;
use crate::blocks::paged::Paged;
use crate::blocks::radix::Radix;
use crate::cells::Cells;
use crate::contiguous::Contiguous;
use crate::contract::cache::Cache;
use crate::contract::error::CacheError;
use crate::contract::group::{StateConfig, WindowConfig};
use crate::contract::kind::CacheKind;
use crate::contract::rings::Rings;
use crate::grouped::{Grouped, GroupsConfig};
use crate::tree::TreeCache;

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
    /// Ring buffers of sliding-window layers, for `contiguous`.
    pub rings: Option<Rings>,
    /// The pools of sliding-window layers that have their own, from narrow to wide. For `paged`,
    /// `radix` and `cells`.
    pub windows: Vec<WindowConfig>,
    /// The pool of recurrent states, if the model has recurrent layers.
    pub states: Option<StateConfig>,
}

impl CacheConfig {
    /// Default configuration with `capacity` slots.
    pub fn new(capacity: u32) -> Self {
        let BlockConfig { block_size, max_sequences, sharing, dummy, .. } = BlockConfig::default();
        let (rings, windows, states) = (None, Vec::new(), None);
        Self { capacity, max_sequences, block_size, sharing, dummy, rings, windows, states }
    }

    fn blocks(&self) -> Result<BlockConfig, CacheError> {
        let &Self { block_size, max_sequences, sharing, dummy, .. } = self;
        let blocks = self.capacity.checked_div(block_size);
        let blocks = blocks.ok_or(CacheError::BadConfig("the block size must be 1 to 256"))?;
        Ok(BlockConfig { block_size, blocks, max_sequences, sharing, dummy, ..BlockConfig::default() })
    }
}

/// Builds a cache of one kind.
pub fn build(kind: CacheKind, config: &CacheConfig) -> Result<Box<dyn Cache>, CacheError> {
    if config.rings.is_some() && kind != CacheKind::Contiguous {
        return Err(CacheError::BadConfig("only a contiguous cache takes rings"));
    }
    if config.rings.is_some() && config.states.is_some() {
        return Err(CacheError::BadConfig("a cache with rings cannot hold recurrent states"));
    }
    let primary: Box<dyn Cache> = match kind {
        CacheKind::Contiguous => match &config.rings {
            Some(rings) => Box::new(Contiguous::with_rings(config.capacity, rings.clone())),
            None => Box::new(Contiguous::new(config.capacity)),
        },
        CacheKind::Cells => Box::new(Cells::new(config.capacity, config.max_sequences, None)?),
        CacheKind::Tree => Box::new(TreeCache::new(config.capacity)),
        CacheKind::Paged => Box::new(Paged::new(config.blocks()?)?),
        CacheKind::Radix => Box::new(Radix::new(config.blocks()?)?),
    };
    if config.windows.is_empty() && config.states.is_none() {
        return Ok(primary);
    }
    let block_size = primary.shape().block_size;
    let blocks = CacheConfig { block_size, dummy: config.dummy && kind.is_block_based(), ..config.clone() }
        .blocks()?;
    let groups = GroupsConfig { windows: &config.windows, blocks, states: config.states };
    Ok(Box::new(Grouped::new(primary, groups)?))
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
    fn a_kind_refuses_unsupported_options() {
        let rings = CacheConfig { rings: Rings::new(vec![4], 2).ok(), ..CacheConfig::new(64) };
        for &kind in CacheKind::ALL {
            assert_eq!(build(kind, &rings).is_ok(), kind == CacheKind::Contiguous, "{kind}");
        }
        let blockless = CacheConfig { block_size: 0, ..CacheConfig::new(64) };
        assert!(build(CacheKind::Paged, &blockless).is_err());
    }
}
