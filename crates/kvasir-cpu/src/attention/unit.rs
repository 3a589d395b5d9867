use crate::Level;

/// The tile unit, where the level has one.
pub(super) struct Unit(#[cfg(target_arch = "x86_64")] Option<crate::amx::Tiles>);

impl Unit {
    pub(super) fn of(level: Level) -> Self {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that tiles are permitted.
        return Self((level >= Level::Amx).then(|| unsafe { crate::amx::Tiles::configure() }));
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = level;
            Self()
        }
    }

    /// Products have so many rows from here on, of values with few shares, or columns, of keys with few queries.
    pub(super) fn of_shape(&mut self, rows: usize, columns: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = &mut self.0 {
            tiles.of_shape(rows, columns);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (rows, columns);
    }
}
