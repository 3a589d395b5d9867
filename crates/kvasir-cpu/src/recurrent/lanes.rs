//! The f32 vectors of the recurrent kernels: AVX-512, AVX2, arrays, and one number.
//!
//! Arrays are the portable twin on x86 and become NEON on Arm. One number serves the columns that
//! fill no vector.

#[cfg(target_arch = "x86_64")]
pub(crate) use crate::isa::vectors::{v256, v512};

macro_rules! plain_lanes {
    ($(#[$doc:meta])* $name:ident, $count:literal) => {
        $(#[$doc])*
        pub(crate) mod $name {
            pub(crate) type Floats = [f32; $count];
            /// Numbers per vector.
            pub(crate) const WORDS: usize = $count;

            #[inline(always)]
            pub(crate) fn zero_floats() -> Floats {
                [0.0; $count]
            }

            #[inline(always)]
            pub(crate) fn splat_floats(v: f32) -> Floats {
                [v; $count]
            }

            #[inline(always)]
            pub(crate) fn add(mut a: Floats, b: Floats) -> Floats {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                a
            }

            #[inline(always)]
            pub(crate) fn sub(mut a: Floats, b: Floats) -> Floats {
                a.iter_mut().zip(b).for_each(|(a, b)| *a -= b);
                a
            }

            #[inline(always)]
            pub(crate) fn mul(mut a: Floats, b: Floats) -> Floats {
                a.iter_mut().zip(b).for_each(|(a, b)| *a *= b);
                a
            }

            /// `a * b + c`
            #[inline(always)]
            pub(crate) fn fma(a: Floats, b: Floats, mut c: Floats) -> Floats {
                c.iter_mut().zip(a.iter().zip(b)).for_each(|(c, (a, b))| *c = a.mul_add(b, *c));
                c
            }

            /// # Safety
            /// A whole vector must be readable at `at`.
            #[inline(always)]
            pub(crate) unsafe fn load_floats(at: *const f32) -> Floats {
                // SAFETY: the caller's numbers.
                unsafe { at.cast::<Floats>().read_unaligned() }
            }

            /// # Safety
            /// A whole vector must be writable at `at`.
            #[inline(always)]
            pub(crate) unsafe fn store_floats(at: *mut f32, v: Floats) {
                // SAFETY: the caller's numbers.
                unsafe { at.cast::<Floats>().write_unaligned(v) }
            }
        }
    };
}

plain_lanes! {
    /// Four numbers.
    arrays, 4
}
plain_lanes! {
    /// One number.
    scalars, 1
}
