//! [`SplitError`]: why a program cannot be divided among ranks.

use std::fmt;

/// Why a program cannot be divided among ranks. Each names the counts or the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// There is no such rank.
    Rank {
        /// The rank, counted from 0.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The program is one rank's part already.
    AlreadySplit {
        /// Number of ranks that it was divided among.
        ranks: usize,
    },
    /// The attention heads of a layer cannot be divided among so many ranks.
    Heads {
        /// The model's architecture.
        architecture: String,
        /// Index of the attention layer.
        layer: u32,
        /// Query heads.
        heads: usize,
        /// KV heads.
        kv_heads: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A mixture has fewer experts than there are ranks.
    Experts {
        /// The model's architecture.
        architecture: String,
        /// Number of experts.
        experts: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A feed-forward block has fewer columns than there are ranks.
    Columns {
        /// The tensor whose columns would be divided.
        tensor: String,
        /// Its columns.
        columns: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The quantization blocks of a tensor leave too few places to divide it at.
    Blocks {
        /// The tensor whose columns would be divided.
        tensor: String,
        /// Its columns.
        columns: usize,
        /// Elements per block.
        block: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank { rank, ranks } => write!(f, "rank {rank} does not exist among {ranks} ranks"),
            Self::AlreadySplit { ranks } => {
                write!(f, "the program is a part already, of a model divided among {ranks} ranks")
            }
            Self::Heads { architecture, layer, heads, kv_heads, ranks } => write!(
                f,
                "{architecture}: {heads} attention heads ({kv_heads} KV heads) of layer {layer} cannot be \
                 divided among {ranks} ranks"
            ),
            Self::Experts { architecture, experts, ranks } => {
                write!(f, "{architecture}: {experts} experts cannot be divided among {ranks} ranks")
            }
            Self::Columns { tensor, columns, ranks } => {
                write!(f, "tensor `{tensor}`: {columns} columns cannot be divided among {ranks} ranks")
            }
            Self::Blocks { tensor, columns, block, ranks } => write!(
                f,
                "tensor `{tensor}`: {columns} columns in quantization blocks of {block} cannot be divided \
                 among {ranks} ranks; store it in a type of smaller blocks, or use fewer ranks"
            ),
        }
    }
}

impl std::error::Error for SplitError {}
