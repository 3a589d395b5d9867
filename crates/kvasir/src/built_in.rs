//! The model that needs no download. How it came to be is in `model/`; what it can do, in `docs/built-in-model.md`.

use serde_json::{Value, json};

/// What it is called.
pub const NAME: &str = "kvasir-mini";

/// How it answers where a request leaves that open: so small a model is right far more often than its dice are.
pub(crate) fn generation_config() -> Value {
    json!({"temperature": 0})
}

/// The weights lie where vector loads like them.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Its GGUF file.
pub(crate) const BYTES: &[u8] = {
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../kvasir-mini.gguf"));
    &FILE.0
};
