use super::{App, reply::Reply, speaker::Speaker};
use crate::{
    ApiError,
    answer::Reading,
    request::{ChatRequest, ResponseFormat, ToolChoice},
};
use std::sync::Arc;

/// Hands a conversation to the engine, whichever endpoint it came through; `param` is what that endpoint calls the conversation.
pub(super) fn ask(app: &Arc<App>, key: u64, request: &ChatRequest, param: &str) -> Result<Reply, ApiError> {
    let model = app.model.clone();
    app.known_model(request.model.as_deref())?;
    unsupported(request)?;
    let prompt = model.chat_prompt(request)?;
    let (sampling, prompt_tokens) = (&request.sampling, prompt.len() as u64);
    let engine_request = app.engine_request(param, prompt, sampling, key)?;
    let answers = app.host.submit(engine_request, sampling.n)?;
    let offers_tools = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
    let reading = Reading {
        stop: sampling.stop.clone(),
        calls: offers_tools,
        reasoning: model.reasoning,
        one_call: !request.parallel_tool_calls,
    };
    let speaker = |answers| Speaker::new(model.clone(), answers, reading.clone());
    Ok(Reply::new(answers.into_iter().map(speaker).collect(), sampling.n as usize, prompt_tokens))
}

/// What needs a grammar is refused until grammars are there.
fn unsupported(request: &ChatRequest) -> Result<(), ApiError> {
    if request.response_format != ResponseFormat::Text {
        return Err(ApiError::unsupported("response_format", "answers cannot be constrained to a form"));
    }
    match request.tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) => {
            Err(ApiError::unsupported("tool_choice", "a call cannot be enforced; use auto or none"))
        }
        ToolChoice::Auto | ToolChoice::None => Ok(()),
    }
}
