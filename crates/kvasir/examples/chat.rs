//! Streams one answer: `cargo run --release -p kvasir --example chat -- "What is 7 + 8?" [MODEL]`.
//!
//! Without MODEL the built-in one answers; its prompts are written in ChatML.

use kvasir::{Kvasir, Options, Params};
use std::{env, error::Error, io::Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let question = args.next().unwrap_or_else(|| "What is 7 + 8?".to_owned());
    let mut kvasir = match args.next() {
        Some(model) => Kvasir::load(model, Options::default())?,
        None => Kvasir::built_in(Options::default())?,
    };
    let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let params = Params { max_tokens: 64, ..Params::default() };
    for piece in kvasir.stream(prompt, &params)? {
        print!("{}", piece?.text);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
