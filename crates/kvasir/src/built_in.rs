//! The model that needs no download. How it came to be is in `model/`; what it can do, in `docs/built-in-model.md`.

/// What it is called.
pub const NAME: &str = "kvasir-mini";

/// The weights lie where vector loads like them.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Its GGUF file.
pub(crate) const BYTES: &[u8] = {
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../kvasir-mini.gguf"));
    &FILE.0
};
