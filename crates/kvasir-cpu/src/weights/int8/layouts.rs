//! Static dispatch over formats: one zero-sized type per `Format`, so that kernels are
//! monomorphized for each.

use crate::weights::int8::format::Format;

/// A [`Format`] as a compile-time constant.
pub(crate) trait Layout {
    const FORMAT: Format;
}

/// Runs `$body` with the type alias `$L` bound to the layout type of `$format`.
macro_rules! with_layout {
    ($format:expr, $L:ident => $body:expr) => {{
        use $crate::weights::int8::layouts::*;
        match $format {
            f if f == Nibbles::FORMAT => {
                type $L = Nibbles;
                $body
            }
            f if f == NibblesMin::FORMAT => {
                type $L = NibblesMin;
                $body
            }
            f if f == NibbleFloats::FORMAT => {
                type $L = NibbleFloats;
                $body
            }
            f if f == Curve::FORMAT => {
                type $L = Curve;
                $body
            }
            f if f == KCurve::FORMAT => {
                type $L = KCurve;
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
            f if f == Fine::FORMAT => {
                type $L = Fine;
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
    ($name:ident, $format:ident) => {
        pub(crate) struct $name;
        impl Layout for $name {
            const FORMAT: Format = Format::$format;
        }
    };
}

layout!(Nibbles, Q4_0);
layout!(NibblesMin, Q4_1);
layout!(NibbleFloats, MXFP4);
layout!(Curve, IQ4_NL);
layout!(KCurve, IQ4_XS);
layout!(Fives, Q5_0);
layout!(FivesMin, Q5_1);
layout!(Bytes, Q8_0);
layout!(Fine, FINE);
layout!(KTwo, Q2_K);
layout!(KThree, Q3_K);
layout!(KFour, Q4_K);
layout!(KFive, Q5_K);
layout!(KSix, Q6_K);
