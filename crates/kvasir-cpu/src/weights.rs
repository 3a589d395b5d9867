//! Packed weight matrices: one enum over the kernel families, and a linear layer with its bias.

use crate::ThreadPool;
use crate::dense::{Bf16Panels, F32Panels};
use crate::form::Form;
use crate::quant::QuantPanels;

/// A matrix in panels of 16 outputs, in the layout of its kernel family.
pub(crate) enum Packed {
    Quant(QuantPanels),
    Bf16(Bf16Panels),
    F32(F32Panels),
}

impl Packed {
    /// Packs about `bytes` more of a matrix that is still read in place. Returns the bytes packed;
    /// zero if all is packed.
    pub(crate) fn pack_some(&self, team: &ThreadPool, bytes: usize) -> std::io::Result<usize> {
        match self {
            Self::Quant(w) => w.pack_some(team, bytes),
            Self::Bf16(w) => w.pack_some(team, bytes),
            Self::F32(w) => w.pack_some(team, bytes),
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
            Self::Quant(_) => Form::Quantised,
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
}

/// A linear layer: `y = W x + bias`.
pub(crate) struct Linear {
    pub(crate) packed: Packed,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Bytes of the matrix in the checkpoint file.
    pub(crate) stored_bytes: usize,
}
