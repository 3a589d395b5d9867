//! Static dispatch over formats: one zero-sized type per `Format`, so that kernels are
//! monomorphized for each.

use crate::weights::quant::format::Format;

/// A [`Format`] as a compile-time constant.
pub(crate) trait Layout {
    const FORMAT: Format;
}

/// Runs `$body` with the type alias `$L` bound to the layout type of `$format`.
macro_rules! with_layout {
    (@ [$($name:ident)*] $format:expr, $L:ident => $body:expr) => {{
        use $crate::weights::quant::layouts::*;
        match $format {
            $(f if f == $name::FORMAT => {
                type $L = $name;
                $body
            })*
            other => unreachable!("{other:?} has no layout"),
        }
    }};
    ($format:expr, $L:ident => $body:expr) => {
        with_layout!(@ [Q4_0 Q4_1 Mxfp4 Iq4Nl Iq4Xs Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K] $format, $L => $body)
    };
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

layout!(Q4_0, Q4_0);
layout!(Q4_1, Q4_1);
layout!(Mxfp4, MXFP4);
layout!(Iq4Nl, IQ4_NL);
layout!(Iq4Xs, IQ4_XS);
layout!(Q5_0, Q5_0);
layout!(Q5_1, Q5_1);
layout!(Q8_0, Q8_0);
layout!(Q2K, Q2_K);
layout!(Q3K, Q3_K);
layout!(Q4K, Q4_K);
layout!(Q5K, Q5_K);
layout!(Q6K, Q6_K);

#[cfg(test)]
mod tests {
    use crate::weights::quant::format::Format;
    use kvasir_formats::DType;

    #[test]
    fn every_format_has_its_layout() {
        let formats = DType::all().filter_map(Format::of);
        for format in formats {
            assert_eq!(with_layout!(format, L => <L as super::Layout>::FORMAT), format);
        }
    }
}
