//! Packs 16 encoded rows into a panel: read superblocks, rearrange the codes, write head and codes.
//!
//! Runs at load time or while a matrix is still read in place, so it is vectorized and prefetches
//! the next panel's rows. Every instruction set writes the same bytes.
//!
//! Small matrices get 16-bit weights, requantized from any encoding: two int8 planes per
//! superblock, `w = unit * (256 * high + low)`. Each plane is an ordinary superblock of unpacked
//! bytes, so kernels need no special case: both planes meet the same activations, and their sums
//! add up.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::float16::high_half;
use crate::isa::tile::LANES;
use crate::weights::int8::decode::{ONES, Superblocks, unit};
use crate::weights::int8::format::{Format, SUPERBLOCK};
use crate::weights::int8::transpose::transpose;
use crate::weights::panels::{EncodedPanel, next_panel_distance, prefetch_bytes};
use kvasir_formats::{DType, encoding};

per_isa! {
    /// Packs `rows` into the panel `out`; prefetches the rows of the next panel at their likely
    /// addresses.
    pack(dtype: DType, format: Format, rows: &EncodedPanel<'_>, own_isa: Isa, out: &mut [u8]) => pack_body
}

#[inline(always)]
fn pack_body(dtype: DType, format: Format, rows: &EncodedPanel<'_>, isa: Isa, out: &mut [u8]) {
    let step = SUPERBLOCK / dtype.block_len() * dtype.block_bytes();
    let ahead = next_panel_distance(rows);
    let mut superblocks = Superblocks::new();
    let mut lines = [[0u8; 64]; 64];
    for (s, out) in out.chunks_exact_mut(format.bytes() * format.planes).enumerate() {
        let mut parts: EncodedPanel<'_> = [&[]; LANES];
        for (to, row) in parts.iter_mut().zip(rows) {
            let end = row.len().min((s + 1) * step);
            *to = &row[end.min(s * step)..end];
            prefetch_bytes(to, ahead);
        }
        if format == Format::INT16 {
            pack_16bit(dtype, &parts, out);
            continue;
        }
        #[cfg(target_arch = "x86_64")]
        if dtype == DType::Q8_0 && isa.has_avx512() {
            // SAFETY: the instruction set was detected on this machine.
            if unsafe { crate::weights::int8::pack_q8_0::pack(&parts, out) } {
                continue;
            }
        }
        superblocks.read(dtype, format, &parts);
        let (head, codes) = out.split_at_mut(format.codes_at());
        write_head(format, &superblocks, head);
        if format.by_output() {
            write_by_output(format, &superblocks, codes);
            continue;
        }
        transpose(isa, &superblocks.code, &mut lines);
        write_lines(format, &lines, codes);
    }
}

/// Writes d, dmin, scales and mins.
#[inline(always)]
fn write_head(format: Format, superblocks: &Superblocks, head: &mut [u8]) {
    let (scales, mins) = head.split_at_mut(format.mins_at());
    let (floats, scales) = scales.split_at_mut(format.scales_at());
    let floats = floats.as_chunks_mut::<2>().0;
    for (to, v) in floats.iter_mut().zip(superblocks.d.iter().chain(&superblocks.dmin)) {
        *to = v.to_le_bytes();
    }
    for (bytes, of) in [(scales, &superblocks.scale), (mins, &superblocks.min)] {
        for (to, from) in bytes.as_chunks_mut::<LANES>().0.iter_mut().zip(of) {
            to.iter_mut().zip(from).for_each(|(to, v)| *to = *v as u8);
        }
    }
}

/// Writes 4- and 5-bit codes by output: a vector holds 32 inputs of every fourth output. A byte
/// holds one of the first 16 inputs (low half) and one of the last 16. One vector holds the fifth
/// bits of four such vectors.
#[inline(always)]
fn write_by_output(format: Format, superblocks: &Superblocks, codes: &mut [u8]) {
    let (codes, high) = codes.split_at_mut(format.high_at() - format.codes_at());
    // The first and the last 16 inputs of a part.
    let halves = |code: &[u8; SUPERBLOCK], part: usize| {
        [0, 1].map(|last| u128::from_le_bytes(code.as_chunks().0[part * 2 + last]))
    };
    for (part, lines) in codes.as_chunks_mut::<64>().0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for (output, code) in superblocks.code.iter().enumerate() {
            let [first, last] = halves(code, part).map(|codes| codes & (ONES * 15));
            let lane = output / 4 * 16;
            lines[output % 4][lane..lane + 16].copy_from_slice(&(first | last << 4).to_le_bytes());
        }
    }
    for (part, fifths) in high.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        for (lane, codes) in
            fifths.as_chunks_mut::<16>().0.iter_mut().zip(superblocks.code.as_chunks::<4>().0)
        {
            let mut bits = 0;
            for (n, code) in codes.iter().enumerate() {
                let [first, last] = halves(code, part).map(|codes| codes >> 4 & ONES);
                bits |= (first | last << 1) << (n * 2);
            }
            *lane = bits.to_le_bytes();
        }
    }
}

/// Writes 6- and 8-bit codes: a line holds four inputs of all 16 outputs.
#[inline(always)]
fn write_lines(format: Format, lines: &[[u8; 64]; 64], codes: &mut [u8]) {
    let codes = codes.as_chunks_mut::<64>().0;
    if format.bits == 8 {
        codes.copy_from_slice(lines);
        return;
    }
    // Three of four lines are in the high six bits of a vector each, which also has two bits of the
    // fourth.
    for (vectors, lines) in codes.as_chunks_mut::<3>().0.iter_mut().zip(lines.as_chunks::<4>().0) {
        for (n, vector) in vectors.iter_mut().enumerate() {
            for (i, v) in vector.iter_mut().enumerate() {
                *v = lines[n][i] << 2 | lines[3][i] >> (2 * n) & 3;
            }
        }
    }
}

/// Largest 16-bit code whose rounded high byte is still below 128.
const MAX_CODE_16BIT: f32 = 32_639.0;

/// Packs both planes of 256 inputs of `rows` into `out`. Absent weights and NaNs become zero.
#[inline(always)]
fn pack_16bit(dtype: DType, rows: &EncodedPanel<'_>, out: &mut [u8]) {
    let (high, low) = out.split_at_mut(Format::INT16.bytes());
    for (lane, row) in rows.iter().enumerate() {
        let mut weights = [0f32; SUPERBLOCK];
        let there = row.len() / dtype.block_bytes() * dtype.block_len();
        if encoding::dequantize(dtype, row, &mut weights[..there]).is_err() {
            weights.fill(0.0);
        }
        let largest = weights.iter().fold(0f32, |max, w| max.max(w.abs()));
        let (one, inverse) = unit(largest / MAX_CODE_16BIT);
        set_unit(high, lane, one * 256.0);
        set_unit(low, lane, one);
        for (i, w) in weights.iter().enumerate() {
            // The cast turns NaN into zero.
            let whole = (w * inverse).round_ties_even() as i32;
            let rounded = (whole + 128) >> 8;
            let at = Format::INT16.codes_at() + i / 4 * 64 + lane * 4 + i % 4;
            (high[at], low[at]) = (rounded as u8 ^ 0x80, (whole - rounded * 256) as u8 ^ 0x80);
        }
    }
}

/// Stores a lane's scale as bf16. `unit` must be exact in bf16.
#[inline(always)]
fn set_unit(plane: &mut [u8], lane: usize, unit: f32) {
    plane[lane * 2..lane * 2 + 2].copy_from_slice(&high_half(unit).to_le_bytes());
}
