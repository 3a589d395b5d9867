//! The mixer behind everything that is drawn from a seed.

/// What a counter grows by between two numbers of a sequence: `mix` of it is splitmix64.
pub const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finishing rounds of a well-known 64-bit mixer: every input bit moves every output bit.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
