//! Fuzz target: arbitrary text as a grammar.
#![no_main]

#[path = "../serve_entry_points.rs"]
mod serve_entry_points;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| serve_entry_points::grammar(bytes));
