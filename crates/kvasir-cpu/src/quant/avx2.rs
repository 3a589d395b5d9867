//! Rows with 256-bit vectors: the panel's 16 outputs are two halves of eight. There is no product of bytes that sums into 32 bits here, so
//! pairs are summed into 16, which codes of up to six bits cannot overflow, and codes of eight bits not once their sign is in the activations.

use super::activations::{QuantActivations, TILE};
use super::format::SubScale;
use super::layouts::Layout;
use std::arch::x86_64::*;

/// Codes of inputs `16 i .. 16 i + 16` of the eight outputs of a half: four vectors of bytes, unsigned unless there are eight bits of them.
///
/// # Safety
/// `block` must point at a superblock of layout `L`; `i` be below 16 and `half` below 2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn open<L: Layout>(block: *const u8, i: usize, half: usize) -> [__m256i; 4] {
    let f = L::FORMAT;
    // SAFETY: the offsets are those of the layout.
    unsafe {
        let codes = block.add(f.codes_at() + half * 32);
        if f.bits == 8 {
            let at = codes.add(i * 256);
            let sign = _mm256_set1_epi8(-128);
            let line = |j: usize| _mm256_xor_si256(load(at.add(j * 64)), sign);
            return [line(0), line(1), line(2), line(3)];
        }
        let low = _mm256_set1_epi8(15);
        let (a, b) = (load(codes.add(i * 128)), load(codes.add(i * 128 + 64)));
        let rows = [
            _mm256_and_si256(a, low),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), low),
            _mm256_and_si256(b, low),
            _mm256_and_si256(_mm256_srli_epi16::<4>(b), low),
        ];
        if f.bits == 4 {
            return rows;
        }
        let high = block.add(f.high_at() + half * 32);
        let (h, bits) = match f.bits {
            5 => {
                let h = load(high.add(i / 2 * 64));
                (if i.is_multiple_of(2) { h } else { _mm256_srli_epi16::<4>(h) }, _mm256_set1_epi8(16))
            }
            _ => (load(high.add(i * 64)), _mm256_set1_epi8(48)),
        };
        let shifted = match f.bits {
            5 => [
                _mm256_slli_epi16::<4>(h),
                _mm256_slli_epi16::<3>(h),
                _mm256_slli_epi16::<2>(h),
                _mm256_slli_epi16::<1>(h),
            ],
            _ => [_mm256_slli_epi16::<4>(h), _mm256_slli_epi16::<2>(h), h, _mm256_srli_epi16::<2>(h)],
        };
        let [r0, r1, r2, r3] = rows;
        let [s0, s1, s2, s3] = shifted;
        let with = |row, more| _mm256_or_si256(row, _mm256_and_si256(more, bits));
        [with(r0, s0), with(r1, s1), with(r2, s2), with(r3, s3)]
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's pointer.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// Sums of products of four inputs, in 32 bits: of four lines of codes and 16 activations at `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<L: Layout>(w: [__m256i; 4], x: *const i32) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: 16 activations.
    let pairs = |j: usize| unsafe {
        let x = _mm256_set1_epi32(x.add(j).read_unaligned());
        match L::FORMAT.bits {
            8 => _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(x, w[j])),
            _ => _mm256_maddubs_epi16(w[j], x),
        }
    };
    let (a, b, c, d) = (pairs(0), pairs(1), pairs(2), pairs(3));
    // Two products of eight-bit codes fill 16 bits, four of six-bit ones.
    if L::FORMAT.bits == 8 {
        let two = |a, b| _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
        return _mm256_add_epi32(two(a, b), two(c, d));
    }
    let two = |a, b| _mm256_madd_epi16(_mm256_add_epi16(a, b), ones);
    _mm256_add_epi32(two(a, b), two(c, d))
}

/// The integer scales of sub-block `sub` for a half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sub_scales<L: Layout>(block: *const u8, sub: usize, half: usize) -> __m256i {
    let f = L::FORMAT;
    // SAFETY: the offset is that of the layout.
    unsafe {
        let at = block.add(f.scales_at() + (sub * 16 + half * 8) * f.scale_bytes());
        match f.scale {
            SubScale::U8 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())),
            SubScale::I8 => _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())),
            SubScale::I16 => _mm256_cvtepi16_epi32(_mm_loadu_si128(at.cast())),
        }
    }
}

/// The float scales of a half, d or dmin.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn float_scales<L: Layout>(at: *const u8) -> __m256 {
    // SAFETY: the caller's pointer.
    let bits = unsafe { _mm_loadu_si128(at.cast()) };
    if L::FORMAT.wide_d {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    } else {
        _mm256_cvtph_ps(bits)
    }
}

/// One panel times rows `row .. row + N`, which must lie in one tile.
///
/// # Safety
/// The machine must have the instructions; `panel` must hold `x.supers` superblocks of layout `L`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot<L: Layout, const N: usize>(
    panel: *const u8,
    x: &QuantActivations,
    row: usize,
    out: &mut [[f32; 16]; N],
) {
    let f = L::FORMAT;
    let (tile, r) = (row / TILE, row % TILE);
    for half in 0..2 {
        let mut acc = [_mm256_setzero_ps(); N];
        for s in 0..x.supers {
            // SAFETY: superblock `s` of the panel and of rows `r .. r + N` of the tile.
            unsafe {
                let block = panel.add(s * f.bytes());
                let (total, mins) = superblock::<L, N>(block, half, x, (tile, s, r));
                let d = float_scales::<L>(block.add(half * 16));
                for n in 0..N {
                    let mut t = _mm256_mul_ps(_mm256_cvtepi32_ps(total[n]), d);
                    if f.has_min {
                        let dmin = float_scales::<L>(block.add(32 + half * 16));
                        t = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins[n]), dmin, t);
                    }
                    acc[n] = _mm256_fmadd_ps(t, _mm256_set1_ps(*x.scales(tile, s).add(r + n)), acc[n]);
                }
            }
        }
        for n in 0..N {
            // SAFETY: eight floats of 16.
            unsafe { _mm256_storeu_ps(out[n].as_mut_ptr().add(half * 8), acc[n]) };
        }
    }
}

/// The exact sums of one superblock for a half of the outputs: scaled codes times activations, and mins times sums of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn superblock<L: Layout, const N: usize>(
    block: *const u8,
    half: usize,
    x: &QuantActivations,
    (tile, s, r): (usize, usize, usize),
) -> ([__m256i; N], [__m256i; N]) {
    let f = L::FORMAT;
    let (mut total, mut mins) = ([_mm256_setzero_si256(); N], [_mm256_setzero_si256(); N]);
    // SAFETY: as the caller says.
    unsafe {
        let codes = x.codes(tile, s).add(r * 64).cast::<u8>();
        for sub in 0..f.subs() {
            let sum_at = if f.sub == 32 { 16 + sub } else { sub };
            let mut dots = [_mm256_setzero_si256(); N];
            if f.bits != 8 && f.bias != 0 {
                for n in 0..N {
                    let sum = _mm256_set1_epi32(*x.sums(tile, s, r + n).add(sum_at));
                    dots[n] = _mm256_mullo_epi32(sum, _mm256_set1_epi32(f.bias));
                }
            }
            for i in sub * f.sub / 16..(sub + 1) * f.sub / 16 {
                let w = open::<L>(block, i, half);
                let at = codes.add(i / 4 * 1024 + i % 4 * 16);
                for n in 0..N {
                    dots[n] = _mm256_add_epi32(dots[n], products::<L>(w, at.add(n * 64).cast()));
                }
            }
            let scale = sub_scales::<L>(block, sub, half);
            for n in 0..N {
                total[n] = _mm256_add_epi32(total[n], _mm256_mullo_epi32(dots[n], scale));
            }
            if f.has_min {
                let at = block.add(f.mins_at() + sub * 16 + half * 8);
                let min = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
                for n in 0..N {
                    let sum = _mm256_set1_epi32(*x.sums(tile, s, r + n).add(sum_at));
                    mins[n] = _mm256_add_epi32(mins[n], _mm256_mullo_epi32(min, sum));
                }
            }
        }
    }
    (total, mins)
}
