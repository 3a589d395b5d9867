//! The f32 vectors of the recurrent kernels: AVX-512, AVX2, arrays, and scalars.
//!
//! Arrays are the portable reference on x86, and compile to NEON on Arm. Scalars handle the columns
//! that do not fill a vector.

#[cfg(target_arch = "x86_64")]
pub(crate) use crate::isa::vectors::{v256, v512};

macro_rules! array_vectors {
    ($(#[$doc:meta])* $name:ident, $count:literal) => {
        $(#[$doc])*
        pub(crate) mod $name {
            pub(crate) type Floats = [f32; $count];
            /// f32 elements per vector.
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
                // SAFETY: upheld by the caller.
                unsafe { at.cast::<Floats>().read_unaligned() }
            }

            /// # Safety
            /// A whole vector must be writable at `at`.
            #[inline(always)]
            pub(crate) unsafe fn store_floats(at: *mut f32, v: Floats) {
                // SAFETY: upheld by the caller.
                unsafe { at.cast::<Floats>().write_unaligned(v) }
            }
        }
    };
}

array_vectors! {
    /// Vectors of four elements.
    arrays, 4
}
array_vectors! {
    /// Vectors of one element.
    scalars, 1
}
