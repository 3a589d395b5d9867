//! Submits a chat request to the engine: prompt rendering, constraint, admission and response
//! stream, for all chat endpoints.

use crate::{
    answer::choice::Reading,
    context::{
        call::Call,
        ignored_fields::{IgnoredFields, UnknownFields},
    },
    error::ApiError,
    http::{
        answers::{answer_stream::Speaker, reply::Reply},
        app::App,
    },
    report::event::Told,
    request::{chat::ChatRequest, reader::Reader},
    session::recorder::Note,
};
use serde_json::{Map, Value};
use std::{sync::Arc, time::SystemTime};

/// Submits a conversation. `param` is the endpoint's name of the conversation, for errors.
pub(crate) fn ask(app: &Arc<App>, key: u64, request: &ChatRequest, param: &str) -> Result<Reply, ApiError> {
    ask_noting(app, key, request, param, None)
}

/// Submits a conversation; with `note`, the single answer is also appended to a session.
pub(crate) fn ask_noting(
    app: &Arc<App>,
    key: u64,
    request: &ChatRequest,
    param: &str,
    mut note: Option<Note>,
) -> Result<Reply, ApiError> {
    let model = app.model.clone();
    app.known_model(request.model.as_deref())?;
    let prompt = model.chat_prompt(request)?;
    let (sampling, prompt_tokens) = (&request.sampling, prompt.len() as u64);
    let constraint = model.chat_constraint(request, &prompt)?;
    if !constraint.loosened.is_empty() {
        let (call, schemas) = (Call::current(), constraint.loosened);
        app.host.reports().tell(Told::Loosened { call, schemas, at: SystemTime::now() });
    }
    let reading = Reading { constrained: constraint.calls, ..model.reading(request, &prompt) };
    let scored = sampling.prompt_logprobs.map(|_| prompt.clone());
    let mut order = app.order(param, prompt, sampling, key)?;
    order.request.params.constraint = constraint.constrained;
    if let Some(note) = &mut note {
        note.follow(&mut order.request);
    }
    let answers = app.submit(vec![order], sampling.n)?;
    let speaker = |answers| {
        let speaker = Speaker::new(model.clone(), answers, reading.clone()).noting(note.take());
        match &scored {
            Some(prompt) => speaker.scoring(prompt.clone()),
            None => speaker,
        }
    };
    Ok(Reply::new(answers.into_iter().map(speaker).collect(), sampling.n as usize, prompt_tokens))
}

impl App {
    /// Submits one chat request in this process, with the fields, checks and parsing of
    /// `/v1/chat/completions`. Unknown fields are rejected.
    pub fn talk(self: &Arc<Self>, body: &Map<String, Value>) -> Result<Speaker, ApiError> {
        let facts = &self.model.facts;
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        let request = ChatRequest::read(&Reader::new(body, &ignored), &facts.sampling, facts.vocab)?;
        let speaker = ask(self, 0, &request, "messages")?.into_speakers().pop();
        speaker.ok_or_else(|| ApiError::param("n", "must be 1"))
    }
}
