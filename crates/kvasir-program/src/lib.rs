//! Frozen programs: a short list of ops made once from an architecture's description and a checkpoint's config.
#![forbid(unsafe_code)]
