//! `CellTable`: position, owner count and lease count of every cell, and the free list.

use crate::cells::free::FreeCells;
use crate::contract::ids::{Position, Slot};
use crate::contract::usage::{BlockUse, PoolUsage};

/// One cell: position and reference counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    position: Position,
    /// Sequences that own it.
    owners: u32,
    /// Owners that released it while a step naming it was in flight.
    leases: u32,
}

impl Cell {
    fn is_held(self) -> bool {
        self.owners > 0
    }

    fn is_leased(self) -> bool {
        self.owners == 0 && self.leases > 0
    }
}

/// Position and reference counts of each cell of a pool, and the free list.
#[derive(Clone, Debug)]
pub(crate) struct CellTable {
    cells: Vec<Cell>,
    free: FreeCells,
    held: u32,
    leased: u32,
}

impl CellTable {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { cells: Vec::new(), free: FreeCells::new(capacity), held: 0, leased: 0 }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.count()
    }

    pub(crate) fn high_water(&self) -> u32 {
        self.free.high_water()
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        PoolUsage { free: self.free.count(), evictable: 0, held: self.held, leased: self.leased }
    }

    /// State of a cell.
    pub(crate) fn visit_blocks(&self, slot: Slot) -> BlockUse {
        match self.cells.get(slot as usize) {
            Some(cell) if cell.is_held() => BlockUse::Held,
            Some(cell) if cell.is_leased() => BlockUse::Leased,
            _ => BlockUse::Free,
        }
    }

    /// Sequences that own a cell.
    pub(crate) fn owners(&self, slot: Slot) -> u32 {
        self.cells.get(slot as usize).map_or(0, |cell| cell.owners)
    }

    /// Leases of steps in flight on a cell.
    pub(crate) fn leases(&self, slot: Slot) -> u32 {
        self.cells.get(slot as usize).map_or(0, |cell| cell.leases)
    }

    /// Allocates the lowest free cell for one owner.
    #[inline]
    pub(crate) fn take(&mut self, position: Position) -> Option<Slot> {
        let slot = self.free.take()?;
        let cell = Cell { position, owners: 1, leases: 0 };
        match self.cells.get_mut(slot as usize) {
            Some(place) => *place = cell,
            // Cells are first allocated in rising order, so a new one is the next.
            None => self.cells.push(cell),
        }
        self.held += 1;
        Some(slot)
    }

    /// Adds an owner to a used cell.
    pub(crate) fn share(&mut self, slot: Slot) {
        self.change(slot, |cell| cell.owners += 1);
    }

    /// Removes an owner; frees the cell if it was the last reference.
    pub(crate) fn release(&mut self, slot: Slot) {
        self.change(slot, |cell| cell.owners -= 1);
    }

    /// Deferred release: turns an owner into a lease of a step in flight.
    pub(crate) fn lease(&mut self, slot: Slot) {
        self.change(slot, |cell| (cell.owners, cell.leases) = (cell.owners - 1, cell.leases + 1));
    }

    /// Ends a lease; frees the cell if it was the last reference.
    pub(crate) fn end_lease(&mut self, slot: Slot) {
        self.change(slot, |cell| cell.leases -= 1);
    }

    fn change(&mut self, slot: Slot, change: impl FnOnce(&mut Cell)) {
        let cell = &mut self.cells[slot as usize];
        let before = *cell;
        change(cell);
        let after = *cell;
        self.held = self.held - u32::from(before.is_held()) + u32::from(after.is_held());
        self.leased = self.leased - u32::from(before.is_leased()) + u32::from(after.is_leased());
        if !after.is_held() && !after.is_leased() {
            self.free.give(slot);
        }
    }

    /// Moves every cell `i` to `to[i]`; the targets are the cells `0 .. used`. Nothing may be
    /// leased.
    pub(crate) fn relabel(&mut self, to: &[Option<Slot>], used: u32) {
        let mut cells = vec![Cell::default(); self.cells.len()];
        for (cell, to) in self.cells.iter().zip(to) {
            if let Some(to) = to {
                cells[*to as usize] = *cell;
            }
        }
        self.cells = cells;
        self.free.reset(used);
    }

    /// Consistency check against (owners, leases, position) per cell, as sequences and steps name
    /// them.
    pub(crate) fn check(&self, named: &[(u32, u32, Option<Position>)]) -> Result<(), String> {
        let high = self.free.high_water();
        if named.len() != high as usize || (high > 0 && self.free.is_free(high - 1)) {
            return Err(format!("the high water {high} has not fallen"));
        }
        let (mut held, mut leased) = (0, 0);
        for (i, &(owners, leases, position)) in named.iter().enumerate() {
            let cell = self.cells.get(i).copied().unwrap_or_default();
            let free = self.free.is_free(i as Slot);
            if free != (owners == 0 && leases == 0) {
                return Err(format!("cell {i} has {owners} owners and {leases} leases, free: {free}"));
            }
            if !free && (cell.owners, cell.leases) != (owners, leases) {
                let (o, l) = (cell.owners, cell.leases);
                return Err(format!("cell {i} counts {o} owners, {l} leases; there are {owners}, {leases}"));
            }
            if position.is_some_and(|position| position != cell.position) {
                return Err(format!("cell {i} has position {}, an owner says {position:?}", cell.position));
            }
            held += u32::from(owners > 0);
            leased += u32::from(owners == 0 && leases > 0);
        }
        if (held, leased) == (self.held, self.leased) {
            Ok(())
        } else {
            Err(format!("{held} held, {leased} leased; counted {}, {}", self.held, self.leased))
        }
    }
}
