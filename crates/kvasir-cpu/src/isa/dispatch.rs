//! Multiversioning by CPU feature: dispatch of functions to the build for the instruction set.
//!
//! `per_isa!` compiles one portable function body for AVX-512, for AVX2 + FMA and for the baseline
//! target, and dispatches on the instruction set at run time. A version for AVX-512 may be written
//! by hand. All builds execute the same operations in the same order, so results are bit-identical.
//! The macro relies on `Isa` values being supported by the machine (see `features.rs`).

/// `per_isa! { name(args) => body }` makes `name(isa, args)`, which runs `body(args)` compiled for
/// the SIMD features of `isa`. With `unsafe` before the name, the body and the generated function
/// are unsafe. With `, avx512: path` the function at `path` is the build for AVX-512.
macro_rules! per_isa {
    (@ [$($unsafe:tt)?] $(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) => $body:path $(, avx512: $wide:path)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) $($unsafe)? fn $name(isa: $crate::isa::features::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                $crate::isa::dispatch::per_isa! { @avx512 [$($unsafe)?] isa ( $($arg : $ty),* ) $body $(, $wide)? }
                #[target_feature(enable = "avx2,fma,f16c")]
                $($unsafe)? fn middle($($arg: $ty),*) {
                    // SAFETY: as the caller vouches.
                    $($unsafe)? { $body($($arg),*) }
                }
                if isa.has_avx2() {
                    // SAFETY: the set implies these instructions; as the caller vouches.
                    return unsafe { middle($($arg),*) };
                }
            }
            let _ = isa;
            // SAFETY: as the caller vouches.
            $($unsafe)? { $body($($arg),*) }
        }
    };
    (@avx512 [$($unsafe:tt)?] $isa:ident ( $($arg:ident : $ty:ty),* ) $body:path) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
        $($unsafe)? fn wide($($arg: $ty),*) {
            // SAFETY: as the caller vouches.
            $($unsafe)? { $body($($arg),*) }
        }
        if $isa.has_avx512() {
            // SAFETY: the set implies these instructions; as the caller vouches.
            return unsafe { wide($($arg),*) };
        }
    };
    (@avx512 [$($unsafe:tt)?] $isa:ident ( $($arg:ident : $ty:ty),* ) $body:path, $wide:path) => {
        if $isa.has_avx512() {
            // SAFETY: the set implies these instructions; as the caller vouches.
            return unsafe { $wide($($arg),*) };
        }
    };
    ($(#[$doc:meta])* unsafe $($function:tt)*) => {
        $crate::isa::dispatch::per_isa! { @ [unsafe] $(#[$doc])* $($function)* }
    };
    ($(#[$doc:meta])* $name:ident $($function:tt)*) => {
        $crate::isa::dispatch::per_isa! { @ [] $(#[$doc])* $name $($function)* }
    };
}
pub(crate) use per_isa;
