use crate::buffer::Buffer;
use crate::level::per_level;
use crate::{Level, Team};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What this machine reaches at best with a team's threads: the limits that speeds are measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes per second that can be read from memory.
    pub bandwidth: f64,
    /// 8-bit multiply-adds per second, each counted as two operations.
    pub int8: f64,
    /// The same of bf16.
    pub bf16: f64,
    /// The same of f32.
    pub f32: f64,
}

/// Repetitions; the best one counts, because everything that disturbs makes it slower.
const TRIES: usize = 7;

impl Peaks {
    /// Measures for about a second, with a gigabyte of memory.
    pub fn measure(team: &Team, level: Level) -> io::Result<Self> {
        let bandwidth = bandwidth(team, level)?;
        let best = |job: &(dyn Fn() -> f64 + Sync)| {
            let all = (0..TRIES).map(|_| {
                let started = Instant::now();
                let operations = AtomicU64::new(0);
                team.run(&|_| {
                    operations.fetch_add(job() as u64, Ordering::Relaxed);
                });
                operations.into_inner() as f64 / started.elapsed().as_secs_f64()
            });
            all.fold(0.0, f64::max)
        };
        let f32 = best(&|| {
            let mut sink = 0.0;
            multiply_add(level, &mut sink);
            std::hint::black_box(sink);
            FMA_ROUNDS as f64 * (CHAINS * LANES * 2) as f64
        });
        let mut peaks = Self { bandwidth, int8: f32, bf16: f32, f32 };
        #[cfg(target_arch = "x86_64")]
        {
            if level >= Level::Avx512Vnni {
                // SAFETY: the level was found on this machine.
                peaks.int8 = best(&|| unsafe { wide::bytes() });
            }
            if level >= Level::Amx {
                // SAFETY: the level says that tiles are permitted.
                peaks.int8 = best(&|| unsafe { wide::tiles_i8() });
                // SAFETY: as above.
                peaks.bf16 = best(&|| unsafe { wide::tiles_bf16() });
            }
        }
        Ok(peaks)
    }
}

fn bandwidth(team: &Team, level: Level) -> io::Result<f64> {
    const BYTES: usize = 1 << 30;
    let mut buffer = Buffer::in_large_pages(BYTES)?;
    buffer.bytes_mut().fill(1);
    let part = (BYTES / team.len()) & !4095;
    let mut best = 0f64;
    for _ in 0..TRIES {
        let started = Instant::now();
        team.run(&|thread| {
            let mut sink = 0;
            read(level, &buffer.bytes()[thread * part..(thread + 1) * part], &mut sink);
            std::hint::black_box(sink);
        });
        best = best.max((part * team.len()) as f64 / started.elapsed().as_secs_f64());
    }
    Ok(best)
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

per_level! { read(bytes: &[u8], sink: &mut u64) => read_body }

const FMA_ROUNDS: usize = 2_000_000;
const CHAINS: usize = 12;
const LANES: usize = 16;

#[inline(always)]
fn multiply_add_body(sink: &mut f32) {
    let mut sums = [[1f32; LANES]; CHAINS];
    let (x, y) = (std::hint::black_box(1.000_01f32), std::hint::black_box(0.9f32));
    for _ in 0..FMA_ROUNDS {
        for sum in &mut sums {
            sum.iter_mut().for_each(|s| *s = s.mul_add(x, y));
        }
    }
    *sink = sums.iter().flatten().sum();
}

per_level! { multiply_add(sink: &mut f32) => multiply_add_body }

#[cfg(target_arch = "x86_64")]
mod wide {
    use crate::amx::{Tiles, tile_dot_bf16, tile_dot_i8, tile_zero};
    use std::arch::x86_64::*;

    const ROUNDS: usize = 2_000_000;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn bytes() -> f64 {
        let x = _mm512_set1_epi8(std::hint::black_box(1));
        let mut sums = [x; 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
            // The sums stay apart and are not folded into one.
            std::hint::black_box(());
        }
        std::hint::black_box(sums);
        (ROUNDS * 12 * 64 * 2) as f64
    }

    /// Zeroed tiles: products take as long whatever is in them.
    unsafe fn zero() {
        // SAFETY: the caller has configured tiles.
        unsafe {
            tile_zero!(0);
            tile_zero!(1);
            tile_zero!(2);
            tile_zero!(3);
            tile_zero!(4);
            tile_zero!(5);
            tile_zero!(6);
            tile_zero!(7);
        }
    }

    pub(super) unsafe fn tiles_i8() -> f64 {
        // SAFETY: the caller says that tiles are permitted.
        unsafe {
            let _tiles = Tiles::configure();
            zero();
            for _ in 0..ROUNDS / 4 {
                tile_dot_i8!(0, 4, 6);
                tile_dot_i8!(1, 4, 7);
                tile_dot_i8!(2, 5, 6);
                tile_dot_i8!(3, 5, 7);
            }
        }
        (ROUNDS * 16 * 16 * 64 * 2) as f64
    }

    pub(super) unsafe fn tiles_bf16() -> f64 {
        // SAFETY: the caller says that tiles are permitted.
        unsafe {
            let _tiles = Tiles::configure();
            zero();
            for _ in 0..ROUNDS / 4 {
                tile_dot_bf16!(0, 4, 6);
                tile_dot_bf16!(1, 4, 7);
                tile_dot_bf16!(2, 5, 6);
                tile_dot_bf16!(3, 5, 7);
            }
        }
        (ROUNDS * 16 * 16 * 32 * 2) as f64
    }
}
