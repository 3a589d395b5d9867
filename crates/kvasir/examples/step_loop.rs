//! Drives the step loop by hand: requests are added while others run, and one is canceled:
//! `cargo run --release -p kvasir --example step_loop`.

use kvasir::{Kvasir, Options, Params};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut kvasir = Kvasir::built_in(Options::default())?;
    let prompt = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    let params = Params { max_tokens: 24, ..Params::default() };
    let first = kvasir.add_request(prompt("What is 12 + 30?"), &params)?;
    let canceled = kvasir.add_request(prompt("What is the capital of France?"), &params)?;
    let mut step = 0;
    while !kvasir.is_idle() {
        step += 1;
        for piece in kvasir.step()? {
            println!("step {step}: request {:?} {:?}", piece.request, piece.text);
        }
        match step {
            3 => drop(kvasir.add_request(prompt("What is 7 + 8?"), &params)?),
            5 => kvasir.cancel(canceled),
            _ => {}
        }
    }
    println!("{first:?} came first");
    Ok(())
}
