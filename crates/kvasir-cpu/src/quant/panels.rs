use super::format::{Format, LANES, SUPER};
use super::source::Super;
use crate::{Team, buffer::Buffer};
use kvasir_formats::DType;
use std::io;

/// A matrix of quantised weights as panels of 16 outputs: the superblocks of a panel one after the other, codes of four inputs of
/// 16 outputs to a vector. Read once, in order, by every kernel.
pub(crate) struct QuantPanels {
    pub(crate) format: Format,
    pub(crate) outputs: usize,
    pub(crate) supers: usize,
    bytes: Buffer,
}

impl QuantPanels {
    /// Packs `outputs` rows of `inputs` weights; `row(n)` gives the encoded bytes of row n.
    pub(crate) fn pack<'a>(
        team: &Team,
        dtype: DType,
        format: Format,
        (outputs, inputs): (usize, usize),
        row: &(dyn Fn(usize) -> &'a [u8] + Sync),
    ) -> io::Result<Self> {
        let supers = inputs.div_ceil(SUPER);
        let panel_bytes = supers * format.bytes();
        let bytes = Buffer::in_large_pages(outputs.div_ceil(LANES) * panel_bytes)?;
        let out = Self { format, outputs, supers, bytes };
        let base = out.bytes.ptr() as usize;
        let step = SUPER / dtype.block_len() * dtype.block_bytes();
        team.each(out.panels(), &|_, panel| {
            // SAFETY: the panel lies within the buffer, which `out` owns alone, and each panel is written by one thread.
            let dest = unsafe {
                std::slice::from_raw_parts_mut((base + panel * panel_bytes) as *mut u8, panel_bytes)
            };
            let rows: [&[u8]; LANES] = std::array::from_fn(|lane| {
                let n = panel * LANES + lane;
                if n < outputs { row(n) } else { &[] }
            });
            for (s, dest) in dest.chunks_exact_mut(format.bytes()).enumerate() {
                let part = |r: &[u8]| {
                    let end = r.len().min((s + 1) * step);
                    r.get(s * step..end)
                        .filter(|p| !p.is_empty())
                        .map_or_else(|| Super::zero(format), |p| Super::read(dtype, format, p))
                };
                write_super(format, &rows.map(part), dest);
            }
        });
        Ok(out)
    }

    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// First byte of a panel; `supers` superblocks follow each other.
    pub(crate) fn panel(&self, n: usize) -> &[u8] {
        let len = self.supers * self.format.bytes();
        self.bytes.bytes().get(n * len..(n + 1) * len).unwrap_or_default()
    }
}

fn write_super(format: Format, lanes: &[Super; LANES], out: &mut [u8]) {
    let two = |out: &mut [u8], at: usize, v: u16| out[at..at + 2].copy_from_slice(&v.to_le_bytes());
    for (lane, s) in lanes.iter().enumerate() {
        two(out, lane * 2, s.d);
        if format.has_min {
            two(out, 32 + lane * 2, s.dmin);
        }
        for i in 0..format.subs() {
            let at = format.scales_at() + (i * LANES + lane) * format.scale_bytes();
            if format.scale_bytes() == 2 {
                two(out, at, s.scale[i] as u16);
            } else {
                out[at] = s.scale[i] as u8;
            }
            if format.has_min {
                out[format.mins_at() + i * LANES + lane] = s.min[i] as u8;
            }
        }
    }
    let mut rows = [[0u8; 64]; 64];
    for (lane, s) in lanes.iter().enumerate() {
        for (row, four) in rows.iter_mut().zip(s.code.as_chunks::<4>().0) {
            row[lane * 4..lane * 4 + 4].copy_from_slice(four);
        }
    }
    let (codes, high) = out[format.codes_at()..].split_at_mut(format.high_at() - format.codes_at());
    if format.bits == 8 {
        codes.as_chunks_mut::<64>().0.copy_from_slice(&rows);
        return;
    }
    for (vector, pair) in codes.as_chunks_mut::<64>().0.iter_mut().zip(rows.as_chunks::<2>().0) {
        for (i, v) in vector.iter_mut().enumerate() {
            *v = pair[0][i] & 15 | pair[1][i] << 4;
        }
    }
    // Five bits: eight rows to a vector, a bit each. Six bits: four rows to a vector, two bits each.
    let (together, width) = if format.bits == 5 { (8, 1) } else { (4, 2) };
    for (vector, group) in high.as_chunks_mut::<64>().0.iter_mut().zip(rows.chunks_exact(together)) {
        for (i, v) in vector.iter_mut().enumerate() {
            *v = group.iter().enumerate().fold(0, |bits, (t, row)| bits | row[i] >> 4 << (t * width));
        }
    }
}
