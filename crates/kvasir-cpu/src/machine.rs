use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The level that is used; set once.
static USED: OnceLock<Level> = OnceLock::new();

/// The best set of instructions that the kernels may use. Each level includes the ones before it.
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
    /// 512-bit vectors with byte dot products.
    Avx512Vnni,
    /// Tiles of 8-bit integers and bf16.
    Amx,
}

/// Those of this kind of processor, the least first.
#[cfg(target_arch = "x86_64")]
const LEVELS: [Level; 4] = [Level::Portable, Level::Avx2, Level::Avx512Vnni, Level::Amx];
#[cfg(target_arch = "aarch64")]
const LEVELS: [Level; 3] = [Level::Portable, Level::Neon, Level::NeonDotprod];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEVELS: [Level; 1] = [Level::Portable];

impl Level {
    /// The best level of this machine, within the [limit](Self::limit); found once.
    pub fn detect() -> Self {
        *USED.get_or_init(find)
    }

    /// Uses no better level in this process, to measure or to try the paths of lesser machines; returns what is used. It must be said before
    /// anything else asks.
    pub fn limit(self) -> Self {
        let all = LEVELS.iter().rev().filter(|level| **level <= self);
        let allowed = all.copied().next().unwrap_or(Self::Portable);
        *USED.get_or_init(|| find().min(allowed))
    }

    /// Every level that this machine has, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        LEVELS.iter().rev().copied().filter(move |l| *l <= best)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
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
fn find() -> Level {
    let middle = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    if !middle {
        return Level::Portable;
    }
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    match (wide, wide && crate::amx::permitted()) {
        (_, true) => Level::Amx,
        (true, _) => Level::Avx512Vnni,
        _ => Level::Avx2,
    }
}

#[cfg(target_arch = "aarch64")]
fn find() -> Level {
    if std::arch::is_aarch64_feature_detected!("dotprod") { Level::NeonDotprod } else { Level::Neon }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> Level {
    Level::Portable
}
