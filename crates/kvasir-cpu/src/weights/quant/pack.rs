//! Packs 16 encoded rows into a panel: decodes a superblock, then writes it block by block in the
//! layout of `format.rs`.
//!
//! A code line is 64 bytes: four consecutive inputs of output 0, the same inputs of output 1, and so
//! on to output 15. Codes of 4 (or 2) bits share bytes: a packed line holds two (or four) consecutive
//! code lines, the first in the lowest bits. High bits are packed the same way.
//!
//! Runs at load time or while a matrix is still read in place, so it is vectorized and prefetches
//! the next panel's rows. Every instruction set writes the same bytes.

use crate::isa::dispatch::per_isa;
use crate::isa::tile::LANES;
use crate::weights::panels::{EncodedPanel, next_panel_distance, prefetch_bytes};
use crate::weights::quant::decode::Superblocks;
use crate::weights::quant::format::{BLOCK, Format, LINES, SUPERBLOCK, Scales};
use kvasir_formats::DType;

per_isa! {
    /// Packs `rows` into the panel `out`; prefetches the rows of the next panel at their likely
    /// addresses.
    pack(dtype: DType, format: Format, rows: &EncodedPanel<'_>, out: &mut [u8]) => pack_body
}

#[inline(always)]
fn pack_body(dtype: DType, format: Format, rows: &EncodedPanel<'_>, out: &mut [u8]) {
    let step = SUPERBLOCK / dtype.block_len() * dtype.block_bytes();
    let ahead = next_panel_distance(rows);
    let mut superblocks = Superblocks::new();
    for (s, out) in out.chunks_mut(format.superblock_bytes()).enumerate() {
        let mut parts: EncodedPanel<'_> = [&[]; LANES];
        for (to, row) in parts.iter_mut().zip(rows) {
            let end = row.len().min((s + 1) * step);
            *to = &row[end.min(s * step)..end];
            prefetch_bytes(to, ahead);
        }
        superblocks.read(dtype, format, &parts);
        let (d, blocks) = out.split_at_mut(format.d_bytes());
        write_floats(d, superblocks.d.iter().chain(&superblocks.dmin));
        for (b, out) in blocks.chunks_exact_mut(format.block_bytes()).enumerate() {
            write_block(format, &superblocks, b, out);
        }
    }
}

/// Writes block `b` of a superblock.
#[inline(always)]
fn write_block(format: Format, superblocks: &Superblocks, b: usize, out: &mut [u8]) {
    let (scales, codes) = out.split_at_mut(format.codes_at());
    let (scales, mins) = scales.split_at_mut(format.mins_at());
    let subs = b * format.subs()..(b + 1) * format.subs();
    for (out, of) in [(scales, &superblocks.scale), (mins, &superblocks.min)] {
        let numbers = of[subs.clone()].as_flattened();
        if format.scales == Scales::Integers {
            out.iter_mut().zip(numbers).for_each(|(to, v)| *to = *v as u8);
        } else {
            write_floats(out, numbers);
        }
    }
    let mut lines = [[0u8; LANES * 4]; LINES];
    for (lane, code) in superblocks.code.iter().enumerate() {
        let code = code.as_chunks::<BLOCK>().0[b];
        for (line, four) in lines.iter_mut().zip(code.as_chunks::<4>().0) {
            line[lane * 4..lane * 4 + 4].copy_from_slice(four);
        }
    }
    let (low, high) = codes.split_at_mut(format.high_at() - format.codes_at());
    write_lines(&lines, 0, format.low, low);
    if format.high > 0 {
        write_lines(&lines, format.low, format.high, high);
    }
}

/// Writes bits `from .. from + width` of the codes, several code lines per packed line.
#[inline(always)]
fn write_lines(lines: &[[u8; LANES * 4]; LINES], from: usize, width: usize, out: &mut [u8]) {
    let together = 8 / width;
    let mask = (0xff_u8 >> (8 - width)) << from;
    for (out, lines) in out.as_chunks_mut::<{ LANES * 4 }>().0.iter_mut().zip(lines.chunks_exact(together)) {
        *out = [0; LANES * 4];
        for (n, line) in lines.iter().enumerate() {
            for (to, code) in out.iter_mut().zip(line) {
                *to |= (code & mask) >> from << (n * width);
            }
        }
    }
}

/// Writes 16-bit numbers, as many as fit.
#[inline(always)]
fn write_floats<'a>(out: &mut [u8], numbers: impl IntoIterator<Item = &'a u16>) {
    out.as_chunks_mut::<2>().0.iter_mut().zip(numbers).for_each(|(to, v)| *to = v.to_le_bytes());
}
