//! Any bytes as a safetensors file beside an empty config.
#![no_main]

use kvasir_formats::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let dir = std::env::temp_dir().join(format!("kvasir-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    if let Ok(model) = Checkpoint::open(&dir) {
        for t in model.tensors() {
            assert_eq!(t.bytes.len(), t.dtype.tensor_bytes(t.shape).unwrap());
            let _ = model.dense(t.name);
        }
    }
});
