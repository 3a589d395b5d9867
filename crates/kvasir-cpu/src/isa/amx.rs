//! AMX: tile configuration, the Linux permission request, and the tile instructions as macros.
//!
//! The intrinsics are unstable in Rust, so the instructions are inline assembly. Tile state belongs
//! to a thread: `Tiles` configures it and releases it on drop, and is neither `Send` nor `Sync`. A
//! kernel may use tile instructions only while it holds a `Tiles`.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;

/// The 64-byte operand of `ldtilecfg`: rows and bytes per row of the eight tiles.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles at full size: 16 rows x 64 bytes.
const FULL: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Whether the CPU has AMX (int8 and bf16) and the kernel grants this process its tile state.
/// The permission is process-wide and holds for threads created afterwards.
pub(crate) fn permitted() -> bool {
    const TILE_BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let leaves = __cpuid(0).eax;
    leaves >= 0x1d && __cpuid_count(7, 0).edx & TILE_BITS == TILE_BITS && request_tile_state()
}

/// Requests `XFEATURE_XTILE_DATA` with `arch_prctl`; false on other systems.
#[cfg(target_os = "linux")]
fn request_tile_state() -> bool {
    const ARCH_PRCTL: usize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: `arch_prctl` takes two integers here and touches no user memory.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
        lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}

/// Requests `XFEATURE_XTILE_DATA` with `arch_prctl`; false on other systems.
#[cfg(not(target_os = "linux"))]
fn request_tile_state() -> bool {
    false
}

/// The calling thread's AMX tiles, configured as eight of 16 rows x 64 bytes. Dropping releases
/// them.
pub(crate) struct Tiles {
    /// Current rows (A and C tiles) and columns (B and C tiles) as set by `of_shape`.
    shape: (u8, u8),
    /// Makes the type `!Send`: tile state belongs to a thread.
    of: PhantomData<*const ()>,
}

impl Tiles {
    /// # Safety
    /// `permitted` must have returned true.
    pub(crate) unsafe fn configure() -> Self {
        // SAFETY: FULL is a valid configuration of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &FULL, options(nostack, preserves_flags, readonly)) };
        Self { shape: (16, 16), of: PhantomData }
    }

    /// Reconfigures tiles 0 to 5 (C and A) to `rows` rows, and tiles 0, 1 (C) and 6 (B) to
    /// `columns` columns of 32 bits. All tiles are zeroed. Products of smaller tiles take less
    /// time.
    pub(crate) fn of_shape(&mut self, rows: usize, columns: usize) {
        let shape @ (n, columns) = (rows.clamp(1, 16) as u8, columns.clamp(1, 16) as u8);
        if shape == self.shape {
            return;
        }
        self.shape = shape;
        let mut config = Config { rows: [n, n, n, n, n, n, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0], ..FULL };
        [0, 1, 6].iter().for_each(|&tile| config.bytes_per_row[tile] = 4 * u16::from(columns));
        // SAFETY: tiles were configured, so the instruction exists; the configuration is valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags, readonly)) };
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles were configured, so the instruction exists.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// `tile_load!(n, pointer, stride)`: loads 16 rows of 64 bytes, `stride` bytes apart.
macro_rules! tile_load {
($n:literal, $p:expr, $stride:expr) => {
    std::arch::asm!(concat!("tileloadd tmm", $n, ", [{p} + {s}*1]"), p = in(reg) $p, s = in(reg) ($stride as usize),
        options(nostack, preserves_flags, readonly))
};
}
/// `tile_store!(n, pointer)` stores 16 contiguous rows of 64 bytes; with `stride`, rows
/// `stride` bytes apart.
macro_rules! tile_store {
($n:literal, $p:expr, $stride:expr) => {
    std::arch::asm!(concat!("tilestored [{p} + {s}*1], tmm", $n), p = in(reg) $p, s = in(reg) ($stride as usize),
        options(nostack, preserves_flags))
};
($n:literal, $p:expr) => {
    std::arch::asm!(concat!("tilestored [{p} + {s}*1], tmm", $n), p = in(reg) $p, s = in(reg) 64usize,
        options(nostack, preserves_flags))
};
}
/// `tile_zero!(n)`: clears tile `n`.
macro_rules! tile_zero {
    ($n:literal) => {
        std::arch::asm!(concat!("tilezero tmm", $n), options(nostack, nomem, preserves_flags))
    };
}
/// `tile_dot_bf16!(c, a, b)`: `c += a b`, bf16 x bf16 to f32, two products per element.
macro_rules! tile_dot_bf16 {
    ($c:literal, $a:literal, $b:literal) => {
        std::arch::asm!(
            concat!("tdpbf16ps tmm", $c, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem, preserves_flags)
        )
    };
}
pub(crate) use {tile_dot_bf16, tile_load, tile_store, tile_zero};
