//! Fuzz target: arbitrary bytes as a `tokenizer.json`.
#![no_main]

#[path = "../entry_points.rs"]
mod entry_points;

libfuzzer_sys::fuzz_target!(
    // Remove the aborting panic hook: only uncaught panics end the process, not those caught by the
    // tokenizer.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| entry_points::tokenizer(bytes)
);
