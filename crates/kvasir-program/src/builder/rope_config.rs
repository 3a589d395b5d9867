//! Reads RoPE settings from a config: default, dynamic, linear, proportional, Llama 3, YaRN and
//! LongRoPE scaling.
//!
//! Both spellings are understood: `rope_theta` with `rope_scaling` (older), and `rope_parameters`
//! (newer). Frequencies are computed in f32, as in training. Guarded by `tests/spelling.rs` and
//! `tests/published.rs`.

use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::rope::{LongRope, Rope, Temperature};
use std::f64::consts::TAU;

/// The config objects that may contain RoPE settings.
#[derive(Clone, Copy)]
pub(crate) struct RopeConfig<'a> {
    top: Config<'a>,
    /// `rope_scaling`, the older spelling. It takes precedence: users add it by hand to configs of
    /// the newer spelling.
    scaling: Option<Config<'a>>,
    /// `rope_parameters`, the newer spelling.
    parameters: Option<Config<'a>>,
    theta: f64,
    /// An alias for this model family: (name in the config, meaning).
    renamed: Option<(&'a str, &'a str)>,
}

impl<'a> RopeConfig<'a> {
    pub(crate) fn read(top: Config<'a>) -> Result<Self> {
        let (parameters, scaling) = (top.object("rope_parameters")?, top.object("rope_scaling")?);
        Self { top, scaling, parameters, theta: 0.0, renamed: None }.with_theta("rope_theta", 10_000.0)
    }

    /// Settings of one layer type, for models with a rope per type: `rope_parameters` then has an
    /// object per type.
    pub(crate) fn of_kind(top: Config<'a>, kind: &'a str, theta_key: &'a str, theta: f64) -> Result<Self> {
        let parameters = match top.object("rope_parameters")? {
            Some(all) => Some(all.object(kind)?.ok_or_else(|| all.bad(kind, "is missing"))?),
            None => None,
        };
        // In the older spelling only the layers that use `rope_theta` are scaled.
        let scaling = if theta_key == "rope_theta" { top.object("rope_scaling")? } else { None };
        Self { top, scaling, parameters, theta: 0.0, renamed: None }.with_theta(theta_key, theta)
    }

    fn with_theta(self, key: &str, default: f64) -> Result<Self> {
        match self.float("rope_theta")? {
            Some(theta) => self.with_checked_theta(key, theta),
            None => self.with_base(key, default),
        }
    }

    /// Reads the base from the config key `key`; keeps the scaling.
    pub(crate) fn with_base(self, key: &str, default: f64) -> Result<Self> {
        let theta = self.top.float_or(key, default)?;
        self.with_checked_theta(key, theta)
    }

    fn with_checked_theta(self, key: &str, theta: f64) -> Result<Self> {
        if theta <= 1.0 {
            return Err(self.top.bad(key, format!("is {theta}, not a base above 1")));
        }
        Ok(Self { theta, ..self })
    }

    /// For a model family in which the type `from` means `to`.
    pub(crate) fn with_kind(self, from: &'a str, to: &'a str) -> Self {
        Self { renamed: Some((from, to)), ..self }
    }

    /// The same base without scaling, for layers that the scaling does not apply to.
    pub(crate) fn unscaled(self) -> Self {
        Self { scaling: None, parameters: None, ..self }
    }

    /// The growth of query amplitudes with the position (`llama_4_scaling_beta`), if there is any.
    pub(crate) fn temperature(&self) -> Result<Option<Temperature>> {
        let Some(beta) = self.float("llama_4_scaling_beta")?.filter(|beta| *beta != 0.0) else {
            return Ok(None);
        };
        let period = self.original()?;
        if period < 1.0 || !(beta as f32).is_finite() {
            let why = format!("is {beta} over {period} positions, not a growth per at least 1");
            return Err(self.place().bad("llama_4_scaling_beta", why));
        }
        Ok(Some(Temperature { beta: beta as f32, period: period as u32 }))
    }

    fn places(&self) -> impl Iterator<Item = Config<'a>> {
        [self.scaling, self.parameters].into_iter().flatten()
    }

    /// The object that takes precedence, which errors name.
    fn place(&self) -> Config<'a> {
        self.places().next().unwrap_or(self.top)
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        for place in self.places() {
            if let Some(value) = place.opt_float(key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn required(&self, key: &str) -> Result<f64> {
        let place = self.place();
        let value = self.float(key)?.ok_or_else(|| place.bad(key, "is missing"))?;
        if value > 0.0 { Ok(value) } else { Err(place.bad(key, format!("is {value}, not above 0"))) }
    }

    fn floats(&self, key: &str) -> Result<Vec<f64>> {
        let place = self.places().find(|p| p.get(key).is_some());
        place.unwrap_or_else(|| self.place()).floats(key)
    }

    fn kind(&self) -> Result<&'a str> {
        for place in self.places() {
            for key in ["rope_type", "type"] {
                if let Some(kind) = place.text(key)? {
                    return Ok(self.renamed.filter(|(from, _)| *from == kind).map_or(kind, |(_, to)| to));
                }
            }
        }
        Ok("default")
    }

    /// Number of rotated elements of a head (`partial_rotary_factor`).
    pub(crate) fn dims(&self, head_dim: usize, default_share: f64) -> Result<usize> {
        // A proportional rope has pairs over the whole head; unrotated pairs have frequency 0.
        if self.kind()? == "proportional" {
            return Ok(head_dim);
        }
        self.rotated_dims(head_dim, default_share)
    }

    fn rotated_dims(&self, head_dim: usize, default_share: f64) -> Result<usize> {
        let share = match self.float("partial_rotary_factor")? {
            Some(share) => share,
            None => self.top.float_or("partial_rotary_factor", default_share)?,
        };
        let dims = rotated(head_dim, share);
        if share <= 0.0 || dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            let why = format!("is {share}: {dims} of {head_dim} places cannot turn");
            return Err(self.top.bad("partial_rotary_factor", why));
        }
        Ok(dims)
    }

    /// YaRN's factor on the softmax scale for MLA: magnitude(factor, `mscale_all_dim`)².
    pub(crate) fn score_factor(&self) -> Result<f64> {
        let all = self.float("mscale_all_dim")?.unwrap_or(0.0);
        if self.kind()? == "default" || all == 0.0 {
            return Ok(1.0);
        }
        Ok(magnitude(self.required("factor")?, all).powi(2))
    }

    /// The rotary embedding over `dims` elements.
    pub(crate) fn rope(&self, dims: usize) -> Result<Rope> {
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(self
                .top
                .bad("head_dim", format!("leaves {dims} places to turn, not an even number")));
        }
        // Powers in f32, as in training: at the end of a long context the rounding shifts the angle
        // visibly.
        let powers: Vec<f32> =
            (0..dims / 2).map(|i| self.theta.powf(f64::from((2 * i) as f32 / dims as f32)) as f32).collect();
        let inv: Vec<f32> = powers.iter().map(|power| 1.0 / power).collect();
        let plain = |inv_freq: Vec<f32>, amplitude: f64| Rope {
            inv_freq,
            amplitude: amplitude as f32,
            long: None,
            temperature: None,
        };
        match self.kind()? {
            // "dynamic" changes frequencies only beyond `max_position_embeddings`, which no
            // sequence exceeds.
            "default" | "dynamic" => Ok(plain(inv, 1.0)),
            "linear" => {
                let factor = self.required("factor")?;
                Ok(plain(inv.iter().map(|f| f / factor as f32).collect(), 1.0))
            }
            "proportional" => {
                let pairs = self.rotated_dims(dims, 1.0)? / 2;
                let factor = self.float("factor")?.filter(|factor| *factor > 0.0).unwrap_or(1.0);
                let rotated = inv.iter().take(pairs).map(|f| f / factor as f32);
                Ok(plain(rotated.chain(std::iter::repeat(0.0)).take(dims / 2).collect(), 1.0))
            }
            "llama3" => Ok(plain(self.llama3(&inv)?, 1.0)),
            "yarn" => {
                let (inv, amplitude) = self.yarn(&powers, dims)?;
                Ok(plain(inv, amplitude))
            }
            "longrope" | "su" => self.longrope(&powers),
            other => {
                let place = self.place();
                Err(place.bad("rope_type", format!("is {other:?}, which is not supported")))
            }
        }
    }

    /// The pre-training context length. The value beside the rope object takes precedence over the
    /// one inside.
    fn original(&self) -> Result<f64> {
        let key = "original_max_position_embeddings";
        let original = match self.top.opt_float(key)? {
            Some(original) => Some(original),
            None => self.float(key)?,
        };
        match original {
            Some(original) if original > 0.0 => Ok(original),
            Some(original) => Err(self.place().bad(key, format!("is {original}, not above 0"))),
            None => self.top.float("max_position_embeddings"),
        }
    }

    /// Llama 3 scaling: low frequencies are divided by `factor`, high ones kept, those between
    /// interpolated.
    fn llama3(&self, inv: &[f32]) -> Result<Vec<f32>> {
        let original = self.original()?;
        let (low, high) = (self.required("low_freq_factor")?, self.required("high_freq_factor")?);
        let factor = self.required("factor")?;
        let stretch = |f: &f32| {
            let f = f64::from(*f);
            let turns = original * f / TAU;
            let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            ((1.0 - keep) * f / factor + keep * f) as f32
        };
        Ok(inv.iter().map(stretch).collect())
    }

    /// YaRN (NTK by parts): a linear ramp over the pairs between scaled and original frequencies,
    /// and an amplitude.
    fn yarn(&self, powers: &[f32], dims: usize) -> Result<(Vec<f32>, f64)> {
        let original = self.original()?;
        // Without `factor`, the ratio of the two context lengths is used.
        let factor = match self.float("factor")? {
            Some(_) => self.required("factor")?,
            None => self.top.float("max_position_embeddings")? / original,
        };
        let pair_of = |turns: f64| dims as f64 * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
        let positive = |key, default| Ok(self.float(key)?.filter(|v| *v > 0.0).unwrap_or(default));
        let (mut low, mut high) =
            (pair_of(positive("beta_fast", 32.0)?), pair_of(positive("beta_slow", 1.0)?));
        if self.flag("truncate", true)? {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let stretched = powers.iter().enumerate().map(|(i, power)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
            1.0 / (factor as f32 * power) * ramp + 1.0 / power * (1.0 - ramp)
        });
        let scales = (self.float("mscale")?.unwrap_or(0.0), self.float("mscale_all_dim")?.unwrap_or(0.0));
        let amplitude = match (self.float("attention_factor")?, scales) {
            (Some(given), _) => given,
            (None, (one, all)) if one != 0.0 && all != 0.0 => magnitude(factor, one) / magnitude(factor, all),
            _ => magnitude(factor, 1.0),
        };
        Ok((stretched.collect(), amplitude))
    }

    /// LongRoPE: a divisor per pair, one list for short and one for long sequences.
    fn longrope(&self, powers: &[f32]) -> Result<Rope> {
        let original = self.original()?;
        let divided = |key: &str| {
            let divisors = self.floats(key)?;
            if divisors.len() != powers.len() {
                let why =
                    format!("has {} numbers, not one for each of {} pairs", divisors.len(), powers.len());
                return Err(self.place().bad(key, why));
            }
            Ok(powers.iter().zip(divisors).map(|(power, d)| 1.0 / (d as f32 * power)).collect::<Vec<f32>>())
        };
        let (short, long) = (divided("short_factor")?, divided("long_factor")?);
        let amplitude = match self.float("attention_factor")? {
            Some(given) => given,
            None => {
                let stretched = self.top.float("max_position_embeddings")? / original;
                let factor = self.float("factor")?.filter(|f| *f > 0.0).unwrap_or(stretched);
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
            }
        };
        let long = (short != long).then_some(LongRope { after: original as u32, inv_freq: long });
        Ok(Rope { inv_freq: short, amplitude: amplitude as f32, long, temperature: None })
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.places().find(|p| p.get(key).is_some()) {
            Some(place) => place.flag_or(key, default),
            None => Ok(default),
        }
    }
}

/// A share of a head, rounded down; a share that is a rounded quotient loses nothing.
pub(crate) fn rotated(head_dim: usize, share: f64) -> usize {
    (head_dim as f64 * share + 1e-6) as usize
}

/// YaRN's amplitude: 0.1 * weight * ln(factor) + 1.
fn magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
