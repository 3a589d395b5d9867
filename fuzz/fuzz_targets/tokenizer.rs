//! Any bytes as a `tokenizer.json`.
#![no_main]

#[path = "../entry_points.rs"]
mod entry_points;

libfuzzer_sys::fuzz_target!(
    // Ends the process at a panic that nobody catches, not at one inside the library that the tokenizer catches.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| entry_points::tokenizer(bytes)
);
