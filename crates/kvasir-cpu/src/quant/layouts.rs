//! A type per layout, so that kernels are compiled for each.

use super::format::Format;

/// A [`Format`] known when the kernel is compiled.
pub(crate) trait Layout {
    const FORMAT: Format;
}

/// Names a type for each layout and runs `$body` with `$L` as the one that `$format` has.
macro_rules! with_layout {
    ($format:expr, $L:ident => $body:expr) => {{
        use $crate::quant::layouts::*;
        match $format {
            f if f == Nibbles::FORMAT => {
                type $L = Nibbles;
                $body
            }
            f if f == NibblesMin::FORMAT => {
                type $L = NibblesMin;
                $body
            }
            f if f == Fives::FORMAT => {
                type $L = Fives;
                $body
            }
            f if f == FivesMin::FORMAT => {
                type $L = FivesMin;
                $body
            }
            f if f == Bytes::FORMAT => {
                type $L = Bytes;
                $body
            }
            f if f == KTwo::FORMAT => {
                type $L = KTwo;
                $body
            }
            f if f == KThree::FORMAT => {
                type $L = KThree;
                $body
            }
            f if f == KFour::FORMAT => {
                type $L = KFour;
                $body
            }
            f if f == KFive::FORMAT => {
                type $L = KFive;
                $body
            }
            _ => {
                type $L = KSix;
                $body
            }
        }
    }};
}
pub(crate) use with_layout;

macro_rules! layout {
    ($name:ident, $bits:literal, $sub:literal, $min:literal, $times:literal, $wide:literal) => {
        pub(crate) struct $name;
        impl Layout for $name {
            const FORMAT: Format =
                Format { bits: $bits, signed: !$min, sub: $sub, has_min: $min, times: $times, wide_d: $wide };
        }
    };
}

layout!(Nibbles, 4, 32, false, 1, true);
layout!(NibblesMin, 4, 32, true, 1, true);
layout!(Fives, 5, 32, false, 1, true);
layout!(FivesMin, 5, 32, true, 1, true);
layout!(Bytes, 8, 32, false, 1, true);
layout!(KTwo, 4, 16, true, 16, false);
layout!(KThree, 4, 16, false, -8, false);
layout!(KFour, 4, 32, true, 2, false);
layout!(KFive, 5, 32, true, 2, false);
layout!(KSix, 6, 16, false, -1, false);
