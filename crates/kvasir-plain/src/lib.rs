//! The plain backend: f32 and explicit masks only. The example of how little a backend needs, and the oracle for the others.
#![forbid(unsafe_code)]
