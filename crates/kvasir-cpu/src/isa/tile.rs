//! Tile geometry shared by all kernels (16 lanes, 16 rows, 32 bf16), and the 16 x 16 transpose of
//! 32-bit words.

use crate::isa::features::Isa;

/// Lanes of a vector: outputs of a panel and columns of a tile.
pub(crate) const LANES: usize = 16;
/// Rows of a tile.
pub(crate) const TILE: usize = 16;
/// bf16 numbers in a tile row (64 bytes): the K dimension of one GEMM step.
pub(crate) const STEP: usize = 32;

/// 16 x 16 32-bit words: f32, or pairs of bf16.
pub(crate) type Tile = [[u32; LANES]; LANES];

/// Transposes a tile.
pub(crate) fn transpose(isa: Isa, from: &Tile, to: &mut Tile) {
    let mut rows = [std::ptr::null(); LANES];
    rows.iter_mut().zip(from).for_each(|(at, row)| *at = row.as_ptr().cast());
    // SAFETY: 16 rows of 64 bytes each.
    unsafe { transpose_rows(isa, &rows, to.as_mut_ptr().cast()) };
}

/// Transposes 16 rows of 16 words into a tile. Words keep their bytes.
///
/// # Safety
/// 64 bytes must be readable at each of `rows`, and 1,024 be writable at `to`, all possibly
/// unaligned.
pub(crate) unsafe fn transpose_rows(isa: Isa, rows: &[*const u8; LANES], to: *mut u8) {
    // SAFETY: the instruction set was detected on this machine; the caller's memory.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            return vectors::v512(rows, to);
        } else if isa.has_avx2() {
            return vectors::v256(rows, to);
        }
        let _ = isa;
        for (lane, row) in rows.iter().enumerate() {
            let row = row.cast::<[u32; LANES]>().read_unaligned();
            for (i, word) in row.into_iter().enumerate() {
                to.cast::<u32>().add(i * LANES + lane).write_unaligned(word);
            }
        }
    }
}

/// The transpose in 512-bit or 256-bit vectors, one square of vector width at a time.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use crate::isa::tile::LANES;

    macro_rules! transpose {
        ($vectors:ident, $features:literal) => {
            /// # Safety
            /// As for [`super::transpose_rows`], and the CPU must support the target features.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn $vectors(rows: &[*const u8; LANES], to: *mut u8) {
                use crate::isa::vectors::$vectors::*;
                for i in (0..LANES).step_by(WORDS) {
                    for j in (0..LANES).step_by(WORDS) {
                        let mut square = [zero(); WORDS];
                        for (n, row) in square.iter_mut().enumerate() {
                            // SAFETY: one vector's words of the caller's 16.
                            *row = unsafe { load(rows[i + n].wrapping_add(j * 4)) };
                        }
                        for (n, row) in transpose_square(square).into_iter().enumerate() {
                            // SAFETY: as above.
                            unsafe { store(to.wrapping_add((j + n) * LANES * 4 + i * 4), row) };
                        }
                    }
                }
            }
        };
    }

    transpose!(v512, "avx512f,avx512bw,avx512vl,avx512dq");
    transpose!(v256, "avx2,fma,f16c");
}
