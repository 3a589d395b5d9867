use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The level that is used; set once.
static USED: OnceLock<Level> = OnceLock::new();

/// The best set of instructions that the kernels may use. Each level includes the ones before it, but 512-bit vectors not the byte products of 256 bits.
///
/// Kernels take a level's word for it that the machine has the instructions: inside this crate a level is one of those that this machine has, from
/// [`detect`](Self::detect) or [`available`](Self::available). Nobody outside can hand one to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the target always has: the reference that the others are tested against.
    Portable,
    /// 128-bit vectors of Arm.
    Neon,
    /// The same with byte dot products.
    NeonDotprod,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// The same with byte dot products.
    AvxVnni,
    /// 512-bit vectors with byte dot products.
    Avx512Vnni,
    /// The same with dot products of bf16 pairs.
    Avx512Bf16,
    /// Tiles of 8-bit integers and bf16.
    Amx,
}

/// Those of this kind of processor, the least first.
#[cfg(target_arch = "x86_64")]
const LEVELS: [Level; 6] =
    [Level::Portable, Level::Avx2, Level::AvxVnni, Level::Avx512Vnni, Level::Avx512Bf16, Level::Amx];
#[cfg(target_arch = "aarch64")]
const LEVELS: [Level; 3] = [Level::Portable, Level::Neon, Level::NeonDotprod];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEVELS: [Level; 1] = [Level::Portable];

impl Level {
    /// The best level of this machine, within the [limit](Self::limit); found once.
    pub fn detect() -> Self {
        *USED.get_or_init(|| best(|level| level.pays()))
    }

    /// Uses no better level in this process, to measure or to try the paths of lesser machines; returns what is used. It must be said before
    /// anything else asks.
    pub fn limit(self) -> Self {
        *USED.get_or_init(|| best(|level| level == self || level < self && level.pays()))
    }

    /// Every level that this machine has, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        LEVELS.iter().rev().copied().filter(move |level| *level <= best && level.is_here())
    }
}

/// The best of those levels that this machine has.
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
            Self::Amx => Self::Avx512Vnni.is_here() && crate::amx::permitted(),
            Self::Neon | Self::NeonDotprod => false,
        }
    }

    /// Whether it is faster than the one before. Intel's processors take four times as long for a dot product of pairs as for a multiply-add.
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

    /// Whether it is faster than the one before.
    fn pays(self) -> bool {
        true
    }
}
