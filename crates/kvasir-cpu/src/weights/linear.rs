//! Linear layers: packed weight matrices, one enum over the kernel families, with their biases; and
//! the matrices of one op.

use crate::threads::pool::ThreadPool;
use crate::weights::bf16::Bf16Panels;
use crate::weights::f32::panels::F32Panels;
use crate::weights::quant::panels::QuantPanels;
use std::fmt;

/// The kernel family that multiplies a packed matrix; reported to users in load and benchmark
/// output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Integer kernels: blocks of codes at their stored width, 16-bit activations.
    Quantized,
    /// bf16 kernels.
    Bf16,
    /// f16 weights widened to f32.
    F16,
    /// f32 arithmetic.
    F32,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quantized => "integer panels",
            Self::Bf16 => "bf16 panels",
            Self::F16 => "f16 panels",
            Self::F32 => "f32 panels",
        })
    }
}

/// A matrix in panels of 16 outputs, in the layout of its kernel family.
pub(crate) enum Packed {
    Quant(QuantPanels),
    Bf16(Bf16Panels),
    F32(F32Panels),
}

impl Packed {
    /// Packs about `bytes` more of a matrix that is still read in place. Returns the bytes packed;
    /// zero if all is packed, or while another process packs the matrix.
    pub(crate) fn pack_some(&self, threads: &ThreadPool, bytes: usize) -> std::io::Result<usize> {
        match self {
            Self::Quant(w) => w.pack_some(threads, bytes),
            Self::Bf16(w) => w.pack_some(threads, bytes),
            Self::F32(w) => w.pack_some(threads, bytes),
        }
    }

    /// Extends the packed prefix by the panels that other processes have packed.
    pub(crate) fn adopt(&self) {
        match self {
            Self::Quant(w) => w.adopt(),
            Self::Bf16(w) => w.adopt(),
            Self::F32(w) => w.adopt(),
        }
    }

    /// Whether the panels lie in a `PackedFile`.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Quant(w) => w.is_shared(),
            Self::Bf16(w) => w.is_shared(),
            Self::F32(w) => w.is_shared(),
        }
    }

    /// Whether nothing is read in place any more.
    pub(crate) fn is_packed(&self) -> bool {
        match self {
            Self::Quant(w) => w.is_packed(),
            Self::Bf16(w) => w.is_packed(),
            Self::F32(w) => w.is_packed(),
        }
    }

    /// The kernel family.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Quant(_) => Form::Quantized,
            Self::Bf16(w) if w.kind.is_f16 => Form::F16,
            Self::Bf16(_) => Form::Bf16,
            Self::F32(_) => Form::F32,
        }
    }

    /// Bytes of all panels when packed.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Quant(w) => w.bytes(),
            Self::Bf16(w) => w.bytes(),
            Self::F32(w) => w.bytes(),
        }
    }

    /// Bytes of the panels that no process has packed yet.
    pub(crate) fn unpacked_bytes(&self) -> usize {
        match self {
            Self::Quant(w) => w.unpacked_bytes(),
            Self::Bf16(w) => w.unpacked_bytes(),
            Self::F32(w) => w.unpacked_bytes(),
        }
    }
}

/// A linear layer: `y = W x + bias`.
pub(crate) struct Linear {
    pub(crate) packed: Packed,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Bytes of the matrix in the checkpoint file.
    pub(crate) stored_bytes: usize,
    /// Whether the outputs are logits.
    pub(crate) makes_logits: bool,
}

/// The weight matrices of one op.
pub(crate) enum OpWeights {
    None,
    One(Linear),
    Many(Vec<Linear>),
    Experts {
        gate: Vec<Linear>,
        /// Empty for experts whose gate matrices are their up matrices.
        up: Vec<Linear>,
        down: Vec<Linear>,
    },
}

impl OpWeights {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Linear> {
        let parts: [&[Linear]; 3] = match self {
            Self::None => [&[], &[], &[]],
            Self::One(l) => [std::slice::from_ref(l), &[], &[]],
            Self::Many(l) => [l, &[], &[]],
            Self::Experts { gate, up, down } => [gate, up, down],
        };
        parts.into_iter().flatten()
    }
}
