//! Submits a chat request to the engine: prompt rendering, constraint, admission and response
//! stream, for all chat endpoints.

use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::answers::answer_stream::AnswerStream;
use crate::http::answers::reply::Reply;
use crate::http::app::App;
use crate::report::event::ReportEvent;
use crate::request::chat::ChatRequest;
use crate::request::ollama::DEFAULT_KEEP;
use crate::request::reader::Reader;
use crate::session::recorder::TurnRecorder;
use kvasir_chat::ParseOptions;
use serde_json::{Map, Value};
use std::{sync::Arc, time::SystemTime};

/// Submits a conversation. `param` is the endpoint's name of the conversation, for errors.
pub(crate) fn submit_chat(
    app: &Arc<App>,
    key: u64,
    request: &ChatRequest,
    param: &str,
) -> Result<Reply, ApiError> {
    submit_recorded(app, key, request, param, None)
}

/// Submits a conversation; with `recorder`, the single answer is also appended to a session.
pub(crate) fn submit_recorded(
    app: &Arc<App>,
    key: u64,
    request: &ChatRequest,
    param: &str,
    mut recorder: Option<TurnRecorder>,
) -> Result<Reply, ApiError> {
    let model = app.model.clone();
    app.model_names().check(request.model.as_deref())?;
    let prompt = model.bounded_chat_prompt(request).map_err(|error| match error.detail {
        Some(_) => ApiError { param: Some(param.to_owned()), ..error },
        None => error,
    })?;
    let sampling = &request.sampling;
    let constraint = model.chat_constraint(request, &prompt)?;
    if !constraint.loosened.is_empty() {
        let (context, schemas) = (RequestContext::current(), constraint.loosened);
        app.host.reports().send(ReportEvent::Loosened { context, schemas, at: SystemTime::now() });
    }
    let rendered = if request.verbose { Some(model.decode(&prompt)?) } else { None };
    let options = ParseOptions { constrained: constraint.calls, ..model.parse_options(request, &prompt) };
    let mut submission = app.submission(param, prompt, sampling, key)?;
    let marked = model.marked_prefixes(request, submission.request.prompt.len() as u32)?;
    app.pin(&mut submission.request, &marked);
    submission.request.params.constraint = constraint.constrained;
    let prompt_tokens = submission.request.prompt.len() as u64;
    let prompt = Arc::new(submission.request.prompt.clone());
    if let Some(recorder) = &mut recorder {
        recorder.bind(&mut submission.request);
    }
    let mut slot = app.assign_slot(sampling, &submission.request)?;
    let answers = app.submit(vec![submission], sampling.n)?;
    let stream = |answers| {
        let stream = AnswerStream::new(model.clone(), answers, options.clone(), sampling.output.clone());
        let stream = stream.recording(recorder.take()).with_slot(slot.take());
        let stream =
            if sampling.prompt_progress { stream.with_prompt_progress(prompt.len() as u32) } else { stream };
        if sampling.prompt_logprobs.is_some() { stream.with_prompt_logprobs(prompt.to_vec()) } else { stream }
    };
    let streams = answers.into_iter().map(stream).collect();
    let prompt_ids = if sampling.output.token_ids { vec![prompt.to_vec()] } else { Vec::new() };
    let reply = Reply::new(streams, sampling.n as usize, prompt_tokens).with_prompt_ids(prompt_ids);
    Ok(reply.with_marked(marked).with_rendered_prompt(rendered))
}

impl App {
    /// Submits one chat request in this process, with the fields, checks and parsing of
    /// `/v1/chat/completions`. Unknown fields are rejected.
    pub fn submit_chat(self: &Arc<Self>, body: &Map<String, Value>) -> Result<AnswerStream, ApiError> {
        let mut request = self.read_chat(body)?;
        request.sampling.context_shift = Some(DEFAULT_KEEP);
        let stream = submit_chat(self, 0, &request, "messages")?.into_streams().pop();
        stream.ok_or_else(|| ApiError::param("n", "must be 1"))
    }

    /// Prompt tokens of a chat request, which may exceed the context.
    pub fn count_chat_tokens(&self, body: &Map<String, Value>) -> Result<usize, ApiError> {
        Ok(self.model.chat_prompt(&self.read_chat(body)?)?.len())
    }

    fn read_chat(&self, body: &Map<String, Value>) -> Result<ChatRequest, ApiError> {
        let facts = &self.model.facts;
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        ChatRequest::read(&Reader::new(body, &ignored), &facts.sampling, facts.vocab)
    }
}
