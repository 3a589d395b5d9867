use std::fmt;
use std::sync::OnceLock;

/// The best set of instructions that the kernels may use. Each level includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the target always has: the reference that the others are tested against.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors with byte dot products.
    Avx512Vnni,
    /// Tiles of 8-bit integers and bf16.
    Amx,
}

impl Level {
    /// The best level of this machine; found once.
    pub fn detect() -> Self {
        static FOUND: OnceLock<Level> = OnceLock::new();
        *FOUND.get_or_init(find)
    }

    /// Every level that this machine has, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        [Self::Amx, Self::Avx512Vnni, Self::Avx2, Self::Portable].into_iter().filter(move |l| *l <= best)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Amx => "amx",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn find() -> Level {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
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

#[cfg(not(target_arch = "x86_64"))]
fn find() -> Level {
    Level::Portable
}
