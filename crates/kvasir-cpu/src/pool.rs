use crate::buffer::Buffer;
use crate::dense::round_bf16;
use half::{bf16, f16};
use kvasir_kv::{RowMove, Slot};
use kvasir_program::LayerFacts;
use std::fmt;
use std::io;

/// How K and V are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats with 5 exponent bits.
    F16,
    /// 16-bit floats with 8 exponent bits.
    Bf16,
    /// Bytes, 32 under one f16 scale.
    Q8_0,
}

impl KvType {
    /// Every type that this backend stores.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.to_string() == name)
    }

    fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width * 4,
            Self::F16 | Self::Bf16 => width * 2,
            Self::Q8_0 => width.div_ceil(32) * 34,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        })
    }
}

/// Rows of one kind (keys, values or indexer keys) of one layer, a row per slot.
///
/// Address space for the capacity is taken at once, memory when a row is first written. A row never moves but by a plan's moves.
pub(crate) struct Rows {
    kind: KvType,
    width: usize,
    row_bytes: usize,
    slots: usize,
    bytes: Buffer,
}

impl Rows {
    fn new(kind: KvType, width: usize, slots: usize) -> io::Result<Self> {
        let row_bytes = kind.row_bytes(width);
        let len =
            row_bytes.checked_mul(slots).ok_or_else(|| io::Error::other("the pool's size overflows"))?;
        Ok(Self { kind, width, row_bytes, slots, bytes: Buffer::new(len)? })
    }

    /// Bytes of the stored row, and its first.
    pub(crate) fn row(&self, slot: Slot) -> *const u8 {
        debug_assert!((slot as usize) < self.slots);
        self.bytes.ptr().wrapping_add(slot as usize * self.row_bytes)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(crate) fn kind(&self) -> KvType {
        self.kind
    }

    /// Stores a row.
    ///
    /// # Safety
    /// The slot must exist, and no other thread may use it meanwhile.
    pub(crate) unsafe fn write(&self, slot: Slot, x: &[f32]) {
        debug_assert_eq!(x.len(), self.width);
        // SAFETY: the row lies in the buffer; nobody else uses it.
        let row = unsafe { std::slice::from_raw_parts_mut(self.row(slot).cast_mut(), self.row_bytes) };
        match self.kind {
            KvType::F32 => {
                row.as_chunks_mut::<4>().0.iter_mut().zip(x).for_each(|(b, v)| *b = v.to_le_bytes())
            }
            KvType::F16 => {
                row.as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .zip(x)
                    .for_each(|(b, v)| *b = f16::from_f32(*v).to_le_bytes());
            }
            KvType::Bf16 => {
                row.as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .zip(x)
                    .for_each(|(b, v)| *b = round_bf16(*v).to_le_bytes());
            }
            KvType::Q8_0 => {
                row.as_chunks_mut::<34>().0.iter_mut().zip(x.chunks(32)).for_each(|(b, x)| write_q8(b, x))
            }
        }
    }

    /// Numbers `from .. from + out.len()` of a stored row.
    ///
    /// # Safety
    /// The slot must exist, and nobody may write it meanwhile.
    pub(crate) unsafe fn read(&self, slot: Slot, from: usize, out: &mut [f32]) {
        debug_assert!(from + out.len() <= self.width);
        // SAFETY: the row lies in the buffer.
        let row = unsafe { std::slice::from_raw_parts(self.row(slot), self.row_bytes) };
        match self.kind {
            KvType::F32 => out
                .iter_mut()
                .zip(&row.as_chunks::<4>().0[from..])
                .for_each(|(v, b)| *v = f32::from_le_bytes(*b)),
            KvType::F16 => {
                out.iter_mut()
                    .zip(&row.as_chunks::<2>().0[from..])
                    .for_each(|(v, b)| *v = f16::from_le_bytes(*b).to_f32());
            }
            KvType::Bf16 => {
                out.iter_mut()
                    .zip(&row.as_chunks::<2>().0[from..])
                    .for_each(|(v, b)| *v = bf16::from_le_bytes(*b).to_f32());
            }
            KvType::Q8_0 => {
                let blocks = row.as_chunks::<34>().0;
                for (i, v) in out.iter_mut().enumerate() {
                    let block = &blocks[(from + i) / 32];
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    *v = f32::from(block[2 + (from + i) % 32] as i8) * scale;
                }
            }
        }
    }

    /// Copies rows byte for byte; all are read before any is written.
    fn apply(&self, moves: &[RowMove], kept: &mut Vec<u8>) {
        kept.clear();
        for m in moves {
            // SAFETY: the executor has checked all slots of the plan; no step runs meanwhile.
            kept.extend_from_slice(unsafe { std::slice::from_raw_parts(self.row(m.from), self.row_bytes) });
        }
        for (m, bytes) in moves.iter().zip(kept.chunks_exact(self.row_bytes.max(1))) {
            // SAFETY: as above; `kept` is memory of its own.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.row(m.to).cast_mut(), self.row_bytes)
            };
        }
    }
}

fn write_q8(block: &mut [u8; 34], x: &[f32]) {
    let largest = x.iter().fold(0f32, |a, v| a.max(v.abs()));
    let d = largest / 127.0;
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..].iter_mut().zip(x).for_each(|(b, v)| *b = (v * inverse).round_ties_even() as i8 as u8);
}

/// What one layer keeps.
pub(crate) struct LayerPool {
    pub(crate) keys: Rows,
    /// Absent where values are part of the keys.
    pub(crate) values: Option<Rows>,
    /// Keys of the sparse-attention indexer.
    pub(crate) index: Option<Rows>,
}

/// The bytes behind a session's slots.
pub struct Pool {
    pub(crate) layers: Vec<LayerPool>,
    pub(crate) slots: usize,
    kind: KvType,
}

impl Pool {
    /// Room for `slots` tokens. Takes address space, not memory.
    pub fn new(layers: &[LayerFacts], kind: KvType, slots: usize) -> io::Result<Self> {
        let slots = slots.max(1);
        let rows = |width: usize| (width > 0).then(|| Rows::new(kind, width, slots)).transpose();
        let layer = |facts: &LayerFacts| {
            Ok(LayerPool {
                keys: Rows::new(kind, facts.key_width(), slots)?,
                values: rows(facts.value_width())?,
                index: rows(facts.index_dim)?,
            })
        };
        Ok(Self { layers: layers.iter().map(layer).collect::<io::Result<_>>()?, slots, kind })
    }

    /// How rows are stored.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Bytes that one token takes in all layers.
    pub fn token_bytes(&self) -> usize {
        let all = self.layers.iter().flat_map(|l| [Some(&l.keys), l.values.as_ref(), l.index.as_ref()]);
        all.flatten().map(Rows::row_bytes).sum()
    }

    /// Carries out a plan's moves.
    pub(crate) fn apply(&self, moves: &[RowMove], kept: &mut Vec<u8>) {
        for layer in self.layers.iter().filter(|_| !moves.is_empty()) {
            for rows in [Some(&layer.keys), layer.values.as_ref(), layer.index.as_ref()].into_iter().flatten()
            {
                rows.apply(moves, kept);
            }
        }
    }
}
