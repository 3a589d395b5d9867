//! Matrices in the form that the kernels read.

use crate::Team;
use crate::dense::{Bf16Panels, F32Panels};
use crate::form::Form;
use crate::quant::QuantPanels;

/// One matrix, in panels of 16 outputs.
pub(crate) enum Packed {
    Quant(QuantPanels),
    Bf16(Bf16Panels),
    F32(F32Panels),
}

impl Packed {
    /// Packs some more of what is read where it lies, about so many bytes, and returns how many it took; none if all is packed.
    pub(crate) fn pack_some(&self, team: &Team, bytes: usize) -> std::io::Result<usize> {
        match self {
            Self::Quant(w) => w.pack_some(team, bytes),
            Self::Bf16(w) => w.pack_some(team, bytes),
            Self::F32(w) => w.pack_some(team, bytes),
        }
    }

    pub(crate) fn is_packed(&self) -> bool {
        match self {
            Self::Quant(w) => w.is_packed(),
            Self::Bf16(w) => w.is_packed(),
            Self::F32(w) => w.is_packed(),
        }
    }

    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Quant(_) => Form::Quantised,
            Self::Bf16(_) => Form::Bf16,
            Self::F32(_) => Form::F32,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Quant(w) => w.bytes(),
            Self::Bf16(w) => w.bytes(),
            Self::F32(w) => w.bytes(),
        }
    }
}

/// A matrix with its bias.
pub(crate) struct Linear {
    pub(crate) packed: Packed,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Bytes of it in the file.
    pub(crate) stored_bytes: usize,
}
