/// Compiles one plain function for each level, so that the compiler's own vectors do the work: `per_level! { name(args) => body }` makes
/// `name(level, args)`, which runs `body(args)` built for the level's instructions. All builds do the same arithmetic. With `unsafe` before the name
/// the body is an unsafe function, and so is what is made.
macro_rules! per_level {
    (@ [$($unsafe:tt)?] $(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) => $body:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) $($unsafe)? fn $name(level: $crate::Level, $($arg: $ty),*) {
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
                if level >= $crate::Level::Avx512Vnni {
                    // SAFETY: the level says that the machine has these instructions; as the caller vouches.
                    return unsafe { wide($($arg),*) };
                }
                if level >= $crate::Level::Avx2 {
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
        $crate::level::per_level! { @ [unsafe] $(#[$doc])* $($function)* }
    };
    ($(#[$doc:meta])* $name:ident $($function:tt)*) => {
        $crate::level::per_level! { @ [] $(#[$doc])* $name $($function)* }
    };
}
pub(crate) use per_level;
