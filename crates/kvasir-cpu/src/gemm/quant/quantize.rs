//! Quantizes one block of 32 activations to 16 bits: `scale = max |x| / 32767`, codes rounded to
//! nearest even.

use crate::isa::dispatch::per_isa;
use crate::isa::float16::ROUND;
use crate::weights::quant::format::{BLOCK, Format};

/// Largest absolute code.
const MAX: f32 = 32767.0;

/// Scale and sums of one row's block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(32))]
pub(crate) struct ActivationScale {
    pub(crate) scale: f32,
    /// Sums of the dequantized activations: per 16 inputs, and of all.
    sums: [f32; 3],
    /// Negated sums of the codes: per 16 inputs, and of all.
    negated_sums: [i32; 3],
}

impl ActivationScale {
    fn new(scale: f32, [first, second]: [i32; 2]) -> Self {
        let negated_sums = [-first, -second, -first - second];
        Self { scale, sums: negated_sums.map(|negated| scale * -negated as f32), negated_sums }
    }

    /// The sum of the activations of sub-block `sub` of the format.
    #[inline(always)]
    pub(crate) fn sum(&self, f: Format, sub: usize) -> f32 {
        self.sums[if f.subs() == 1 { 2 } else { sub }]
    }

    /// The negated sum of the codes of sub-block `sub` of the format.
    #[inline(always)]
    pub(crate) fn negated_sum(&self, f: Format, sub: usize) -> i32 {
        self.negated_sums[if f.subs() == 1 { 2 } else { sub }]
    }
}

/// One row's block of codes. Of each four inputs: the first and third, then the second and fourth,
/// which is how kernels unpack weights.
pub(crate) type Codes = [i16; BLOCK];

#[inline(always)]
fn body(x: &[f32; BLOCK], codes: &mut Codes, to: &mut ActivationScale) {
    // Eight lanes at a time, so that the loop vectorizes. A comparison with a NaN is false.
    let mut max = [0f32; 8];
    for x in x.as_chunks::<8>().0 {
        max.iter_mut().zip(x).for_each(|(max, v)| *max = if v.abs() > *max { v.abs() } else { *max });
    }
    let largest = max.into_iter().fold(0f32, f32::max);
    let scale = largest / MAX;
    let (scale, inverse) = if scale.is_normal() { (scale, MAX / largest) } else { (0.0, 0.0) };
    let whole: [i32; BLOCK] = std::array::from_fn(|i| i32::from((x[i] * inverse + ROUND).to_bits() as i16));
    let sum = |half: usize| -> i32 { whole[half * 16..half * 16 + 16].iter().sum() };
    *to = ActivationScale::new(scale, [sum(0), sum(1)]);
    for (four, from) in codes.as_chunks_mut::<4>().0.iter_mut().zip(whole.as_chunks::<4>().0) {
        *four = [from[0], from[2], from[1], from[3]].map(|code| code as i16);
    }
}

per_isa! {
    /// Writes codes in `-32767..=32767`, their scale and their sums. Ties round to even; NaNs do not
    /// affect the scale.
    quantize(x: &[f32; BLOCK], codes: &mut Codes, to: &mut ActivationScale) => body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;

    #[test]
    fn blocks_round_to_even_on_every_instruction_set() {
        let mut ties = [0.5f32; BLOCK];
        (ties[0], ties[1], ties[2], ties[3]) = (32767.0, 1.5, 2.5, -3.5);
        let mut huge = [f32::MAX; BLOCK];
        huge[1] = f32::NAN;
        let cases = [ties, huge, [0.0; BLOCK], [f32::MIN_POSITIVE; BLOCK], [1e-30; BLOCK]];
        for isa in isas() {
            let of = |x: &[f32; BLOCK]| {
                let (mut codes, mut scale) = ([0; BLOCK], ActivationScale::default());
                quantize(isa, x, &mut codes, &mut scale);
                (codes, scale)
            };
            let (codes, scale) = of(&ties);
            assert_eq!(codes[..8], [32767, 2, 2, -4, 0, 0, 0, 0]);
            assert_eq!(scale, ActivationScale::new(1.0, [32767, 0]));
            for case in &cases {
                let (codes, scale) = of(case);
                let sums = [&codes[..16], &codes[16..]].map(|half| half.iter().map(|&c| i32::from(c)).sum());
                assert_eq!(scale, ActivationScale::new(scale.scale, sums), "{isa}");
                assert!(scale.scale == 0.0 && codes == [0; BLOCK] || codes.contains(&32767));
            }
        }
    }
}
