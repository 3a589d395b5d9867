//! Measures the machine limits of the roofline model: memory bandwidth and peak integer, bf16 and
//! f32 throughput of a thread pool.
//!
//! Each limit is the best of several repetitions, as every disturbance makes it slower.
//! `kvasir bench` and `kvasir doctor` compare speeds with them.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
#[cfg(target_arch = "aarch64")]
use crate::limits::arm;
#[cfg(target_arch = "x86_64")]
use crate::limits::x86;
use crate::memory::buffer::Buffer;
use crate::threads::pool::ThreadPool;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Roofline limits of this machine with the threads of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLimits {
    /// Read bandwidth of memory, in bytes per second.
    pub bandwidth: f64,
    /// 16-bit integer operations per second; a multiply-add counts as two. With AMX this equals
    /// `bf16`: quantized weights are dequantized to bf16.
    pub integer: f64,
    /// bf16 operations per second; a multiply-add counts as two.
    pub bf16: f64,
    /// f32 operations per second; a multiply-add counts as two.
    pub f32: f64,
}

impl MachineLimits {
    /// Measures the arithmetic limits alone, without memory of its own; the bandwidth counts as infinite.
    pub fn of_arithmetic(threads: &ThreadPool) -> Self {
        let isa = Isa::detect();
        let best = |job: &(dyn Fn() -> f64 + Sync)| {
            let all = (0..TRIES).map(|_| {
                let started = Instant::now();
                let operations = AtomicU64::new(0);
                threads.each(threads.len(), &|_, _| {
                    operations.fetch_add(job() as u64, Ordering::Relaxed);
                });
                operations.into_inner() as f64 / started.elapsed().as_secs_f64()
            });
            all.fold(0.0, f64::max)
        };
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected on this machine.
        let f32 = best(&|| unsafe {
            if isa.has_avx512() {
                x86::floats_16()
            } else if isa.has_avx2() {
                x86::floats_8()
            } else {
                multiply_add()
            }
        });
        #[cfg(target_arch = "aarch64")]
        let f32 = best(&|| if isa == Isa::PORTABLE { multiply_add() } else { arm::floats() });
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let f32 = best(&multiply_add);
        let mut peaks = Self { bandwidth: f64::INFINITY, integer: f32, bf16: f32, f32 };
        let numbers = random_bytes();
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx2() {
            // SAFETY: as above.
            peaks.integer = best(&|| unsafe {
                if !isa.int_dot {
                    x86::pairs_avx2(&numbers)
                } else if isa.has_avx512() {
                    x86::pairs_avx512(&numbers)
                } else {
                    x86::pairs_avx_vnni(&numbers)
                }
            });
        }
        #[cfg(target_arch = "x86_64")]
        if isa.tiles || isa.bf16_dot {
            let mut floats = random_bytes();
            // Numbers between 1 and 2: no denormals, infinities or NaNs.
            floats.chunks_exact_mut(2).for_each(|v| (v[0], v[1]) = (v[0] & 0x7f | 0x80, 0x3f));
            // SAFETY: as above.
            peaks.bf16 = best(&|| unsafe {
                if isa.tiles { x86::tiles_bf16(&floats) } else { x86::pairs_bf16(&floats) }
            });
            if isa.tiles {
                peaks.integer = peaks.bf16;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if isa != Isa::PORTABLE {
            peaks.integer = best(&|| arm::pairs(&numbers));
        }
        let _ = (isa, numbers);
        peaks
    }
}

/// Repetitions; the best one counts, because every disturbance makes it slower.
const TRIES: usize = 7;
/// Parts of the memory that are read one after the other.
const PARTS: usize = 8;

/// The microbenchmark: a thread pool and 1 GB of memory, more than the caches hold.
pub struct LimitsMeter<'t> {
    threads: &'t ThreadPool,
    isa: Isa,
    memory: Buffer,
}

impl<'t> LimitsMeter<'t> {
    /// Allocates 1 GB and writes to all of it, so that every page is backed.
    pub fn new(threads: &'t ThreadPool) -> io::Result<Self> {
        const BYTES: usize = 1 << 30;
        let mut memory = Buffer::in_huge_pages(BYTES)?;
        let numbers = random_bytes();
        for part in memory.bytes_mut().chunks_mut(numbers.len()) {
            part.copy_from_slice(&numbers[..part.len()]);
        }
        Ok(Self { threads, isa: Isa::detect(), memory })
    }

    /// Measures all limits; takes about a tenth of a second.
    pub fn measure(&self) -> MachineLimits {
        MachineLimits { bandwidth: self.bandwidth(), ..MachineLimits::of_arithmetic(self.threads) }
    }

    /// Best read bandwidth over parts of the memory, each read by all threads; together they exceed
    /// the caches.
    fn bandwidth(&self) -> f64 {
        let bytes = self.memory.bytes();
        let mut best = 0f64;
        for part in bytes.chunks(bytes.len() / PARTS) {
            let each = (part.len() / self.threads.len()) & !4095;
            let started = Instant::now();
            self.threads.each(self.threads.len(), &|_, thread| {
                let mut sink = 0;
                read(self.isa, &part[thread * each..(thread + 1) * each], &mut sink);
                std::hint::black_box(sink);
            });
            best = best.max((each * self.threads.len()) as f64 / started.elapsed().as_secs_f64());
        }
        best
    }
}

/// Random operands: processors run faster on zeros.
fn random_bytes() -> [u8; 4096] {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    std::array::from_fn(|_| next())
}

#[inline(always)]
fn read_body(bytes: &[u8], sink: &mut u64) {
    let mut sums = [0u64; 64];
    for part in bytes.as_chunks::<512>().0 {
        for (sum, v) in sums.iter_mut().zip(part.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*v);
        }
    }
    *sink = sums.iter().fold(0, |a, b| a ^ b);
}

per_isa! { read(bytes: &[u8], sink: &mut u64) => read_body }

/// f32 multiply-adds as the compiler vectorizes them for the baseline target.
fn multiply_add() -> f64 {
    const ROUNDS: usize = 250_000;
    const CHAINS: usize = 32;
    let mut sums = [1f32; CHAINS];
    let (x, y) = (std::hint::black_box(1.000_01f32), std::hint::black_box(0.9f32));
    for _ in 0..ROUNDS {
        sums.iter_mut().for_each(|s| *s = *s * x + y);
    }
    std::hint::black_box(sums);
    (ROUNDS * CHAINS * 2) as f64
}
