use super::format::{LANES, SUPER};
use crate::Level;

/// Codes of 16 rows to lines of four inputs of each row: line `i` has inputs `4 i .. 4 i + 4`.
#[inline(always)]
pub(super) fn transpose(level: Level, code: &[[u8; SUPER]; LANES], lines: &mut [[u8; 64]; 64]) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512Vnni {
        // SAFETY: the level was found on this machine.
        return unsafe { wide::transpose(code, lines) };
    }
    let _ = level;
    plain(code, lines);
}

#[inline(always)]
fn plain(code: &[[u8; SUPER]; LANES], lines: &mut [[u8; 64]; 64]) {
    for (lane, code) in code.iter().enumerate() {
        for (line, four) in lines.iter_mut().zip(code.as_chunks::<4>().0) {
            line[lane * 4..lane * 4 + 4].copy_from_slice(four);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use wide::square;

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{LANES, SUPER};
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn transpose(code: &[[u8; SUPER]; LANES], lines: &mut [[u8; 64]; 64]) {
        for (part, lines) in lines.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: 64 bytes of each row.
            let rows = std::array::from_fn(|r| unsafe {
                _mm512_loadu_si512(code[r].as_ptr().add(part * 64).cast())
            });
            for (line, column) in lines.iter_mut().zip(square(rows)) {
                // SAFETY: 64 bytes.
                unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), column) };
            }
        }
    }

    /// 16 rows of 16 numbers of 32 bits to 16 columns.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(in super::super) fn square(rows: [__m512i; 16]) -> [__m512i; 16] {
        // Per group of four rows and lane of 128 bits: four of each row become one of four.
        let mut fours = rows;
        for group in fours.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *group;
            let (ab0, ab1) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd0, cd1) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            *group = [
                _mm512_unpacklo_epi64(ab0, cd0),
                _mm512_unpackhi_epi64(ab0, cd0),
                _mm512_unpacklo_epi64(ab1, cd1),
                _mm512_unpackhi_epi64(ab1, cd1),
            ];
        }
        // Of the four groups' vectors `i`, lane `l` is column `4 l + i`.
        let mut out = [_mm512_setzero_si512(); 16];
        for i in 0..4 {
            let [a, b, c, d] = [fours[i], fours[4 + i], fours[8 + i], fours[12 + i]];
            let (ab0, ab1) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (cd0, cd1) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            out[i] = _mm512_shuffle_i32x4::<0x88>(ab0, cd0);
            out[8 + i] = _mm512_shuffle_i32x4::<0xdd>(ab0, cd0);
            out[4 + i] = _mm512_shuffle_i32x4::<0x88>(ab1, cd1);
            out[12 + i] = _mm512_shuffle_i32x4::<0xdd>(ab1, cd1);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_turn_as_the_plain_loop_does() {
        let mut code = [[0u8; SUPER]; LANES];
        let bytes = code.as_flattened_mut();
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 251) as u8);
        let mut expected = [[0; 64]; 64];
        plain(&code, &mut expected);
        for level in Level::available() {
            let mut lines = [[0; 64]; 64];
            transpose(level, &code, &mut lines);
            assert_eq!(lines, expected, "{level}");
        }
    }
}
