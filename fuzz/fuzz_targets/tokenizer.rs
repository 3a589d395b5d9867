//! Any bytes as a `tokenizer.json`.
#![no_main]

use kvasir_formats::{TextStream, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        let ids = tokenizer.encode("Hello wörld 123\n <s>", true).unwrap_or_default();
        let _ = tokenizer.decode(&ids, false);
        let mut stream = TextStream::new(true);
        ids.iter().for_each(|&id| drop(stream.push(&tokenizer, id)));
        stream.finish();
    }
});
