//! The 64-bit mixer (splitmix64) behind everything that is drawn from a seed.

/// The increment of splitmix64 (2^64 divided by the golden ratio): `mix(seed + n * STRIDE)` is its
/// n-th number.
pub const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64: a bijection in which every input bit affects every output bit.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
