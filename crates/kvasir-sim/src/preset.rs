//! [`Preset`]: what the cost model simulates: a machine, a model's shape, and the number of
//! tensor-parallel ranks.
//!
//! `Preset::parse` reads `--sim-preset MACHINE:SHAPE`.

use crate::figure::Figure;
use crate::link::{Link, Links};
use crate::machine::{Arithmetic, MACHINES, Machine, Recorded, WeightType, unknown};
use crate::shape::{Shape, Shard};
use std::fmt;

/// A machine, a model's shape, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// The machine's limits.
    pub machine: Machine,
    /// The model's shape.
    pub shape: Shape,
    /// Number of tensor-parallel ranks, each on a machine of its own.
    pub ranks: u32,
}

impl Preset {
    /// A model on one machine.
    pub fn new(machine: Machine, shape: Shape) -> Self {
        Self { machine, shape, ranks: 1 }
    }

    /// The preset with `ranks` ranks. Fails for 0 ranks, for more ranks than attention heads, and
    /// without figures of the machine's link between ranks.
    pub fn with_ranks(self, ranks: u32) -> Result<Self, RankError> {
        let (heads, shape) = (self.shape.heads, self.shape.name);
        if ranks == 0 || ranks > heads {
            return Err(RankError::Count { ranks, shape, heads });
        }
        if ranks > 1 && self.machine.links.ranks.is_none() {
            return Err(RankError::NoLink { machine: self.machine.name });
        }
        Ok(Self { ranks, ..self })
    }

    /// The part of the model that the busiest rank holds.
    pub(crate) fn shard(&self) -> Shard {
        Shard::of(&self.shape, self.ranks)
    }

    /// Bytes of K and V per token, over all ranks.
    pub fn kv_token_bytes(&self) -> f64 {
        self.shape.kv_values() * self.machine.kv_bytes
    }

    /// Parses `h200:qwen3-14b`, `h100:qwen3-14b:fp8`, a machine or a shape alone, `instant` or `fixed:5ms`.
    /// The error lists the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "instant" {
            return Ok(Self::fixed(0.0));
        }
        if let Some(time) = text.strip_prefix("fixed:") {
            let milliseconds = time.strip_suffix("ms").and_then(|n| n.parse::<f64>().ok());
            return milliseconds
                .filter(|ms| (0.0..=60_000.0).contains(ms))
                .map(|ms| Self::fixed(ms / 1e3))
                .ok_or_else(|| format!("`{time}` is not a time like 5ms"));
        }
        let (machine, shape) = match text.split_once(':') {
            Some(both) => both,
            None if Shape::named(text).is_some() => ("h200", text),
            None => (text, "qwen3-0.6b"),
        };
        let Some(found) = MACHINES.iter().find(|known| known.name == machine).copied() else {
            let known = MACHINES.iter().map(|known| known.name).chain(["instant", "fixed:5ms"]);
            return Err(unknown("machine", machine, known));
        };
        let (shape, weights) = Self::parse_model(shape)?;
        let machine = weights.map_or(Ok(found), |weights| found.with_weights(weights))?;
        Ok(Self::new(machine, shape))
    }

    /// Parses `SHAPE[:WEIGHTS]`, the model part of a preset. The error lists the known names.
    pub fn parse_model(text: &str) -> Result<(Shape, Option<WeightType>), String> {
        let (name, weights) = match text.split_once(':') {
            Some((name, weights)) => (name, Some(weights)),
            None => (text, None),
        };
        let shapes = crate::shape::SHAPES.iter().map(|known| known.name);
        let shape = Shape::named(name).ok_or_else(|| unknown("shape", name, shapes))?;
        Ok((shape, weights.map(WeightType::parse).transpose()?))
    }

    /// A device on which every step takes this long.
    fn fixed(seconds: f64) -> Self {
        let shape = crate::shape::SHAPES[0];
        let instant = Link::given(f64::INFINITY, 0.0);
        let machine = Machine {
            name: "fixed",
            bandwidth: Figure::given(f64::INFINITY),
            arithmetic: Arithmetic::new(Figure::given(f64::INFINITY)),
            memory: Figure::given(64e9),
            weights: WeightType::Bf16,
            is_cpu: false,
            kv_bytes: 2.0,
            launch: Figure::given(seconds / f64::from(shape.layers)),
            recorded: Some(Recorded { start: Figure::given(seconds), kernel: Figure::given(0.0) }),
            kernels_per_layer: Figure::given(1.0),
            links: Links { ranks: Some(instant), replicas: Some(instant) },
        };
        Self::new(machine, shape)
    }

    /// Memory of one machine that the weights leave, in bytes.
    pub fn free_bytes(&self) -> u64 {
        let Machine { memory, weights: stored, .. } = self.machine;
        let weights = self.shard().weights() + self.shape.table_weights();
        (memory.value - weights * stored.bytes()).max(0.0) as u64
    }

    /// Bytes of a KV slot on a machine, rounded up.
    pub fn slot_bytes(&self) -> u64 {
        (self.shard().kv_values * self.machine.kv_bytes).ceil() as u64
    }
}

/// Why a number of tensor-parallel ranks cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankError {
    /// No ranks, or more ranks than attention heads.
    Count {
        /// The number of ranks.
        ranks: u32,
        /// Name of the model's shape.
        shape: &'static str,
        /// Attention heads of the shape.
        heads: u32,
    },
    /// The machine has no figures of a link between ranks.
    NoLink {
        /// Name of the machine.
        machine: &'static str,
    },
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { ranks, shape, heads } => {
                write!(f, "`{shape}` has {heads} attention heads: use 1 to {heads} ranks, not {ranks}")
            }
            Self::NoLink { machine } => {
                write!(f, "the machine `{machine}` has no figures of a link between ranks")
            }
        }
    }
}

impl std::error::Error for RankError {}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.machine.name, self.shape.name, self.machine.weights.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KV slots that fit in the memory left by the weights.
    fn slots(preset: &Preset) -> u64 {
        preset.free_bytes() / preset.slot_bytes()
    }

    #[test]
    fn shapes_have_the_size_in_their_names() {
        for (name, billions) in
            [("qwen3-0.6b", 0.6), ("qwen3-14b", 14.8), ("llama-3-8b", 8.0), ("llama-3.2-1b", 1.2)]
        {
            let shape = Shape::named(name).unwrap();
            let size = (shape.layer_weights() + shape.head_weights() + shape.table_weights()) / 1e9;
            assert!((size / billions - 1.0).abs() < 0.05, "{name}: {size}");
        }
    }

    #[test]
    fn weights_of_another_type_have_another_peak() {
        let h100 = Preset::parse("h100").unwrap().machine;
        let fp8 = h100.with_weights(WeightType::Fp8).unwrap();
        assert_eq!((h100.operations().value, fp8.operations().value), (989.5e12, 1979e12));
        assert_eq!(Preset::parse("h100:qwen3-0.6b:fp8").unwrap().machine, fp8);
        let error = Preset::parse("m1-max:qwen3-0.6b:fp8").unwrap_err();
        assert!(error.contains("it has bf16"), "{error}");
        assert!(Preset::parse("h100:qwen3-0.6b:int3").unwrap_err().contains("bf16, fp8, q8_0"));
    }

    #[test]
    fn fewer_bytes_per_weight_leave_more_slots() {
        let slots = |text: &str| slots(&Preset::parse(text).unwrap());
        assert!(slots("h100:qwen3-32b:fp8") > slots("h100:qwen3-32b:q8_0"));
        assert!(slots("h100:qwen3-32b:q8_0") > slots("h100:qwen3-32b"));
    }

    #[test]
    fn weights_leave_the_rest_of_the_memory() {
        let preset = Preset::parse("h200:qwen3-14b").unwrap();
        // 40 layers, 8 KV heads of 128, K and V, two bytes each; 14.8 billion weights of two bytes,
        // embedding table included.
        assert_eq!(preset.slot_bytes(), 40 * 8 * 128 * 2 * 2);
        let free = preset.free_bytes() as f64;
        assert!((free / (149.5e9 - 29.5e9) - 1.0).abs() < 0.01, "{free}");
        let mut small = preset;
        small.machine.memory = Figure::given(20e9);
        assert_eq!(small.free_bytes(), 0, "the weights fill the memory");
    }

    #[test]
    fn ranks_hold_shards_of_the_model_and_need_a_link() {
        let one = Preset::parse("h200:qwen3-14b").unwrap();
        assert_eq!(one.with_ranks(1), Ok(one));
        let four = one.with_ranks(4).unwrap();
        // Weights, K and V are divided; the embedding table is not.
        assert!(slots(&four) > 4 * slots(&one), "{}", slots(&four));
        // With more ranks than its 8 KV heads, these are replicated.
        let slots = [8, 16].map(|ranks| slots(&one.with_ranks(ranks).unwrap()));
        assert!(slots[1] < slots[0] * 11 / 10, "{slots:?}");
        let too_many = RankError::Count { ranks: 41, shape: "qwen3-14b", heads: 40 };
        assert_eq!(one.with_ranks(41), Err(too_many));
        let without_link = Preset::parse("cpu2-amx").unwrap();
        assert_eq!(without_link.with_ranks(2), Err(RankError::NoLink { machine: "cpu2-amx" }));
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        assert!(Preset::parse("h200:qwen3-14b").is_ok());
        assert!(Preset::parse("abacus").unwrap_err().contains("cpu2-amx, h200, a100"));
        assert_eq!(Preset::parse("qwen3-14b"), Preset::parse("h200:qwen3-14b"));
        assert!(Preset::parse("instant").is_ok() && Preset::parse("fixed:2.5ms").is_ok());
        assert!(Preset::parse("fixed:2").is_err() && Preset::parse("fixed:-1ms").is_err());
        assert!(Preset::parse("h200:gpt").unwrap_err().contains("qwen3-0.6b"));
    }
}
