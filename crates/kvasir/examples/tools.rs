//! Calls a tool, sends its result back, and generates JSON under a schema:
//! `cargo run --release -p kvasir --example tools -- MODEL`, with a model trained to call tools.

use kvasir::{Kvasir, Message, Options, Shape, Tool, ToolChoice};
use serde_json::{Value, json};
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let mut kvasir = match env::args().nth(1) {
        Some(model) => Kvasir::load(model, Options::default())?,
        None => Kvasir::built_in(Options::default())?,
    };
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Lima", "Accra"]}},
        "required": ["city"],
    });
    let weather = Tool::function("weather", "Returns the weather of a city.", parameters);
    let mut messages = vec![Message::user("What is the weather in Lima?")];
    let answer = kvasir.chat(&messages).tools([weather]).tool_choice(ToolChoice::Required).answer()?;
    messages.push(answer.message());
    for call in &answer.calls {
        println!("calls {} {}", call.name, call.arguments);
        messages.push(Message::result(&call.id, "18 degrees, cloudy".into()));
    }

    let schema = json!({
        "type": "object",
        "properties": {"degrees": {"type": "integer"}, "sky": {"enum": ["clear", "cloudy"]}},
        "required": ["degrees", "sky"],
        "additionalProperties": false,
    });
    let answer = kvasir.chat(&messages).format(Shape::JsonSchema(schema)).answer()?;
    let weather: Value = serde_json::from_str(&answer.content)?;
    println!("{} degrees, {}", weather["degrees"], weather["sky"]);
    Ok(())
}
