//! The built-in model, a GGUF file embedded in the binary, its multi-token-prediction (MTP) layer and
//! its EAGLE-3 head. `model/` holds their training, `docs/reference/built-in-model.md` their abilities.

use kvasir_formats::{Checkpoint, Error};
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

/// Its MTP layer, apart from the GGUF file, which engines without MTP layers for Qwen3 read too.
pub(crate) fn mtp() -> Result<Checkpoint, Error> {
    static TENSORS: &Aligned<[u8]> = &Aligned(*include_bytes!("../kvasir-mini-mtp/model.safetensors"));
    let config = include_str!("../kvasir-mini-mtp/config.json");
    Checkpoint::built_in("kvasir-mini-mtp", config, &TENSORS.0)
}

/// Its EAGLE-3 head.
pub(crate) fn eagle3() -> Result<Checkpoint, Error> {
    static TENSORS: &Aligned<[u8]> = &Aligned(*include_bytes!("../kvasir-mini-eagle3/model.safetensors"));
    let config = include_str!("../kvasir-mini-eagle3/config.json");
    Checkpoint::built_in("kvasir-mini-eagle3", config, &TENSORS.0)
}
