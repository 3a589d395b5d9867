//! [`Transform`]: how GGUF stores the values of a tensor differently from Hugging Face.
//!
//! A conversion applies the transform. The bytes of a GGUF file are never changed back: the program
//! is built for them, as the file's [`Layout`] says.

use crate::builder::source::Layout;
use crate::gguf::metadata::Metadata;
use crate::gguf::reader::ConfigReader;

/// A change of values between Hugging Face and GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// The rows of each head are permuted from pairs (i, i + half) to pairs (2i, 2i + 1).
    InterleavePairs {
        /// The config key of the number of heads.
        heads: &'static str,
    },
    /// Norm weights include the offset: 1 + w.
    PlusOne,
    /// MLA: `kv_b_proj` is split by head into `attn_k_b` (transposed) and `attn_v_b`.
    SplitLatent,
    /// The unused rows of the position table, up to `pad_token_id`, are not stored (RoBERTa).
    SkipPaddingRows,
    /// gpt-oss: the interleaved `gate_up_proj` of all experts is split into gate and up; float
    /// experts are transposed to [experts, out, in].
    SplitExperts,
    /// A fused gate and up projection, the gate's rows first, is split in two: that of all experts,
    /// or of Granite's shared MLP.
    SplitGateUp,
    /// The projection of an indexer's queries and key is split into `q_proj` and `k_proj` (Qwen4).
    SplitIndexer,
    /// The parts `shard_N` of a table are concatenated (Qwen4's n-gram embeddings).
    JoinParts,
    /// No change. Overrides a transform whose name pattern is more general.
    Identity,
    /// A depthwise convolution [channels, 1, kernel] becomes [channels, kernel].
    SqueezeConvolution,
    /// A decay weight `A_log` becomes the rate -exp(A_log).
    DecayRate {
        /// The vector becomes a column [heads, 1].
        column: bool,
    },
    /// A vector [heads] becomes a column [heads, 1].
    Column,
    /// A norm [width] becomes [groups, width / groups].
    NormGroups {
        /// The config key of the number of groups.
        groups: &'static str,
    },
    /// Value heads of a gated delta rule are permuted from `key * ratio + j` to `j * key_heads +
    /// key`.
    TileHeads(HeadLocation),
    /// Qwen3-Next: rows of q, k, v and z by key head become all q, all k, all v, and a tensor of z.
    SplitKeyHeads,
    /// Falcon-H1: the factors of activations are multiplied into the weights.
    FoldFactors,
}

/// Where a tensor has the value heads of a gated delta rule: which of its elements are permuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLocation {
    /// Its rows are value heads.
    Rows,
    /// Its rows are queries, keys and then value heads. A convolution is squeezed as well.
    RowsAfterKeys,
    /// Its columns are value heads.
    Columns,
    /// One decay weight per value head, which becomes a rate as in [`Transform::DecayRate`].
    DecayRates,
}

/// The tensors that a [`Transform`] applies to.
#[derive(Clone, Copy, Debug)]
pub struct StoredAs {
    /// A part of their Hugging Face names.
    pub tensors: &'static str,
    /// The change.
    pub transform: Transform,
}

/// Rotary pairs of the llama family: GGUF's readers rotate neighbors.
pub(crate) const INTERLEAVED: &[StoredAs] = &[
    StoredAs {
        tensors: "self_attn.q_proj.",
        transform: Transform::InterleavePairs { heads: "num_attention_heads" },
    },
    StoredAs {
        tensors: "self_attn.k_proj.",
        transform: Transform::InterleavePairs { heads: "num_key_value_heads" },
    },
];

/// MLA's projections per head.
pub(crate) const SPLIT_LATENT: &[StoredAs] =
    &[StoredAs { tensors: "self_attn.kv_b_proj.weight", transform: Transform::SplitLatent }];

impl Transform {
    pub(crate) fn mark(self, layout: &mut Layout, file: &dyn Metadata) {
        match self {
            Self::InterleavePairs { .. } => layout.interleaved_qk = true,
            Self::PlusOne => layout.norm_plus_one = true,
            // Older files do not split `kv_b_proj`. Not every layer of a hybrid model has MLA.
            Self::SplitLatent => {
                layout.split_kv_b = ConfigReader::new(file).any_block_has("attn_k_b.weight");
            }
            Self::SplitExperts => layout.split_gate_up = true,
            Self::SplitGateUp => layout.split_feed_forward = true,
            Self::SqueezeConvolution
            | Self::DecayRate { .. }
            | Self::Column
            | Self::NormGroups { .. }
            | Self::SplitKeyHeads => layout.ssm_tensors = true,
            Self::TileHeads(_) => (layout.ssm_tensors, layout.tiled_value_heads) = (true, true),
            Self::FoldFactors => layout.folded_factors = true,
            Self::Identity => {}
            // Tensor names tell whether these were applied.
            Self::SplitIndexer | Self::JoinParts => {}
            // The shape tells whether rows were skipped.
            Self::SkipPaddingRows => {}
        }
    }
}
