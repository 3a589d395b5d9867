//! The built-in model: a GGUF file embedded in the binary. `model/` holds its training,
//! `docs/reference/built-in-model.md` its abilities.

use serde_json::{Value, json};

/// Its name.
pub const NAME: &str = "kvasir-mini";

/// Its default generation config: greedy, because sampling hurts such a small model.
pub(crate) fn generation_config() -> Value {
    json!({"temperature": 0})
}

/// Aligns the embedded file for SIMD loads.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Its GGUF file, 64-byte aligned.
pub(crate) const BYTES: &[u8] = {
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../kvasir-mini.gguf"));
    &FILE.0
};
