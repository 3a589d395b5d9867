use serde::{Deserialize, Serialize};

/// A place in [`Program::ropes`](crate::Program::ropes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RopeId(pub u32);

/// Angles of a rotary embedding: pair `i` at position `p` turns by `p * inv_freq[i]`, the product taken in f32; cosine and
/// sine are multiplied by `amplitude`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Radians per position of each pair.
    pub inv_freq: Vec<f32>,
    /// Factor of cosine and sine.
    pub amplitude: f32,
    /// Other frequencies for long sequences.
    pub long: Option<LongRope>,
}

/// Frequencies that hold at *every* position of a sequence that may grow beyond `after` tokens (prompt plus limit). K of one
/// kind is of no use to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// Longest sequence for which the other frequencies hold.
    pub after: u32,
    /// Radians per position of each pair.
    pub inv_freq: Vec<f32>,
}

impl Rope {
    /// Places that turn.
    pub fn dims(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// The frequencies for a sequence that may grow to `final_len` tokens.
    pub fn frequencies(&self, final_len: u32) -> &[f32] {
        match &self.long {
            Some(long) if final_len > long.after => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// Cosine and sine of a pair of this frequency at a position.
    pub fn turn(&self, inv_freq: f32, position: u32) -> (f32, f32) {
        let angle = position as f32 * inv_freq;
        (angle.cos() * self.amplitude, angle.sin() * self.amplitude)
    }
}
