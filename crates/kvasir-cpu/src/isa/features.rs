//! CPU feature detection: which SIMD instruction set (ISA level) the kernels dispatch to.
//!
//! Invariant: inside this crate a `Level` value is proof that the machine has the features, because
//! values come from `detect` or `available` only. The level in use is fixed once per process.

use crate::isa::amx::{self, Tiles};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The level in use; set once.
static USED: OnceLock<Level> = OnceLock::new();

/// The best instruction set that the kernels may use, from scalar code over AVX2, AVX-512 VNNI and
/// bf16 to AMX. Each x86 level includes the ones before it, except that AVX-512 levels do not imply
/// AVX-VNNI, and AMX does not imply bf16 dot products.
///
/// Kernels take a `Level` as proof that the machine has the instructions. Inside this crate every
/// value comes from [`detect`](Self::detect) or [`available`](Self::available); no public API
/// passes one to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The target's baseline: the reference that other levels are tested against.
    Portable,
    /// Arm NEON, 128-bit SIMD.
    Neon,
    /// NEON with int8 dot products (`sdot`).
    NeonDotprod,
    /// AVX2 with FMA and F16C, 256-bit SIMD.
    Avx2,
    /// AVX2 with int8 dot products (AVX-VNNI, `vpdpbusd`).
    AvxVnni,
    /// AVX-512 with int8 dot products (VNNI).
    Avx512Vnni,
    /// AVX-512 VNNI with bf16 pair dot products (`vdpbf16ps`).
    Avx512Bf16,
    /// AMX: tile matrix multiplication of int8 and bf16.
    Amx,
}

/// Levels of the target architecture, the weakest first.
#[cfg(target_arch = "x86_64")]
const LEVELS: [Level; 6] =
    [Level::Portable, Level::Avx2, Level::AvxVnni, Level::Avx512Vnni, Level::Avx512Bf16, Level::Amx];
#[cfg(target_arch = "aarch64")]
const LEVELS: [Level; 3] = [Level::Portable, Level::Neon, Level::NeonDotprod];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEVELS: [Level; 1] = [Level::Portable];

impl Level {
    /// The best profitable level of this machine, or what [`limit`](Self::limit) has set; detected
    /// once per process.
    pub fn detect() -> Self {
        *USED.get_or_init(|| best(|level| level.pays()))
    }

    /// Caps the level for this process, for benchmarks or to exercise the code paths of weaker
    /// machines; returns the level in use. Has no effect once any level was detected.
    pub fn limit(self) -> Self {
        *USED.get_or_init(|| best(|level| level == self || level < self && level.pays()))
    }

    /// Every level up to the one in use that this machine supports, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        LEVELS.iter().rev().copied().filter(move |level| *level <= best && level.is_here())
    }

    /// Configures the AMX tiles of the calling thread, if the level has them.
    pub(crate) fn configure_tiles(self) -> Option<Tiles> {
        // SAFETY: the level implies that AMX is permitted.
        (self == Self::Amx).then(|| unsafe { Tiles::configure() })
    }
}

/// The best of the allowed levels that this machine supports.
fn best(allowed: impl Fn(Level) -> bool) -> Level {
    let here = LEVELS.into_iter().rev().find(|level| allowed(*level) && level.is_here());
    here.unwrap_or(Level::Portable)
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || LEVELS.map(|level| level.to_string()).join(", ");
        LEVELS
            .into_iter()
            .find(|level| level.to_string() == name)
            .ok_or_else(|| format!("{name} is none of {}", names()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Level {
    /// Whether this machine has the instructions.
    fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::AvxVnni => Self::Avx2.is_here() && is_x86_feature_detected!("avxvnni"),
            Self::Avx512Vnni => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx512Bf16 => Self::Avx512Vnni.is_here() && is_x86_feature_detected!("avx512bf16"),
            Self::Amx => Self::Avx512Vnni.is_here() && amx::permitted(),
            Self::Neon | Self::NeonDotprod => false,
        }
    }

    /// Whether the level is faster than the one below. On Intel `vdpbf16ps` has a quarter of the
    /// throughput of a multiply-add, so it does not pay there.
    fn pays(self) -> bool {
        let vendor = std::arch::x86_64::__cpuid(0);
        let is_intel =
            [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel";
        self != Self::Avx512Bf16 || !is_intel
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Level {
    /// Whether this machine has the instructions.
    fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            _ => false,
        }
    }

    /// Whether the level is faster than the one below.
    fn pays(self) -> bool {
        true
    }
}
