//! Transposes the codes of 16 rows to lines of four inputs x 16 outputs, the layout of byte dot
//! products.

use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::weights::int8::format::SUPERBLOCK;

/// Line `i` gets inputs `4 i .. 4 i + 4` of each row.
#[inline(always)]
pub(crate) fn transpose(isa: Isa, code: &[[u8; SUPERBLOCK]; LANES], lines: &mut [[u8; 64]; 64]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        // SAFETY: the instruction set was detected on this machine.
        return unsafe { wide::transpose(code, lines) };
    }
    let _ = isa;
    plain(code, lines);
}

/// The portable transpose.
#[inline(always)]
fn plain(code: &[[u8; SUPERBLOCK]; LANES], lines: &mut [[u8; 64]; 64]) {
    for (lane, code) in code.iter().enumerate() {
        for (line, four) in lines.iter_mut().zip(code.as_chunks::<4>().0) {
            line[lane * 4..lane * 4 + 4].copy_from_slice(four);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use crate::isa::tile::LANES;
    use crate::isa::vectors::v512::transpose_square;
    use crate::weights::int8::format::SUPERBLOCK;
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn transpose(code: &[[u8; SUPERBLOCK]; LANES], lines: &mut [[u8; 64]; 64]) {
        for (part, lines) in lines.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: 64 bytes of each row.
            let rows = std::array::from_fn(|r| unsafe {
                _mm512_loadu_si512(code[r].as_ptr().add(part * 64).cast())
            });
            for (line, column) in lines.iter_mut().zip(transpose_square(rows)) {
                // SAFETY: 64 bytes.
                unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), column) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;

    #[test]
    fn vectors_transpose_as_the_plain_loop_does() {
        let mut code = [[0u8; SUPERBLOCK]; LANES];
        let bytes = code.as_flattened_mut();
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 251) as u8);
        let mut expected = [[0; 64]; 64];
        plain(&code, &mut expected);
        for isa in isas() {
            let mut lines = [[0; 64]; 64];
            transpose(isa, &code, &mut lines);
            assert_eq!(lines, expected, "{isa}");
        }
    }
}
