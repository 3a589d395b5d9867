//! Rotary position embedding (RoPE): frequencies per pair, amplitude, and LongRoPE's second set of
//! frequencies.
//!
//! The config's variants (linear, Llama 3, YaRN, LongRoPE) are resolved in `rope_config.rs`. A
//! program only holds frequencies.

use serde::{Deserialize, Serialize};

/// An index into [`Program::ropes`](crate::ir::program::Program::ropes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RopeId(pub u32);

/// A rotary embedding: `angle = position * inv_freq[i]` for pair `i`, in f32. Cosine and sine are
/// multiplied by `amplitude`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Radians per position, for each pair.
    pub inv_freq: Vec<f32>,
    /// Factor of cosine and sine (YaRN's attention factor).
    pub amplitude: f32,
    /// Other frequencies for long sequences (LongRoPE).
    pub long: Option<LongRope>,
    /// Growth of the amplitude with the position; on queries only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
}

/// Attention temperature (Ministral 3): at position `p` the amplitude is multiplied by
/// `1 + beta * ln(1 + floor(p / period))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Strength.
    pub beta: f32,
    /// Positions between two steps of the growth; at least 1.
    pub period: u32,
}

impl Temperature {
    fn factor(self, position: u32) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.period.max(1)) as f32).ln()
    }
}

/// LongRoPE's frequencies for *every* position of a sequence that may grow beyond `after` tokens
/// (prompt plus output limit).
///
/// K rotated with one set cannot be shared with sequences that use the other; see
/// [`Program::prefix_salt`](crate::ir::program::Program::prefix_salt).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// Maximum sequence length, in tokens, for which the short frequencies apply.
    pub after: u32,
    /// Radians per position, for each pair.
    pub inv_freq: Vec<f32>,
}

impl Rope {
    /// Number of rotated elements of a head.
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

    /// Cosine and sine at a position, for a pair of this frequency.
    pub fn turn(&self, inv_freq: f32, position: u32) -> (f32, f32) {
        let angle = position as f32 * inv_freq;
        let amplitude = match self.temperature {
            Some(temperature) => self.amplitude * temperature.factor(position),
            None => self.amplitude,
        };
        (angle.cos() * amplitude, angle.sin() * amplitude)
    }
}
