//! Model checks: the thread pool and the buffer of answers, compiled with `loom`'s primitives in
//! place of `std`'s, under every interleaving of up to `PREEMPTIONS` preemptions.
//!
//! The modules are the engine's own files. Only `threads::sync` and `host::lock` are replaced.
//!
//! A model fails by an assertion, a data race on the job of the pool, or a deadlock: a worker or a
//! reader whose wake-up is lost.

mod output_buffer;
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

/// Preemptions per execution: nearly all known concurrency defects need at most two.
const PREEMPTIONS: usize = 3;

fn main() {
    let models = thread_pool::MODELS.iter().chain(output_buffer::MODELS);
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
