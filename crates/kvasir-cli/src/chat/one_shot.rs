//! One question on the command line: streams the answer to stdout, or prints it as JSON.
//!
//! Text on stdin, if it is not a terminal, is appended to the question: `kvasir chat --prompt "Sum up:" <
//! notes.txt`.

use crate::chat::conversation::{Conversation, user};
use crate::chat::screen::Screen;
use crate::chat::turn::{NoTurn, Turn};
use crate::chat::{Beginning, check_fields};
use crate::io::failure::Failure;
use kvasir_chat::Delta;
use kvasir_serve::{ApiError, http::App};
use serde_json::{Map, Value, json};
use std::{
    io::{self, IsTerminal, Read},
    process::ExitCode,
    sync::Arc,
};

/// Answers `prompt` and returns.
pub(crate) fn run(beginning: Beginning, prompt: &str, json: bool) -> Result<ExitCode, Failure> {
    let Beginning { start, system, mut fields, .. } = beginning;
    check_fields(&fields).map_err(Failure::usage)?;
    let mut question = prompt.to_owned();
    if !io::stdin().is_terminal() {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(|e| Failure::usage(format!("stdin: {e}")))?;
        if !text.trim().is_empty() {
            question = if question.is_empty() { text } else { format!("{question}\n\n{text}") };
        }
    }
    if question.trim().is_empty() {
        return Err(Failure::usage("--prompt is empty, and so is stdin"));
    }
    let mut conversation = Conversation::new(system.as_deref());
    conversation.push(user(&question));
    fields.insert("messages".into(), conversation.messages().into());
    let started = start(None)?;
    let app = started.app;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    if json {
        let answer = runtime.block_on(whole(&app, &fields)).map_err(|error| Failure::usage(error.message))?;
        println!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    match runtime.block_on(Turn::take(&app, &fields, &mut Screen::new(), None, started.prefill.as_ref())) {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(NoTurn::Refused(error)) => Err(Failure::usage(error.message)),
        Err(NoTurn::Screen(error)) => Err(Failure::failed(format!("stdout: {error}"))),
    }
}

/// The whole answer as one object.
async fn whole(app: &Arc<App>, fields: &Map<String, Value>) -> Result<Value, ApiError> {
    let mut stream = app.submit_chat(fields)?;
    let (mut content, mut reasoning, mut calls) =
        (String::new(), String::new(), Vec::<(String, String)>::new());
    let mut ended = None;
    while let Some(increment) = stream.next().await? {
        for delta in increment.deltas {
            match delta {
                Delta::Content(text) => content += &text,
                Delta::Reasoning(text) => reasoning += &text,
                Delta::CallBegin { name, .. } => calls.push((name, String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        ended = increment.ended;
    }
    let calls: Vec<Value> =
        calls.into_iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
    let mut answer = json!({"content": content, "tool_calls": calls});
    if !reasoning.is_empty() {
        answer["reasoning"] = reasoning.into();
    }
    if let Some(ended) = ended {
        answer["finish_reason"] = ended.reason.into();
        answer["usage"] = json!({
            "prompt_tokens": ended.prompt, "cached_tokens": ended.cached, "matched_tokens": ended.matched,
            "completion_tokens": ended.tokens, "reasoning_tokens": ended.reasoning,
        });
        if let Some(short) = ended.cache_end {
            answer["usage"]["cache_end"] = short.label().into();
        }
        answer["timings"] = json!({
            "ttft_seconds": ended.ttft.as_secs_f64(), "decode_seconds": ended.decode_time.as_secs_f64(),
        });
    }
    Ok(answer)
}
