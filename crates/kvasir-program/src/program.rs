use crate::{Collective, Holds, LayerFacts, NumberType, Op, Rope, Value, ValueId, Weight, WeightId};
use serde::{Deserialize, Serialize};

/// What a program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The model itself.
    Target,
    /// One of its prediction layers, which guesses the token after the next from the target's hidden states.
    Prediction {
        /// Which, from 0.
        index: u32,
    },
}

/// A value that callers may ask for beside the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tap {
    /// The residual stream that enters a layer.
    IntoLayer(u32),
    /// The residual stream that leaves the last layer.
    OutOfLastLayer,
    /// The same after the final norm.
    FinalNorm,
}

/// The frozen op list of one model, with all it says about weights and caches. Plain data, made once.
///
/// It names no backend, no cache and no batch: the same program decodes one stream, a ragged batch or a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// [`Program::SCHEMA`] of the crate that made it.
    pub schema_version: u32,
    /// The architecture's name, as configs spell it.
    pub architecture: String,
    /// What it computes.
    pub purpose: Purpose,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Longest sequence that the model is made for.
    pub max_positions: usize,
    /// Number type of the model's activations by its own contract.
    pub dtype: NumberType,
    /// In the order in which they are run.
    pub ops: Vec<Op>,
    /// What the ops yield.
    pub values: Vec<Value>,
    /// What it needs of the checkpoint.
    pub weights: Vec<Weight>,
    /// Rotary angles.
    pub ropes: Vec<Rope>,
    /// What each layer keeps.
    pub layers: Vec<LayerFacts>,
    /// Values worth looking at.
    pub taps: Vec<(Tap, ValueId)>,
}

impl Program {
    /// Version of the op list; a serialised program of another version is not understood.
    pub const SCHEMA: u32 = 1;

    /// Windows of the layers that may keep a ring in place of a row per position.
    pub fn windows(&self) -> Vec<u32> {
        let layers = self.layers.iter().filter(|layer| layer.index_dim == 0);
        layers.filter_map(|layer| layer.window).collect()
    }

    /// The weight of this id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The weight whose bytes stand for this one.
    pub fn resolve(&self, id: WeightId) -> WeightId {
        self.weight(id).tie.unwrap_or(id)
    }

    /// The value of this id.
    pub fn value(&self, id: ValueId) -> Value {
        self.values[id.0 as usize]
    }

    /// Experts that a token gets of a mixture; none of other ops.
    pub fn chosen(&self, op: &Op) -> usize {
        let Op::Mixture { routes, .. } = op else { return 0 };
        match self.value(*routes).holds {
            Holds::Routes(chosen) => chosen,
            _ => 0,
        }
    }

    /// The logits: a head's, or all ranks' together.
    pub fn logits(&self) -> Option<ValueId> {
        let head = self.ops.iter().rposition(|op| matches!(op, Op::Head { .. }))?;
        let own = self.ops[head].out();
        let joined = self.ops[head..].iter().find(|op| matches!(op, Op::Collect { x, .. } if *x == own));
        Some(joined.map_or(own, Op::out))
    }

    /// Refuses to run among so many ranks if it is a part for another number of them.
    pub fn check_ranks(&self, count: usize) -> Result<(), String> {
        match self.ranks() {
            Some(parts) if parts != count => {
                Err(format!("a program for {parts} ranks cannot run among {count}"))
            }
            _ => Ok(()),
        }
    }

    /// How many ranks it is a part for, where an op joins their rows.
    pub fn ranks(&self) -> Option<usize> {
        self.ops.iter().find_map(|op| match op {
            Op::Collect { x, how: Collective::Join, out } => {
                Some(self.value(*out).width() / self.value(*x).width().max(1))
            }
            _ => None,
        })
    }

    /// What the logits are made of: the hidden states of the sampled tokens, after the final norm.
    pub fn head_input(&self) -> Option<ValueId> {
        self.ops.iter().rev().find(|op| matches!(op, Op::Head { .. }))?.inputs().next()
    }

    /// The value behind a tap.
    pub fn tap(&self, tap: Tap) -> Option<ValueId> {
        self.taps.iter().find(|(t, _)| *t == tap).map(|(_, value)| *value)
    }

    /// Whether rows are wanted that the target computed.
    pub fn takes_hidden(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Hidden { .. }))
    }

    /// Numbers that one token keeps in all layers together.
    pub fn kv_width(&self) -> usize {
        self.layers.iter().map(LayerFacts::width).sum()
    }

    /// Keeps apart in prefix sharing what must not be shared: sequences whose rows were turned by other angles. Equal
    /// salts may share.
    pub fn prefix_salt(&self, final_len: u32) -> u64 {
        let long = |rope: &Rope| rope.long.as_ref().is_some_and(|long| final_len > long.after);
        u64::from(self.ropes.iter().any(long))
    }
}
