//! The AMX tile configuration of a work item; a no-op at levels without AMX.

use crate::isa::features::Level;

/// Guard of the AMX tile state, where the level has it.
pub(crate) struct Unit(#[cfg(target_arch = "x86_64")] Option<crate::isa::amx::Tiles>);

impl Unit {
    pub(super) fn of(level: Level) -> Self {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level implies that the system permits tiles.
        return Self((level >= Level::Amx).then(|| unsafe { crate::isa::amx::Tiles::configure() }));
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = level;
            Self()
        }
    }

    /// Reconfigures the tiles for products of `rows` rows (P V with few query rows) and `columns`
    /// columns (Q K^T with few queries).
    pub(super) fn of_shape(&mut self, rows: usize, columns: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = &mut self.0 {
            tiles.of_shape(rows, columns);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (rows, columns);
    }
}
