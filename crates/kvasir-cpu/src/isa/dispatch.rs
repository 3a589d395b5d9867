//! Multiversioning by CPU feature: dispatch of autovectorized functions.
//!
//! `per_level!` compiles one portable function body for AVX-512, for AVX2 + FMA and for the
//! baseline target, and dispatches on the ISA level at run time. All builds execute the same
//! operations in the same order, so results are bit-identical on every level. The macro relies on
//! `Level` values being supported by the machine (see `machine.rs`).

/// `per_level! { name(args) => body }` makes `name(level, args)`, which runs `body(args)` compiled
/// for the SIMD features of `level`. With `unsafe` before the name, the body and the generated
/// function are unsafe.
macro_rules! per_level {
    (@ [$($unsafe:tt)?] $(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) => $body:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) $($unsafe)? fn $name(level: $crate::isa::features::Level, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
                $($unsafe)? fn wide($($arg: $ty),*) {
                    // SAFETY: as the caller vouches.
                    $($unsafe)? { $body($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                $($unsafe)? fn middle($($arg: $ty),*) {
                    // SAFETY: as the caller vouches.
                    $($unsafe)? { $body($($arg),*) }
                }
                if level >= $crate::isa::features::Level::Avx512Vnni {
                    // SAFETY: the level implies these instructions; as the caller vouches.
                    return unsafe { wide($($arg),*) };
                }
                if level >= $crate::isa::features::Level::Avx2 {
                    // SAFETY: as above.
                    return unsafe { middle($($arg),*) };
                }
            }
            let _ = level;
            // SAFETY: as the caller vouches.
            $($unsafe)? { $body($($arg),*) }
        }
    };
    ($(#[$doc:meta])* unsafe $($function:tt)*) => {
        $crate::isa::dispatch::per_level! { @ [unsafe] $(#[$doc])* $($function)* }
    };
    ($(#[$doc:meta])* $name:ident $($function:tt)*) => {
        $crate::isa::dispatch::per_level! { @ [] $(#[$doc])* $name $($function)* }
    };
}
pub(crate) use per_level;
