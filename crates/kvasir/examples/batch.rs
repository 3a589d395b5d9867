//! Generates answers to several prompts at once (continuous batching), and prints what each took:
//! `cargo run --release -p kvasir --example batch`.

use kvasir::{Kvasir, Options, Params};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut kvasir = Kvasir::built_in(Options::default())?;
    let questions = ["What is 23 + 58?", "What is the capital of Ghana?", "Sort these numbers: 9, 4, 7, 1"];
    let prompts = questions.map(|question| {
        let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
        (prompt, Params { max_tokens: 48, ..Params::default() })
    });
    for (question, answer) in questions.iter().zip(kvasir.generate_many(prompts)?) {
        println!("{question} {}", answer.text.unwrap_or_default());
        println!(
            "  {} prompt tokens, {} generated, {:?} to the first",
            answer.prompt,
            answer.ids.len(),
            answer.ttft
        );
    }
    Ok(())
}
