//! Portable reference kernel of the integer GEMV; every faster kernel must match it bit by bit.

use crate::gemm::int8::activations::QuantActivations;
use crate::isa::tile::{LANES, TILE};
use crate::weights::int8::format::{Format, SUPERBLOCK};
use half::{bf16, f16};

/// `out = panel x[row]`: 16 outputs.
///
/// Sums within a superblock are exact integers; across superblocks there is one f32 chain per
/// output, in order.
///
/// # Safety
/// The row must exist.
pub(crate) unsafe fn dot(
    format: Format,
    panel: &[u8],
    x: &QuantActivations,
    row: usize,
    out: &mut [f32; LANES],
) {
    let (tile, r) = (row / TILE, row % TILE);
    *out = [0.0; LANES];
    for (at, block) in panel.chunks_exact(format.bytes()).enumerate().take(x.superblocks * format.planes) {
        let s = at / format.planes;
        // SAFETY: a superblock of the caller's row.
        let (codes, scale, sums) = unsafe {
            let mut codes = [0i8; SUPERBLOCK];
            for (step, part) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                *part = x.codes(tile, s).add(step * 1024 + r * 64).cast::<[i8; 64]>().read();
            }
            (codes, x.scales(tile, s).add(r).read(), x.sums(tile, s).add(r).read())
        };
        let (mut total, mut mins) = ([0i32; LANES], [0i32; LANES]);
        for i in 0..SUPERBLOCK / 4 {
            let bytes = unpacked(format, block, i);
            for (lane, total) in total.iter_mut().enumerate() {
                for j in 0..4 {
                    *total += i32::from(bytes[lane * 4 + j]) * i32::from(codes[i * 4 + j]);
                }
            }
        }
        if format.has_min {
            for (sub, &sum) in sums.of_subs(format).iter().enumerate() {
                for (lane, mins) in mins.iter_mut().enumerate() {
                    *mins += i32::from(block[format.mins_at() + sub * LANES + lane] as i8) * i32::from(sum);
                }
            }
        }
        for lane in 0..LANES {
            let mut t = total[lane] as f32 * (float_scale(format, block, lane) * format.factor());
            if format.has_min {
                t = (-(mins[lane] as f32)).mul_add(float_scale(format, &block[32..], lane), t);
            }
            out[lane] = t.mul_add(scale, out[lane]);
        }
    }
}

/// Unpacks inputs `4i .. 4i + 4` of all 16 outputs to int8.
fn unpacked(format: Format, block: &[u8], i: usize) -> [i8; 64] {
    let codes = &block[format.codes_at()..];
    let high = &block[format.high_at()..];
    std::array::from_fn(|j| {
        if format.stores_unpacked() {
            return (codes[i * 64 + j] ^ 0x80) as i8;
        }
        let six = |n: usize| codes[(i / 4 * 3 + n) * 64 + j];
        // Output `j / 4` is in 16-byte lane `j / 16` of every fourth line. A byte holds one of the
        // first 16 inputs of a part and one of the last 16. So does a byte of fifth bits, for all
        // four lines.
        let by_output = || {
            let (part, n, last) = (i / 8, j / 4 % 4, i / 4 % 2);
            let at = j / 16 * 16 + i % 4 * 4 + j % 4;
            let low = codes[(part * 4 + n) * 64 + at] >> (last * 4) & 15;
            if format.bits == 4 { low } else { low | (high[part * 64 + at] >> (n * 2 + last) & 1) << 4 }
        };
        let code = match format.bits {
            6 if i % 4 < 3 => six(i % 4) >> 2,
            6 => six(0) & 3 | (six(1) & 3) << 2 | (six(2) & 3) << 4,
            _ => by_output(),
        };
        let code = i32::from(format.codes.value(code, format.bits));
        let scale = block[format.scales_at() + i * 4 / format.sub * LANES + j / 4] as i8;
        let product = code * i32::from(scale) * i32::from(format.multiplier);
        ((product + (1 << (format.shift() - 1))) >> format.shift()) as i8
    })
}

/// Loads d or dmin of one output.
fn float_scale(format: Format, block: &[u8], lane: usize) -> f32 {
    let bits = u16::from_le_bytes([block[lane * 2], block[lane * 2 + 1]]);
    if format.bf16_d { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
}
