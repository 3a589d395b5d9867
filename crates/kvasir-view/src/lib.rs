//! The drawing of steps, slots and timings: one script and style, in saved pages and live.
#![forbid(unsafe_code)]
