//! Chats in the terminal: `cargo run --release -p kvasir --example chat -- [MODEL]`. The default is
//! the built-in model.

use kvasir::{Delta, Kvasir, Message, Options};
use std::{
    env,
    error::Error,
    io::{self, Write},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut kvasir = match env::args().nth(1) {
        Some(model) => Kvasir::load(model, Options::default())?,
        None => Kvasir::built_in(Options::default())?,
    };
    let mut messages = Vec::new();
    for question in io::stdin().lines() {
        messages.push(Message::user(question?));
        let mut stream = kvasir.chat(&messages).stream()?;
        for delta in stream.by_ref() {
            if let Delta::Content(text) = delta? {
                print!("{text}");
                io::stdout().flush()?;
            }
        }
        println!();
        messages.push(stream.finish()?.message());
    }
    Ok(())
}
