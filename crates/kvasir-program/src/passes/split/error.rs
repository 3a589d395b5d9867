//! [`SplitError`]: the constraint that prevents dividing a program among tensor-parallel ranks or
//! expert-parallel replicas.

use std::fmt;

/// The constraint that prevents dividing a program among ranks or replicas, with its counts or
/// tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// The rank or replica is not below their number.
    Rank {
        /// The rank or replica, counted from 0.
        rank: usize,
        /// Number of ranks or replicas.
        ranks: usize,
    },
    /// The program is already the shard of one rank or replica.
    AlreadySplit {
        /// Number of ranks or replicas that it was divided among.
        ranks: usize,
    },
    /// The program is an encoder, which does not support tensor parallelism.
    Encoder {
        /// The model's architecture.
        architecture: String,
    },
    /// An attention layer has too few heads, or no partition keeps its GQA groups uniform.
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
    /// A mixture has fewer experts than there are ranks or replicas.
    Experts {
        /// The model's architecture.
        architecture: String,
        /// Number of experts.
        experts: usize,
        /// Number of ranks or replicas.
        ranks: usize,
    },
    /// The program has no MoE layer, so it has no experts to divide.
    NoExperts {
        /// The model's architecture.
        architecture: String,
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
    /// A tensor has too few quantization blocks, which cannot be divided.
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
            Self::Rank { rank, ranks } => {
                write!(f, "rank or replica {rank} does not exist among {ranks}; they count from 0")
            }
            Self::AlreadySplit { ranks } => {
                write!(f, "the program is already the shard of one of {ranks} ranks or replicas")
            }
            Self::Encoder { architecture } => {
                write!(f, "{architecture}: encoders do not support tensor parallelism; use one rank")
            }
            Self::Heads { architecture, layer, heads, kv_heads, ranks } => write!(
                f,
                "{architecture}: {heads} attention heads ({kv_heads} KV heads) of layer {layer} cannot be \
                 divided among {ranks} ranks; use fewer ranks"
            ),
            Self::Experts { architecture, experts, ranks } => {
                write!(
                    f,
                    "{architecture}: {experts} experts cannot be divided among {ranks} ranks or replicas; \
                     use at most {experts}"
                )
            }
            Self::NoExperts { architecture } => {
                write!(f, "{architecture}: the model has no experts to divide, because it has no MoE layer")
            }
            Self::Columns { tensor, columns, ranks } => {
                write!(
                    f,
                    "tensor `{tensor}`: {columns} columns cannot be divided among {ranks} ranks; use fewer ranks"
                )
            }
            Self::Blocks { tensor, columns, block, ranks } => write!(
                f,
                "tensor `{tensor}`: {columns} columns in quantization blocks of {block} cannot be divided \
                 among {ranks} ranks; quantize it with smaller blocks, or use fewer ranks"
            ),
        }
    }
}

impl std::error::Error for SplitError {}
