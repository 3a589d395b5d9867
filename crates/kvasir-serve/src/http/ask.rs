use super::{App, reply::Reply, sessions::Note, speaker::Speaker};
use crate::{ApiError, aside::aside, request::ChatRequest};
use std::sync::Arc;

/// Hands a conversation to the engine, whichever endpoint it came through; `param` is what that endpoint calls the conversation.
pub(super) fn ask(app: &Arc<App>, key: u64, request: &ChatRequest, param: &str) -> Result<Reply, ApiError> {
    ask_noting(app, key, request, param, None)
}

/// The same; with a note the answer, of which there is one, is appended to a session.
pub(super) fn ask_noting(
    app: &Arc<App>,
    key: u64,
    request: &ChatRequest,
    param: &str,
    mut note: Option<Note>,
) -> Result<Reply, ApiError> {
    let model = app.model.clone();
    app.known_model(request.model.as_deref())?;
    let render = || model.chat_prompt(request);
    let prompt = if request.is_long() { aside(render) } else { render() }?;
    let (sampling, prompt_tokens) = (&request.sampling, prompt.len() as u64);
    let constraint = model.chat_constraint(request, &prompt)?;
    let reading = model.reading(request, &prompt);
    let scored = sampling.prompt_logprobs.map(|_| prompt.clone());
    let mut engine_request = app.engine_request(param, prompt, sampling, key)?;
    engine_request.params.constraint = constraint;
    if let Some(note) = &mut note {
        note.follow(&mut engine_request);
    }
    let answers = app.host.submit(vec![engine_request], sampling.n)?;
    let speaker = |answers| {
        let speaker = Speaker::new(model.clone(), answers, reading.clone()).noting(note.take());
        match &scored {
            Some(prompt) => speaker.scoring(prompt.clone()),
            None => speaker,
        }
    };
    Ok(Reply::new(answers.into_iter().map(speaker).collect(), sampling.n as usize, prompt_tokens))
}
