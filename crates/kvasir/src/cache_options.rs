use kvasir_cpu::KvType;
use kvasir_kv::CacheKind;

/// Where K and V are kept: which bookkeeping, in which form, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The bookkeeping. `contiguous` and `tree` hold one sequence; the others as many as fit, and share what they have in
    /// common.
    pub kind: CacheKind,
    /// How K and V are stored; what suits the model unless given.
    pub kv: Option<KvType>,
    /// Tokens that fit, those of all sequences together; what memory holds, and at most 32768, unless given.
    pub capacity: Option<u32>,
    /// Slots that are handed out together, 1 to 256, for `paged` and `radix`.
    pub block_size: u32,
    /// Sequences that run at once, for kinds that hold several.
    pub sequences: u32,
    /// For `contiguous`: layers with a window keep so much and no more, a *ring*, and a step takes at most so many tokens of a prompt.
    /// A branch that is rewound further than a ring reaches is computed again.
    pub rings: Option<u32>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { kind: CacheKind::Radix, kv: None, capacity: None, block_size: 16, sequences: 64, rings: None }
    }
}

impl CacheOptions {
    /// This kind, with defaults.
    pub fn new(kind: CacheKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Stored like this.
    pub fn kv(self, kv: KvType) -> Self {
        Self { kv: Some(kv), ..self }
    }

    /// With rings, for steps of at most so many tokens of a prompt.
    pub fn rings(self, longest: u32) -> Self {
        Self { rings: Some(longest), ..self }
    }

    /// With room for so many tokens.
    pub fn capacity(self, tokens: u32) -> Self {
        Self { capacity: Some(tokens), ..self }
    }
}
