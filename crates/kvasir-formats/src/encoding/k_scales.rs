//! Packed six-bit scales of K-quants, twelve bytes per superblock.
//!
//! Force-inlined, so that SIMD dequantize kernels compile them with their own target features.

/// Scale and min of group `j` (0 to 7) of a Q4_K or Q5_K block.
#[inline(always)]
pub fn q45_k_scale_min(j: usize, packed: &[u8]) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

/// Packs scale and min of group `j`; groups must be written in ascending order.
pub(super) fn put_q45_k_scale_min(j: usize, (scale, min): (u8, u8), packed: &mut [u8]) {
    if j < 4 {
        packed[j] = scale;
        packed[j + 4] = min;
    } else {
        packed[j + 4] = scale & 15 | min << 4;
        packed[j - 4] |= scale >> 4 << 6;
        packed[j] |= min >> 4 << 6;
    }
}

/// Scale of group `j` (0 to 15) of a Q3_K block.
#[inline(always)]
pub fn q3_k_scale(j: usize, packed: &[u8]) -> i8 {
    let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
    (low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) as i8 - 32
}

/// Packs the scale of group `j` into zeroed bytes.
pub(super) fn put_q3_k_scale(j: usize, scale: i8, packed: &mut [u8]) {
    let bits = (scale + 32) as u8;
    packed[j % 8] |= (bits & 15) << (j / 8 * 4);
    packed[8 + j % 4] |= bits >> 4 << (2 * (j / 4));
}
