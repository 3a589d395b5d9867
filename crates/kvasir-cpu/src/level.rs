/// Compiles one plain function for each level, so that the compiler's own vectors do the work: `per_level! { name(args) => body }` makes
/// `name(level, args)`, which runs `body(args)` built for the level's instructions. All builds do the same arithmetic.
macro_rules! per_level {
    ($(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) => $body:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name(level: $crate::Level, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
                fn wide($($arg: $ty),*) { $body($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn middle($($arg: $ty),*) { $body($($arg),*) }
                if level >= $crate::Level::Avx512Vnni {
                    // SAFETY: the level says that the machine has these instructions.
                    return unsafe { wide($($arg),*) };
                }
                if level >= $crate::Level::Avx2 {
                    // SAFETY: as above.
                    return unsafe { middle($($arg),*) };
                }
            }
            let _ = level;
            $body($($arg),*)
        }
    };
}
pub(crate) use per_level;
