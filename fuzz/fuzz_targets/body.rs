//! Fuzz target: arbitrary bytes as a request body.
#![no_main]

#[path = "../serve_entry_points.rs"]
mod serve_entry_points;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| serve_entry_points::body(bytes));
