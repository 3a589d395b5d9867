//! Any bytes as a GGUF file: opening, its tokenizer, its tensors.
#![no_main]

use kvasir_formats::{Checkpoint, Tokenizer, gguf::Gguf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("kvasir-fuzz-{}.gguf", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    if let Ok(gguf) = Gguf::open(&path) {
        for t in gguf.tensors() {
            assert_eq!(gguf.bytes(t).len(), t.dtype.tensor_bytes(&t.shape).unwrap());
        }
        if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
            let ids = tokenizer.encode("Hello wörld 123\n", true).unwrap_or_default();
            let _ = tokenizer.decode(&ids, false);
        }
        let _ = Checkpoint::of_gguf(gguf.into());
    }
});
