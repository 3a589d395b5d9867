//! Few rows with 512-bit byte dot products: codes are opened in registers and multiplied with up to eight rows at once.

use super::activations::{QuantActivations, TILE};
use super::format::SubScale;
use super::layouts::Layout;
use std::arch::x86_64::*;

/// Codes of inputs `16 i .. 16 i + 16` of 16 outputs: four vectors of unsigned bytes.
///
/// # Safety
/// `block` must point at a superblock of layout `L`, and `i` be below 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn open<L: Layout>(block: *const u8, i: usize) -> [__m512i; 4] {
    let f = L::FORMAT;
    // SAFETY: the offsets are those of the layout.
    unsafe {
        let codes = block.add(f.codes_at());
        if f.bits == 8 {
            let at = codes.add(i * 256);
            return [load(at), load(at.add(64)), load(at.add(128)), load(at.add(192))];
        }
        let low = _mm512_set1_epi8(15);
        let (a, b) = (load(codes.add(i * 128)), load(codes.add(i * 128 + 64)));
        let rows = [
            _mm512_and_si512(a, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(a), low),
            _mm512_and_si512(b, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(b), low),
        ];
        if f.bits == 4 {
            return rows;
        }
        let high = block.add(f.high_at());
        let [r0, r1, r2, r3] = rows;
        // low | (shifted & mask)
        if f.bits == 5 {
            let bit = _mm512_set1_epi8(16);
            let h = load(high.add(i / 2 * 64));
            let h = if i.is_multiple_of(2) { h } else { _mm512_srli_epi16::<4>(h) };
            return [
                _mm512_ternarylogic_epi32::<0xf8>(r0, _mm512_slli_epi16::<4>(h), bit),
                _mm512_ternarylogic_epi32::<0xf8>(r1, _mm512_slli_epi16::<3>(h), bit),
                _mm512_ternarylogic_epi32::<0xf8>(r2, _mm512_slli_epi16::<2>(h), bit),
                _mm512_ternarylogic_epi32::<0xf8>(r3, _mm512_slli_epi16::<1>(h), bit),
            ];
        }
        let bits = _mm512_set1_epi8(48);
        let h = load(high.add(i * 64));
        [
            _mm512_ternarylogic_epi32::<0xf8>(r0, _mm512_slli_epi16::<4>(h), bits),
            _mm512_ternarylogic_epi32::<0xf8>(r1, _mm512_slli_epi16::<2>(h), bits),
            _mm512_ternarylogic_epi32::<0xf8>(r2, h, bits),
            _mm512_ternarylogic_epi32::<0xf8>(r3, _mm512_srli_epi16::<2>(h), bits),
        ]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: the caller's pointer.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// The integer scales of sub-block `sub` of 16 outputs.
///
/// # Safety
/// As for [`open`]; `sub` must be below the layout's number of sub-blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn sub_scales<L: Layout>(block: *const u8, sub: usize) -> __m512i {
    let f = L::FORMAT;
    // SAFETY: the offset is that of the layout.
    unsafe {
        let at = block.add(f.scales_at() + sub * 16 * f.scale_bytes());
        match f.scale {
            SubScale::U8 => _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())),
            SubScale::I8 => _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())),
            SubScale::I16 => _mm512_cvtepi16_epi32(_mm256_loadu_si256(at.cast())),
        }
    }
}

/// The float scales d, or dmin, that begin at `at`.
///
/// # Safety
/// 32 bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn float_scales<L: Layout>(at: *const u8) -> __m512 {
    // SAFETY: the caller's pointer.
    let bits = unsafe { _mm256_loadu_si256(at.cast()) };
    if L::FORMAT.wide_d {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    } else {
        _mm512_cvtph_ps(bits)
    }
}

/// How far ahead of the codes memory is asked for: inside a small page, where it also sets the processor's own prefetching going. Bytes past
/// the panel are the next panel's, which is usually next.
const AHEAD: usize = 3584;

/// One panel times rows `row .. row + N`, which must lie in one tile.
///
/// # Safety
/// The machine must have the instructions; `panel` must hold `x.supers` superblocks of layout `L`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn dot<L: Layout, const N: usize>(
    panel: *const u8,
    x: &QuantActivations,
    row: usize,
    out: &mut [[f32; 16]; N],
) {
    let f = L::FORMAT;
    let (tile, r) = (row / TILE, row % TILE);
    let mut acc = [_mm512_setzero_ps(); N];
    for s in 0..x.supers {
        // SAFETY: all offsets are those of superblock `s` of the panel and of rows `r .. r + N` of the tile.
        unsafe {
            let block = panel.add(s * f.bytes());
            let ahead = block.wrapping_add(AHEAD);
            let codes = x.codes(tile, s).add(r * 64).cast::<u8>();
            let mut sums = [std::ptr::null(); N];
            for n in 0..N {
                sums[n] = x.sums(tile, s, r + n);
            }
            let mut total = [_mm512_setzero_si512(); N];
            let mut mins = [_mm512_setzero_si512(); N];
            for sub in 0..f.subs() {
                let sum_at = if f.sub == 32 { 16 + sub } else { sub };
                let mut dots = [_mm512_setzero_si512(); N];
                if f.bias != 0 {
                    for n in 0..N {
                        let sum = _mm512_set1_epi32(*sums[n].add(sum_at));
                        dots[n] = _mm512_sll_epi32(sum, _mm_cvtsi32_si128(f.bias.trailing_zeros() as i32));
                    }
                }
                for i in sub * f.sub / 16..(sub + 1) * f.sub / 16 {
                    let mut line = i * f.bytes() / 16;
                    while line < (i + 1) * f.bytes() / 16 {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line).cast());
                        line += 64;
                    }
                    let w = open::<L>(block, i);
                    let at = codes.add(i / 4 * 1024 + i % 4 * 16).cast::<i32>();
                    for n in 0..N {
                        let at = at.add(n * 16);
                        dots[n] = _mm512_dpbusd_epi32(dots[n], w[0], _mm512_set1_epi32(*at));
                        dots[n] = _mm512_dpbusd_epi32(dots[n], w[1], _mm512_set1_epi32(*at.add(1)));
                        dots[n] = _mm512_dpbusd_epi32(dots[n], w[2], _mm512_set1_epi32(*at.add(2)));
                        dots[n] = _mm512_dpbusd_epi32(dots[n], w[3], _mm512_set1_epi32(*at.add(3)));
                    }
                }
                let scale = sub_scales::<L>(block, sub);
                for n in 0..N {
                    total[n] = _mm512_add_epi32(total[n], _mm512_mullo_epi32(dots[n], scale));
                }
                if f.has_min {
                    let min = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(f.mins_at() + sub * 16).cast()));
                    for n in 0..N {
                        let sum = _mm512_set1_epi32(*sums[n].add(sum_at));
                        mins[n] = _mm512_add_epi32(mins[n], _mm512_mullo_epi32(min, sum));
                    }
                }
            }
            let d = float_scales::<L>(block);
            for n in 0..N {
                let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(total[n]), d);
                if f.has_min {
                    t = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins[n]), float_scales::<L>(block.add(32)), t);
                }
                acc[n] = _mm512_fmadd_ps(t, _mm512_set1_ps(*x.scales(tile, s).add(r + n)), acc[n]);
            }
        }
    }
    for n in 0..N {
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(out[n].as_mut_ptr(), acc[n]) };
    }
}
