//! Model checks of the thread pool, the output buffer and the ranks' shared memory: compiled with
//! `loom`'s primitives in place of `std`'s, under every interleaving of up to `PREEMPTIONS`
//! preemptions.
//!
//! The modules are the engine's own files. Only `threads::sync`, `host::lock`, `ranks::sync` and
//! `ranks::memory` are replaced.
//!
//! A model fails by an assertion, a data race on the job of the pool, or a deadlock: a worker or a
//! reader whose wake-up is lost.

mod output_buffer;
mod rank_memory;
mod thread_pool;

/// The folder `threads` of `kvasir-cpu`.
#[path = "."]
mod threads {
    #[allow(dead_code)] // the models use a part of it
    #[path = "../../crates/kvasir-cpu/src/threads/pool.rs"]
    pub(crate) mod pool;
    #[allow(dead_code)]
    #[path = "../../crates/kvasir-cpu/src/threads/prologue.rs"]
    pub(crate) mod prologue;
    #[allow(dead_code)]
    #[path = "../../crates/kvasir-cpu/src/threads/worker.rs"]
    pub(crate) mod worker;

    /// `loom`'s primitives. Polls are not counted: each one yields, and workers park at once.
    pub(crate) mod sync {
        pub(crate) use loom::cell::UnsafeCell;
        pub(crate) use loom::hint::spin_loop;
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
        pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
        pub(crate) use loom::thread::{Builder, JoinHandle, park, yield_now};

        pub(crate) const SPINS: u32 = 0;
        pub(crate) const YIELDS: u32 = 0;
    }
}

/// The buffer of `kvasir-serve`.
#[path = "."]
mod host {
    #[path = "../../crates/kvasir-serve/src/host/output_buffer.rs"]
    pub(crate) mod output_buffer;

    pub(crate) mod lock {
        pub(crate) use loom::sync::{Mutex, MutexGuard};

        pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

/// The folder `ranks` of `kvasir-fleet`.
#[path = "."]
mod ranks {
    #[allow(dead_code)] // the models use a part of it
    #[path = "../../crates/kvasir-fleet/src/ranks/contributions.rs"]
    pub(crate) mod contributions;
    #[allow(dead_code)]
    #[path = "../../crates/kvasir-fleet/src/ranks/broadcast_ring.rs"]
    pub(crate) mod broadcast_ring;
    #[allow(dead_code)]
    #[path = "../../crates/kvasir-fleet/src/ranks/layout.rs"]
    pub(crate) mod layout;
    #[allow(dead_code)]
    #[path = "../../crates/kvasir-fleet/src/ranks/endpoint.rs"]
    pub(crate) mod endpoint;
    #[path = "../../crates/kvasir-fleet/src/ranks/ring_error.rs"]
    pub(crate) mod ring_error;

    /// `loom`'s primitives. A waiting rank sleeps at once, without polling.
    pub(crate) mod sync {
        pub(crate) use loom::hint::spin_loop;
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
        pub(crate) use loom::thread::yield_now;
        use loom::sync::{Condvar, Mutex};

        pub(crate) const SPINS: u32 = 0;
        pub(crate) const YIELDS: u32 = 0;

        /// Model of a futex. A lock makes the comparison and the enqueuing of a sleeper atomic, as
        /// in the kernel.
        pub(crate) struct Futex(pub(crate) AtomicU32, Mutex<()>, Condvar);

        impl Futex {
            pub(crate) fn new() -> Self {
                Self(AtomicU32::new(0), Mutex::new(()), Condvar::new())
            }

            pub(crate) fn sleep(&self, expected: u32) {
                let guard = self.1.lock().unwrap();
                if self.0.load(Ordering::Acquire) == expected {
                    drop(self.2.wait(guard).unwrap());
                }
            }

            pub(crate) fn wake(&self) {
                let _guard = self.1.lock().unwrap();
                self.2.notify_all();
            }
        }
    }

    /// Model of the shared memory, in which `loom` detects data races.
    pub(crate) mod memory {
        use super::layout::{LINE_WORDS, Layout};
        use super::sync::{AtomicU32, Futex};
        use loom::{cell::UnsafeCell, sync::Arc};

        #[derive(Clone)]
        pub(crate) struct SharedMemory(Arc<Shared>);

        struct Shared {
            words: Vec<AtomicU32>,
            futexes: Vec<Futex>,
            data: Vec<UnsafeCell<u32>>,
            /// First word of the data.
            start: usize,
        }

        // SAFETY: `loom` checks that accesses do not race.
        unsafe impl Send for Shared {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for Shared {}

        impl SharedMemory {
            pub(crate) fn new(layout: Layout) -> Self {
                let start = layout.lines() * LINE_WORDS;
                let cells = start..layout.words();
                Self(Arc::new(Shared {
                    words: (0..layout.lines()).map(|_| AtomicU32::new(0)).collect(),
                    futexes: (0..layout.lines()).map(|_| Futex::new()).collect(),
                    data: cells.map(|_| UnsafeCell::new(0)).collect(),
                    start,
                }))
            }

            pub(crate) fn word(&self, line: usize) -> &AtomicU32 {
                &self.0.words[line]
            }

            pub(crate) fn futex(&self, line: usize) -> &Futex {
                &self.0.futexes[line]
            }

            pub(crate) unsafe fn write(&self, at: usize, words: &[u32]) {
                for (cell, word) in self.0.data[at - self.0.start..].iter().zip(words) {
                    // SAFETY: `loom` checks that accesses do not race.
                    cell.with_mut(|cell| unsafe { *cell = *word });
                }
            }

            pub(crate) unsafe fn read(&self, at: usize, into: &mut [u32]) {
                for (cell, word) in self.0.data[at - self.0.start..].iter().zip(into) {
                    // SAFETY: `loom` checks that accesses do not race.
                    cell.with(|cell| *word = unsafe { *cell });
                }
            }

            pub(crate) unsafe fn write_f32(&self, at: usize, numbers: &[f32]) {
                let words: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
                // SAFETY: the caller's obligation.
                unsafe { self.write(at, &words) };
            }

            pub(crate) unsafe fn read_f32(&self, at: usize, into: &mut [f32]) {
                let mut words = vec![0; into.len()];
                // SAFETY: the caller's obligation.
                unsafe { self.read(at, &mut words) };
                into.iter_mut().zip(words).for_each(|(number, word)| *number = f32::from_bits(word));
            }

            pub(crate) unsafe fn add_f32(&self, at: usize, into: &mut [f32]) {
                let mut numbers = vec![0.0; into.len()];
                // SAFETY: the caller's obligation.
                unsafe { self.read_f32(at, &mut numbers) };
                into.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            }
        }
    }
}

/// Preemptions per execution: nearly all known concurrency defects need at most two.
const PREEMPTIONS: usize = 3;

fn main() {
    let models = thread_pool::MODELS.iter().chain(output_buffer::MODELS).chain(rank_memory::MODELS);
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mut passed = 0;
    for (name, model) in models.filter(|(name, _)| name.contains(&wanted)) {
        println!("model {name}");
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS);
        builder.check(*model);
        passed += 1;
    }
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored");
}
