//! The rotary embedding that a config describes, in either spelling: `rope_theta` with `rope_scaling`, or
//! `rope_parameters`.

use crate::{LongRope, Rope, config::Config, error::Result};
use std::f64::consts::TAU;

/// The places that a config may keep rotary facts in.
#[derive(Clone, Copy)]
pub(crate) struct RopeConfig<'a> {
    top: Config<'a>,
    /// Older spelling. Where both are there, which happens when somebody adds it to a config of the newer one, it wins.
    scaling: Option<Config<'a>>,
    /// Newer spelling.
    parameters: Option<Config<'a>>,
    theta: f64,
    /// A kind, and what it stands for here.
    renamed: Option<(&'a str, &'a str)>,
}

impl<'a> RopeConfig<'a> {
    pub(crate) fn read(top: Config<'a>) -> Result<Self> {
        let (parameters, scaling) = (top.object("rope_parameters")?, top.object("rope_scaling")?);
        Self { top, scaling, parameters, theta: 0.0, renamed: None }.with_theta("rope_theta", 10_000.0)
    }

    /// As the layers of one kind see it, where layers differ: `rope_parameters` has an object per kind.
    pub(crate) fn of_kind(top: Config<'a>, kind: &'a str, theta_key: &'a str, theta: f64) -> Result<Self> {
        let parameters = match top.object("rope_parameters")? {
            Some(all) => Some(all.object(kind)?.ok_or_else(|| all.bad(kind, "is missing"))?),
            None => None,
        };
        // In the older spelling only the layers with the common base are scaled.
        let scaling = if theta_key == "rope_theta" { top.object("rope_scaling")? } else { None };
        Self { top, scaling, parameters, theta: 0.0, renamed: None }.with_theta(theta_key, theta)
    }

    fn with_theta(self, key: &str, default: f64) -> Result<Self> {
        let theta = match self.float("rope_theta")? {
            Some(theta) => theta,
            None => self.top.float_or(key, default)?,
        };
        if theta <= 1.0 {
            return Err(self.top.bad(key, format!("is {theta}, not a base above 1")));
        }
        Ok(Self { theta, ..self })
    }

    /// The same, in a family that means kind `to` by `from`.
    pub(crate) fn with_kind(self, from: &'a str, to: &'a str) -> Self {
        Self { renamed: Some((from, to)), ..self }
    }

    fn places(&self) -> impl Iterator<Item = Config<'a>> {
        [self.scaling, self.parameters].into_iter().flatten()
    }

    /// The one that counts, which errors name.
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

    /// How many places of a head turn.
    pub(crate) fn dims(&self, head_dim: usize, default_share: f64) -> Result<usize> {
        let share = match self.float("partial_rotary_factor")? {
            Some(share) => share,
            None => self.top.float_or("partial_rotary_factor", default_share)?,
        };
        let dims = (head_dim as f64 * share) as usize;
        if share <= 0.0 || dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            let why = format!("is {share}: {dims} of {head_dim} places cannot turn");
            return Err(self.top.bad("partial_rotary_factor", why));
        }
        Ok(dims)
    }

    /// What latent attention multiplies its scale by.
    pub(crate) fn score_factor(&self) -> Result<f64> {
        let all = self.float("mscale_all_dim")?.unwrap_or(0.0);
        if self.kind()? == "default" || all == 0.0 {
            return Ok(1.0);
        }
        Ok(magnitude(self.required("factor")?, all).powi(2))
    }

    /// The rope over `dims` places.
    pub(crate) fn rope(&self, dims: usize) -> Result<Rope> {
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(self
                .top
                .bad("head_dim", format!("leaves {dims} places to turn, not an even number")));
        }
        // In 32 bits, as models are trained with: the last position of a long context turns by as much as the rounding says.
        let powers: Vec<f32> =
            (0..dims / 2).map(|i| self.theta.powf(f64::from((2 * i) as f32 / dims as f32)) as f32).collect();
        let inv: Vec<f32> = powers.iter().map(|power| 1.0 / power).collect();
        let plain =
            |inv_freq: Vec<f32>, amplitude: f64| Rope { inv_freq, amplitude: amplitude as f32, long: None };
        match self.kind()? {
            // "dynamic" changes angles only beyond `max_position_embeddings`, and no sequence goes there.
            "default" | "dynamic" => Ok(plain(inv, 1.0)),
            "linear" => {
                let factor = self.required("factor")?;
                Ok(plain(inv.iter().map(|f| f / factor as f32).collect(), 1.0))
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

    /// The length that the model was first made for. Where it is said twice, beside the rope counts.
    fn original(&self) -> Result<f64> {
        let key = "original_max_position_embeddings";
        let said = match self.top.opt_float(key)? {
            Some(original) => Some(original),
            None => self.float(key)?,
        };
        match said {
            Some(original) if original > 0.0 => Ok(original),
            Some(original) => Err(self.place().bad(key, format!("is {original}, not above 0"))),
            None => self.top.float("max_position_embeddings"),
        }
    }

    /// Long waves are stretched, short ones kept, those between are mixed.
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

    /// The same by a ramp over the pairs, with a change of amplitude.
    fn yarn(&self, powers: &[f32], dims: usize) -> Result<(Vec<f32>, f64)> {
        let original = self.original()?;
        // Configs that leave the factor out mean what the two lengths say.
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

    /// A divisor per pair, one list for short and one for long sequences.
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
        Ok(Rope { inv_freq: short, amplitude: amplitude as f32, long })
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.places().find(|p| p.get(key).is_some()) {
            Some(place) => place.flag_or(key, default),
            None => Ok(default),
        }
    }
}

/// YaRN's growth of amplitude with the stretch.
fn magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
