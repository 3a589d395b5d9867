//! Forks a conversation: two branches share the K/V of their common tokens. Then rewinds to ask
//! something else: `cargo run --release -p kvasir --example fork`.

use kvasir::{CacheKind, CacheOptions, Kvasir, Options, Params};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let kvasir = Kvasir::built_in(Options::default())?;
    let mut session = kvasir.session(CacheOptions::new(CacheKind::Paged).capacity(4096))?;
    let params = Params { max_tokens: 32, ..Params::default() };
    let main = session.main();
    session.append(main, "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n<|im_start|>assistant\n")?;
    let answer = session.generate(main, &params)?;
    println!("{}", answer.text.unwrap_or_default());
    let trunk = session.len(main)?;

    let branches = session.fork(main, 2)?;
    for (branch, question) in branches.iter().zip(["What is 2 + 2?", "What is the capital of Peru?"]) {
        let turn = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
        session.append(*branch, turn.as_str())?;
    }
    for answer in session.generate_all(&branches, &params)? {
        println!(
            "{} ({} of {} prompt tokens cached)",
            answer.text.unwrap_or_default(),
            answer.cached,
            answer.prompt
        );
    }

    session.rewind(branches[0], trunk)?;
    session.append(branches[0], "<|im_start|>user\nWhat is 9 - 4?<|im_end|>\n<|im_start|>assistant\n")?;
    let answer = session.generate(branches[0], &params)?;
    println!("{} (after a rewind to {trunk} tokens)", answer.text.unwrap_or_default());
    Ok(())
}
