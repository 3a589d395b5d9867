//! Serves several async tasks from one engine. Any executor will do; this example uses that of
//! `futures`: `cargo run --release -p kvasir --example async_tasks`.

use futures_util::{StreamExt, future::join_all};
use kvasir::{Delta, Error, Kvasir, Message, Options, Service};

async fn ask(service: &Service, question: &str) -> Result<String, Error> {
    let messages = [Message::user(question)];
    let mut stream = service.chat(&messages).stream()?;
    let mut text = String::new();
    while let Some(delta) = StreamExt::next(&mut stream).await {
        if let Delta::Content(content) = delta? {
            text += &content;
        }
    }
    Ok(text)
}

fn main() -> Result<(), Error> {
    let service = Kvasir::built_in(Options::default())?.into_service()?;
    let questions = ["What is 23 + 58?", "What is the capital of Ghana?", "Sort these numbers: 9, 4, 7, 1"];
    let answers = join_all(questions.iter().map(|question| ask(&service, question)));
    for (question, answer) in questions.iter().zip(futures_executor::block_on(answers)) {
        println!("{question} {}", answer?);
    }
    Ok(())
}
