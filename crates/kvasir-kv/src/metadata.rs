//! KV cache shape per layer: KV heads (GQA), head dims, MLA and indexer dims, sliding window.
//!
//! It is read from and written to the `kv_cache.*` keys of a model file. A file without them is
//! described by the model's program. Metadata that contradict the program are refused, as are
//! unknown versions and unknown keys. Pool capacity and storage type are run-time policy and never
//! stored.

use std::{collections::BTreeMap, fmt};

/// Schema version of the `kv_cache.*` keys that is read and written.
pub const SCHEMA_VERSION: i64 = 1;

const VERSION: &str = "kv_cache.schema_version";
const LAYERS: &str = "kv_cache.n_layers";
const HEADS: &str = "kv_cache.n_kv_heads";
const HEAD_DIM: &str = "kv_cache.head_dim";
const VALUE_DIM: &str = "kv_cache.value_dim";
const INDEX_DIM: &str = "kv_cache.index_dim";
const WINDOW: &str = "kv_cache.window";
const KEYS: [&str; 7] = [VERSION, LAYERS, HEADS, HEAD_DIM, VALUE_DIM, INDEX_DIM, WINDOW];

const MAX_LAYERS: i64 = 1 << 16;
const MAX_VALUE: i64 = 1 << 24;

/// One metadata value of a model file: a number, or one number per layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The same value for all layers.
    One(i64),
    /// One per layer.
    PerLayer(Vec<i64>),
}

/// KV cache shape of one layer, per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerForm {
    /// KV heads (fewer than query heads in GQA).
    pub n_kv_heads: u32,
    /// Elements of a key head.
    pub head_dim: u32,
    /// Elements of a value head; 0 if the value is part of the key and not stored again (MLA).
    pub value_dim: u32,
    /// Elements that a sparse-attention indexer stores besides.
    pub index_dim: u32,
    /// Sliding window, in positions; `None` for full attention.
    pub window: Option<u32>,
}

/// KV cache shape fixed by a model's architecture. Capacity and storage type are run-time policy
/// and never in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFacts {
    /// Layers in order.
    pub layers: Vec<LayerForm>,
}

/// Why metadata were refused; names the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FactError {
    /// The schema version is not supported.
    UnknownVersion(i64),
    /// A `kv_cache.*` key that this version does not define.
    UnknownKey(String),
    /// A key is missing.
    Missing(&'static str),
    /// A value is not positive (or negative, where 0 is allowed), or implausibly large.
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: i64,
    },
    /// A list whose length is not the number of layers, or a list where one number is required.
    WrongForm(&'static str),
    /// Metadata contradict the model's program.
    Disagree {
        /// The key.
        key: &'static str,
        /// Value in the file's metadata.
        metadata: i64,
        /// Value derived from the program.
        derived: i64,
    },
}

impl fmt::Display for FactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVersion(version) => {
                write!(f, "{VERSION} is {version}, only {SCHEMA_VERSION} is understood")
            }
            Self::UnknownKey(key) => write!(f, "{key} is no key of schema version {SCHEMA_VERSION}"),
            Self::Missing(key) => write!(f, "{key} is missing"),
            Self::OutOfRange { key, value } => write!(f, "{key} is {value}, which is out of range"),
            Self::WrongForm(key) => write!(f, "{key} must be one number, or a list with one per layer"),
            Self::Disagree { key, metadata, derived } => {
                write!(f, "{key} is {metadata} in the metadata, but {derived} by the model's config")
            }
        }
    }
}

impl std::error::Error for FactError {}

impl KvFacts {
    /// The shape of a model whose layers are all alike.
    pub fn uniform(n_layers: u32, n_kv_heads: u32, head_dim: u32) -> Self {
        let form = LayerForm { n_kv_heads, head_dim, value_dim: head_dim, index_dim: 0, window: None };
        Self { layers: vec![form; n_layers as usize] }
    }

    /// Reads the shape from a model file's metadata. `None` if there is no `kv_cache.*` key.
    pub fn read(metadata: &BTreeMap<String, Fact>) -> Result<Option<Self>, FactError> {
        let mut ours = metadata.keys().filter(|key| key.starts_with("kv_cache."));
        let Some(first) = ours.next() else { return Ok(None) };
        match one(metadata, VERSION)? {
            SCHEMA_VERSION => {}
            version => return Err(FactError::UnknownVersion(version)),
        }
        if let Some(key) = std::iter::once(first).chain(ours).find(|key| !KEYS.contains(&key.as_str())) {
            return Err(FactError::UnknownKey(key.clone()));
        }
        let n = in_range(LAYERS, one(metadata, LAYERS)?, 1, MAX_LAYERS)? as usize;
        let heads = per_layer(metadata, HEADS, n, 1)?.ok_or(FactError::Missing(HEADS))?;
        let head_dims = per_layer(metadata, HEAD_DIM, n, 1)?.ok_or(FactError::Missing(HEAD_DIM))?;
        let value_dims = per_layer(metadata, VALUE_DIM, n, 0)?;
        let index_dims = per_layer(metadata, INDEX_DIM, n, 0)?;
        let windows = per_layer(metadata, WINDOW, n, 0)?;
        let optional =
            |values: &Option<Vec<u32>>, i: usize, or| values.as_ref().map_or(or, |values| values[i]);
        let form = |(i, (&n_kv_heads, &head_dim))| LayerForm {
            n_kv_heads,
            head_dim,
            value_dim: optional(&value_dims, i, head_dim),
            index_dim: optional(&index_dims, i, 0),
            window: Some(optional(&windows, i, 0)).filter(|&window| window > 0),
        };
        Ok(Some(Self { layers: heads.iter().zip(&head_dims).enumerate().map(form).collect() }))
    }

    /// Refuses metadata that are invalid or contradict the layers of the model's program. Absent
    /// metadata, and absent optional keys, are accepted.
    pub fn check(metadata: &BTreeMap<String, Fact>, program: &Self) -> Result<(), FactError> {
        let Some(read) = Self::read(metadata)? else { return Ok(()) };
        let optional = [VALUE_DIM, INDEX_DIM, WINDOW].into_iter().filter(|key| metadata.contains_key(*key));
        let keys: Vec<_> = [HEADS, HEAD_DIM].into_iter().chain(optional).collect();
        read.agree(program, &keys)
    }

    /// Writes the shape as metadata: one number where all layers agree, else one per layer.
    pub fn write(&self, metadata: &mut BTreeMap<String, Fact>) {
        metadata.insert(VERSION.into(), Fact::One(SCHEMA_VERSION));
        metadata.insert(LAYERS.into(), Fact::One(self.layers.len() as i64));
        for key in [HEADS, HEAD_DIM, VALUE_DIM, INDEX_DIM, WINDOW] {
            let values: Vec<i64> = self.layers.iter().map(|layer| layer.value(key)).collect();
            let default = |layer: &LayerForm| if key == VALUE_DIM { layer.value(HEAD_DIM) } else { 0 };
            let optional = key != HEADS && key != HEAD_DIM;
            if optional && self.layers.iter().all(|layer| layer.value(key) == default(layer)) {
                continue;
            }
            let fact = match values.first() {
                Some(&first) if values.iter().all(|&value| value == first) => Fact::One(first),
                _ => Fact::PerLayer(values),
            };
            metadata.insert(key.into(), fact);
        }
    }

    fn agree(&self, derived: &Self, keys: &[&'static str]) -> Result<(), FactError> {
        let (ours, theirs) = (self.layers.len() as i64, derived.layers.len() as i64);
        if ours != theirs {
            return Err(FactError::Disagree { key: LAYERS, metadata: ours, derived: theirs });
        }
        for (ours, theirs) in self.layers.iter().zip(&derived.layers) {
            for &key in keys {
                let (metadata, derived) = (ours.value(key), theirs.value(key));
                if metadata != derived {
                    return Err(FactError::Disagree { key, metadata, derived });
                }
            }
        }
        Ok(())
    }
}

impl LayerForm {
    /// The value under one of the per-layer keys.
    fn value(&self, key: &str) -> i64 {
        i64::from(match key {
            HEADS => self.n_kv_heads,
            HEAD_DIM => self.head_dim,
            VALUE_DIM => self.value_dim,
            INDEX_DIM => self.index_dim,
            _ => self.window.unwrap_or(0),
        })
    }
}

fn in_range(key: &'static str, value: i64, lowest: i64, highest: i64) -> Result<u32, FactError> {
    match u32::try_from(value) {
        Ok(small) if (lowest..=highest).contains(&value) => Ok(small),
        _ => Err(FactError::OutOfRange { key, value }),
    }
}

fn one(metadata: &BTreeMap<String, Fact>, key: &'static str) -> Result<i64, FactError> {
    match metadata.get(key) {
        Some(Fact::One(value)) => Ok(*value),
        Some(Fact::PerLayer(_)) => Err(FactError::WrongForm(key)),
        None => Err(FactError::Missing(key)),
    }
}

fn per_layer(
    metadata: &BTreeMap<String, Fact>,
    key: &'static str,
    n: usize,
    lowest: i64,
) -> Result<Option<Vec<u32>>, FactError> {
    let value = |&value: &i64| in_range(key, value, lowest, MAX_VALUE);
    match metadata.get(key) {
        None => Ok(None),
        Some(Fact::One(one)) => Ok(Some(vec![value(one)?; n])),
        Some(Fact::PerLayer(values)) if values.len() == n => {
            values.iter().map(value).collect::<Result<_, _>>().map(Some)
        }
        Some(Fact::PerLayer(_)) => Err(FactError::WrongForm(key)),
    }
}

#[cfg(test)]
mod tests {
    use crate::metadata::*;

    fn written(facts: &KvFacts) -> BTreeMap<String, Fact> {
        let mut metadata = BTreeMap::from([("general.name".to_owned(), Fact::One(3))]);
        facts.write(&mut metadata);
        metadata
    }

    #[test]
    fn metadata_round_trip() {
        let uniform = KvFacts::uniform(4, 2, 16);
        let metadata = written(&uniform);
        assert_eq!(metadata.len(), 5, "a uniform model takes the four keys and no lists: {metadata:?}");
        assert_eq!(KvFacts::read(&metadata), Ok(Some(uniform.clone())));
        let mut mixed = uniform;
        mixed.layers[1].window = Some(128);
        mixed.layers[2] =
            LayerForm { n_kv_heads: 1, head_dim: 576, value_dim: 0, index_dim: 64, window: None };
        let metadata = written(&mixed);
        assert_eq!(metadata["kv_cache.window"], Fact::PerLayer(vec![0, 128, 0, 0]));
        assert_eq!(KvFacts::read(&metadata), Ok(Some(mixed.clone())));
        assert_eq!(KvFacts::check(&metadata, &mixed), Ok(()));
        mixed.layers[1].window = None;
        let differs = FactError::Disagree { key: WINDOW, metadata: 128, derived: 0 };
        assert_eq!(KvFacts::check(&metadata, &mixed), Err(differs));
        let mut silent = metadata;
        silent.remove(WINDOW);
        assert_eq!(
            KvFacts::check(&silent, &mixed),
            Ok(()),
            "what a file does not say is left to the program"
        );
        assert_eq!(KvFacts::check(&BTreeMap::new(), &mixed), Ok(()));
    }

    #[test]
    fn invalid_metadata_is_refused() {
        let program = KvFacts::uniform(4, 2, 16);
        let good = written(&program);
        let with = |key: &str, fact: Option<Fact>| {
            let mut metadata = good.clone();
            match fact {
                Some(fact) => drop(metadata.insert(key.into(), fact)),
                None => drop(metadata.remove(key)),
            }
            KvFacts::check(&metadata, &program)
        };
        assert_eq!(with("other", None), Ok(()));
        assert_eq!(with(VERSION, Some(Fact::One(2))), Err(FactError::UnknownVersion(2)));
        for key in [VERSION, LAYERS, HEADS, HEAD_DIM] {
            assert_eq!(with(key, None), Err(FactError::Missing(key)));
        }
        for value in [0, -2, i64::MAX, 1 << 33] {
            for key in [LAYERS, HEADS, HEAD_DIM] {
                assert_eq!(with(key, Some(Fact::One(value))), Err(FactError::OutOfRange { key, value }));
            }
        }
        assert_eq!(with(WINDOW, Some(Fact::One(-1))), Err(FactError::OutOfRange { key: WINDOW, value: -1 }));
        assert_eq!(with(HEADS, Some(Fact::PerLayer(vec![2; 3]))), Err(FactError::WrongForm(HEADS)));
        assert_eq!(with(HEADS, Some(Fact::PerLayer(vec![2; 4]))), Ok(()));
        assert_eq!(with(LAYERS, Some(Fact::PerLayer(vec![4]))), Err(FactError::WrongForm(LAYERS)));
        let disagree = FactError::Disagree { key: LAYERS, metadata: 5, derived: 4 };
        assert_eq!(with(LAYERS, Some(Fact::One(5))), Err(disagree));
        let unknown = "kv_cache.n_heads";
        assert_eq!(with(unknown, Some(Fact::One(1))), Err(FactError::UnknownKey(unknown.into())));
    }
}
