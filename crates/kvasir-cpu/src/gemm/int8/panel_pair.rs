//! Panel pairs of the integer GEMM, and the scratch of its kernels.
//!
//! One or two panels are multiplied by a block of up to `BLOCK` rows, so that each superblock is
//! unpacked once per block. A kernel may unpack the first superblocks of the panels that the thread
//! probably multiplies next. `unpacked_ahead` records for which panels that was done; it is ignored
//! for any other panels or kernel, so a wrong guess only costs time. `tests.rs` checks that.

use crate::isa::amx::Tiles;
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::weights::int8::format::SUPERBLOCK;
use crate::weights::int8::layouts::Layout;
use crate::weights::panels::{PanelAt, PanelScratch};
use std::mem::offset_of;
use std::ops::Range;

/// Rows per block: they share one unpacked superblock.
pub(crate) const BLOCK: usize = 512;

/// Bytes of one unpacked superblock: four weight tiles, one tile of mins, then the f32 units and
/// dmin.
pub(crate) const UNPACKED: usize = 4 * 1024 + 1024 + 128;
/// Scratch of the AMX kernel, besides the sums in [`PairScratch`].
#[repr(C, align(64))]
pub(crate) struct AmxScratch {
    pub(crate) unpacked: [[u8; UNPACKED]; 2],
    /// Products of a row tile with two panels (double-buffered until they are folded), followed by
    /// those of mins.
    pub(crate) products: [[u8; 4 * 1024]; 2],
}

/// One unpacked superblock of a panel. A word of `mins` holds those of two neighboring sub-blocks.
#[repr(C, align(64))]
pub(crate) struct UnpackedSuperblock {
    pub(crate) weights: [[u8; 64]; 64],
    pub(crate) mins: [[i32; LANES]; 8],
    pub(crate) d: [f32; LANES],
    pub(crate) dmin: [f32; LANES],
}

impl UnpackedSuperblock {
    pub(crate) const NONE: Self =
        Self { weights: [[0; 64]; 64], mins: [[0; LANES]; 8], d: [0.0; LANES], dmin: [0.0; LANES] };
}

/// Scratch of one worker for the integer GEMM.
#[derive(Default)]
pub(crate) struct GemmScratch {
    /// Panels that are made on the fly.
    pub(crate) panels: [PanelScratch; 2],
    pub(crate) pair: PairScratch,
    /// Of the fused gate and up projection: one activated panel, and a superblock of each row.
    pub(crate) activated: Vec<f32>,
    pub(crate) gated_rows: Vec<[f32; SUPERBLOCK]>,
}

/// Scratch of the kernels that multiply a pair of panels.
#[repr(C, align(64))]
pub(crate) struct PairScratch {
    pub(crate) tiles: AmxScratch,
    /// Double buffer of unpacked superblocks, a pair each.
    pub(crate) vectors: [[UnpackedSuperblock; 2]; 2],
    /// f32 sums of a block's rows, per panel.
    pub(crate) sums: [[[f32; LANES]; BLOCK]; 2],
    /// Whether the superblocks unpacked last are in the second buffer.
    pub(crate) in_second: bool,
    /// Panels whose first superblocks were unpacked ahead, if any.
    pub(crate) unpacked_ahead: [Option<PanelAt>; 2],
    /// Kernel that last used this memory.
    kernel: Option<Int8Gemm>,
}

// Kernels load sums as whole cache lines.
const _: () = assert!(offset_of!(PairScratch, sums).is_multiple_of(64));

impl Default for PairScratch {
    fn default() -> Self {
        Self {
            tiles: AmxScratch { unpacked: [[0; UNPACKED]; 2], products: [[0; 4 * 1024]; 2] },
            vectors: [const { [UnpackedSuperblock::NONE; 2] }; 2],
            sums: [[[0.0; LANES]; BLOCK]; 2],
            in_second: false,
            unpacked_ahead: [None; 2],
            kernel: None,
        }
    }
}

impl PairScratch {
    /// Makes the scratch ready for a kernel; on AMX, configures tiles until the result is dropped.
    pub(crate) fn begin(&mut self, kernel: Int8Gemm) -> Option<Tiles> {
        if self.kernel.replace(kernel) != Some(kernel) {
            // Kernels unpack weights differently.
            self.unpacked_ahead = [None; 2];
        }
        // SAFETY: the kernel is chosen only where AMX is permitted.
        (kernel == Int8Gemm::Amx).then(|| unsafe { Tiles::configure() })
    }
}

/// One or two panels that are multiplied together, and the probable next ones.
pub(crate) struct Pair<const P: usize> {
    /// Panels of the same layout and length.
    pub(crate) panels: [PanelAt; P],
    /// The panels that the thread probably multiplies next, packed and of the same layout; kernels
    /// unpack ahead from these.
    pub(crate) next: Option<[PanelAt; P]>,
}

impl<const P: usize> Pair<P> {
    /// Address of superblock `block` of panel `p`. Indices from `blocks` on continue in the next
    /// panels.
    #[inline]
    pub(crate) fn at(&self, p: usize, block: usize, blocks: usize, bytes: usize) -> *const u8 {
        match self.next {
            Some(next) if block >= blocks => next[p].at.wrapping_add((block - blocks) * bytes),
            _ => self.panels[p].at.wrapping_add(block * bytes),
        }
    }

    /// Whether the first superblocks of these panels were unpacked ahead; clears the record.
    pub(crate) fn take_unpacked(&self, unpacked: &mut [Option<PanelAt>; 2]) -> bool {
        std::mem::take(unpacked) == Self::each(&self.panels)
    }

    /// Records that the first superblocks of the next panels were unpacked.
    pub(crate) fn record_unpacked(&self, unpacked: &mut [Option<PanelAt>; 2]) {
        if let Some(next) = &self.next {
            *unpacked = Self::each(next);
        }
    }

    /// The panels as options, absent ones `None`.
    fn each(panels: &[PanelAt; P]) -> [Option<PanelAt>; 2] {
        std::array::from_fn(|p| panels.get(p).copied())
    }
}

/// Prefetches parts `parts` of `of` of the lines of superblocks into L2.
#[inline]
pub(crate) fn prefetch<L: Layout, const P: usize>(blocks: [*const u8; P], parts: Range<usize>, of: usize) {
    let lines = L::FORMAT.bytes().div_ceil(64);
    for line in parts.start * lines / of..parts.end * lines / of {
        blocks.iter().for_each(|block| prefetch_line(CacheLevel::L2, block.wrapping_add(line * 64)));
    }
}
