//! Counter-based random numbers for sampling: Gumbel noise as a pure function of (seed, position,
//! id).
//!
//! There is no generator state. The sampled token therefore does not depend on batch composition,
//! on preemption, or on how many drafts were verified in between. Built on splitmix64 (`mix.rs`).

use crate::mix::{STRIDE, mix};

/// Further random draws at a position, by rejection sampling and XTC; each has its own noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The draft model's token.
    Draft = 1,
    /// Whether that token is accepted.
    Acceptance = 2,
    /// The token in the place of a rejected one.
    Residual = 3,
    /// Whether XTC excludes the top choices.
    Exclusion = 4,
}

/// The random numbers of one draw: a function of the request's seed, the position of the sampled
/// token, and the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: u64,
}

impl Noise {
    /// Noise for the token at `position`, where 0 is the first prompt token.
    pub fn at(seed: u64, position: u32) -> Self {
        let key = mix(seed.wrapping_add(STRIDE));
        Self { key: mix(key ^ u64::from(position).wrapping_mul(STRIDE)) }
    }

    /// Independent noise at the same position, for another purpose than drawing the target's token.
    pub fn purpose(self, purpose: Purpose) -> Self {
        Self { key: mix(self.key ^ mix(purpose as u64)) }
    }

    /// 64 hash bits for one id.
    fn bits(self, id: u32) -> u64 {
        mix(self.key.wrapping_add(u64::from(id).wrapping_add(1).wrapping_mul(STRIDE)))
    }

    /// Uniform over the open interval (0, 1).
    pub fn uniform(self, id: u32) -> f64 {
        let bits = self.bits(id);
        ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// A standard Gumbel variable `-ln(-ln u)`: `argmax(logit + gumbel)` is distributed as the
    /// softmax.
    pub fn gumbel(self, id: u32) -> f64 {
        -(-self.uniform(id).ln()).ln()
    }

    /// An upper bound of [`gumbel`](Self::gumbel) without a logarithm.
    ///
    /// With n leading one bits the uniform variable u is less than 1 - 2⁻ⁿ⁻¹, and -ln(-ln u) <=
    /// -ln(1 - u) < (n + 1) ln 2.
    pub fn at_most(self, id: u32) -> f64 {
        f64::from(self.bits(id).leading_ones().min(53) + 1) * (std::f64::consts::LN_2 + 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_is_near() {
        let noise = Noise::at(3, 5);
        let mut slack = 0.0;
        for id in 0..200_000 {
            let (bound, exact) = (noise.at_most(id), noise.gumbel(id));
            assert!(exact <= bound, "{id}: {exact} > {bound}");
            slack += bound - exact;
        }
        assert!(slack / 200_000.0 < 1.5, "{slack}");
    }

    #[test]
    fn neighbors_in_every_key_are_independent() {
        // Mean, variance and correlation of 40,000 draws with their neighbors in id, position and
        // seed.
        let mut list = Vec::new();
        for seed in 0..20 {
            for position in 0..20 {
                for id in 0..100 {
                    let here = Noise::at(seed, position).uniform(id);
                    let next = [
                        Noise::at(seed, position).uniform(id + 1),
                        Noise::at(seed, position + 1).uniform(id),
                        Noise::at(seed + 1, position).uniform(id),
                    ];
                    list.push((here, next));
                }
            }
        }
        let n = list.len() as f64;
        let mean = list.iter().map(|(u, _)| u).sum::<f64>() / n;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        for other in 0..3 {
            let product: f64 = list.iter().map(|(u, next)| (u - 0.5) * (next[other] - 0.5)).sum();
            assert!((product / n * 12.0).abs() < 0.02, "{other}: {}", product / n * 12.0);
        }
    }

    #[test]
    fn it_never_leaves_the_open_interval() {
        assert!((0..10_000).map(|id| Noise::at(7, 3).gumbel(id)).all(f64::is_finite));
    }
}
