//! Sequences, policies and the step loop: everything that decides.
#![forbid(unsafe_code)]
