//! CPU feature detection: which instructions the kernels may use.
//!
//! Invariant: inside this crate an `Isa` value is proof that the machine has the features, because
//! values come from `detect` or `available` only. The set in use is fixed once per process.

#[cfg(target_arch = "x86_64")]
use crate::isa::amx;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The instruction set in use; set once.
static USED: OnceLock<Isa> = OnceLock::new();

/// SIMD vectors that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VectorWidth {
    /// The target's baseline: the reference that all others are tested against.
    Baseline,
    /// Arm NEON.
    Bits128,
    /// AVX2 with FMA and F16C.
    Bits256,
    /// AVX-512 F, BW, VL and DQ.
    Bits512,
}

/// A set of instructions that kernels may use: a vector width, and which products the machine has.
/// No public API passes one to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    pub(crate) vectors: VectorWidth,
    /// Integer dot products (VNNI).
    pub(crate) int_dot: bool,
    /// bf16 pair dot products (`vdpbf16ps`). AMX does not imply them.
    pub(crate) bf16_dot: bool,
    /// AMX: tile products of bf16.
    pub(crate) tiles: bool,
}

/// The sets of the target architecture, the weakest first.
#[cfg(target_arch = "x86_64")]
const SETS: [Isa; 6] =
    [Isa::PORTABLE, Isa::AVX2, Isa::AVX_VNNI, Isa::AVX512_VNNI, Isa::AVX512_BF16, Isa::AMX];
#[cfg(target_arch = "aarch64")]
const SETS: [Isa; 2] = [Isa::PORTABLE, Isa::NEON];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SETS: [Isa; 1] = [Isa::PORTABLE];

impl Isa {
    /// The target's baseline.
    pub const PORTABLE: Self = Self::of(VectorWidth::Baseline);
    /// Arm NEON.
    pub const NEON: Self = Self::of(VectorWidth::Bits128);
    /// AVX2 with FMA and F16C.
    pub const AVX2: Self = Self::of(VectorWidth::Bits256);
    /// AVX2 with integer dot products (AVX-VNNI).
    pub const AVX_VNNI: Self = Self { int_dot: true, ..Self::AVX2 };
    /// AVX-512 with integer dot products (VNNI).
    pub const AVX512_VNNI: Self = Self { int_dot: true, ..Self::of(VectorWidth::Bits512) };
    /// AVX-512 VNNI with bf16 pair dot products.
    pub const AVX512_BF16: Self = Self { bf16_dot: true, ..Self::AVX512_VNNI };
    /// AVX-512 VNNI with AMX.
    pub const AMX: Self = Self { tiles: true, ..Self::AVX512_VNNI };

    const fn of(vectors: VectorWidth) -> Self {
        Self { vectors, int_dot: false, bf16_dot: false, tiles: false }
    }

    /// The best profitable set of this machine, or what [`limit`](Self::limit) has chosen; detected
    /// once per process.
    pub fn detect() -> Self {
        *USED.get_or_init(|| best(|isa| isa.pays()))
    }

    /// Caps the instruction set of this process, for benchmarks or to exercise the code paths of
    /// weaker machines; returns the set in use. Has no effect once any set was detected.
    pub fn limit(self) -> Self {
        *USED.get_or_init(|| best(|isa| isa == self || isa.rank() < self.rank() && isa.pays()))
    }

    /// Every set up to the one in use that this machine supports, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect().rank();
        SETS.iter().rev().copied().filter(move |isa| isa.rank() <= best && isa.is_here())
    }

    /// Place among the sets of the target; 0 for those of other targets.
    fn rank(self) -> usize {
        SETS.iter().position(|isa| *isa == self).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn has_avx2(self) -> bool {
        self.vectors >= VectorWidth::Bits256
    }

    #[inline]
    pub(crate) fn has_avx512(self) -> bool {
        self.vectors == VectorWidth::Bits512
    }

    /// Whether the set has bf16 dot products (AVX-512 BF16 or AMX).
    #[inline]
    pub(crate) fn has_bf16_dot(self) -> bool {
        self.tiles || self.bf16_dot
    }

    /// The set without bf16 dot products: its kernels widen 16-bit floats to f32.
    pub(crate) fn without_bf16_dot(self) -> Self {
        Self { tiles: false, bf16_dot: false, ..self }
    }
}

/// The best of the allowed sets that this machine supports.
fn best(allowed: impl Fn(Isa) -> bool) -> Isa {
    let here = SETS.into_iter().rev().find(|isa| allowed(*isa) && isa.is_here());
    here.unwrap_or(Isa::PORTABLE)
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.vectors, self.int_dot) {
            (VectorWidth::Baseline, _) => "portable",
            (VectorWidth::Bits128, _) => "neon",
            (VectorWidth::Bits256, false) => "avx2",
            (VectorWidth::Bits256, true) => "avx-vnni",
            (VectorWidth::Bits512, _) if self.tiles => "amx",
            (VectorWidth::Bits512, _) if self.bf16_dot => "avx512-bf16",
            (VectorWidth::Bits512, _) => "avx512-vnni",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = SETS.into_iter().find(|isa| isa.to_string() == name);
        found.ok_or_else(|| format!("{name} is none of {}", SETS.map(|isa| isa.to_string()).join(", ")))
    }
}

#[cfg(target_arch = "x86_64")]
impl Isa {
    /// Whether this machine has the instructions.
    fn is_here(self) -> bool {
        let vectors = match self.vectors {
            VectorWidth::Baseline => true,
            VectorWidth::Bits128 => false,
            VectorWidth::Bits256 => avx2(),
            VectorWidth::Bits512 => avx2() && avx512(),
        };
        let int8 = match self.vectors {
            VectorWidth::Bits512 => is_x86_feature_detected!("avx512vnni"),
            _ => is_x86_feature_detected!("avxvnni"),
        };
        vectors
            && (!self.int_dot || int8)
            && (!self.bf16_dot || is_x86_feature_detected!("avx512bf16"))
            && (!self.tiles || amx::permitted())
    }

    /// Whether the set is faster than the one before it. On Intel `vdpbf16ps` has a quarter of the
    /// throughput of a multiply-add, so it does not pay there.
    fn pays(self) -> bool {
        let vendor = std::arch::x86_64::__cpuid(0);
        let is_intel =
            [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel";
        !self.bf16_dot || !is_intel
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(not(target_arch = "x86_64"))]
impl Isa {
    /// Whether this machine has the instructions.
    fn is_here(self) -> bool {
        match self {
            Self::PORTABLE => true,
            #[cfg(target_arch = "aarch64")]
            Self::NEON => true,
            _ => false,
        }
    }

    /// Whether the set is faster than the one before it.
    fn pays(self) -> bool {
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Once;

    /// The sets that tests run on, best first. Prints them once, and fails if a set that
    /// `KVASIR_REQUIRE_ISA` names (`amx,avx512-vnni`) is not among them.
    pub(crate) fn isas() -> Vec<Isa> {
        static PRINTED: Once = Once::new();
        let isas: Vec<Isa> = Isa::available().collect();
        let names: Vec<String> = isas.iter().map(Isa::to_string).collect();
        PRINTED.call_once(|| {
            // Past the capture of the test harness.
            let _ = writeln!(std::io::stderr(), "instruction sets under test: {}", names.join(", "));
        });
        let required = std::env::var("KVASIR_REQUIRE_ISA").unwrap_or_default();
        for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            assert!(names.iter().any(|have| have == name), "this machine cannot test `{name}`: {names:?}");
        }
        isas
    }

    /// A reproducible number between -1.5 and 1.5.
    pub(crate) fn value(i: usize) -> f32 {
        let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0
    }

    #[test]
    fn names_parse_and_amx_implies_no_bf16_dot() {
        for isa in SETS {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        const { assert!(Isa::AMX.tiles && Isa::AMX.int_dot && !Isa::AMX.bf16_dot) };
        assert!("avx9".parse::<Isa>().is_err());
        assert_eq!(isas().last(), Some(&Isa::PORTABLE));
    }
}
