//! `PlanTable`: a flat block table that plans share with the cache that wrote it (copy-on-write).

use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A flat block table with value semantics. Clones share memory until one is changed
/// (copy-on-write), which lets the cache that wrote a table extend it for a later plan.
#[derive(Clone, Debug, Default, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct PlanTable(Option<Arc<Vec<u32>>>);

impl PlanTable {
    /// Shares the entries of a table.
    pub(crate) fn shared(entries: &Arc<Vec<u32>>) -> Self {
        Self(Some(Arc::clone(entries)))
    }

    /// Drops all entries; keeps the memory unless it is shared.
    pub fn clear(&mut self) {
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(entries) => entries.clear(),
            None => self.0 = None,
        }
    }

    /// The entries, mutable; copies them if they are shared.
    pub fn make_mut(&mut self) -> &mut Vec<u32> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl Deref for PlanTable {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

/// Equal if the entries are; an empty table may or may not own memory.
impl PartialEq for PlanTable {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

/// Copies the entries first if they are shared.
impl DerefMut for PlanTable {
    fn deref_mut(&mut self) -> &mut [u32] {
        self.make_mut()
    }
}

impl From<Vec<u32>> for PlanTable {
    fn from(entries: Vec<u32>) -> Self {
        Self(Some(Arc::new(entries)))
    }
}

impl From<PlanTable> for Vec<u32> {
    fn from(table: PlanTable) -> Self {
        table.0.map_or_else(Vec::new, Arc::unwrap_or_clone)
    }
}
