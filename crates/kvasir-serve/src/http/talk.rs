use super::{App, ask::ask, speaker::Speaker};
use crate::{
    ApiError,
    request::{ChatRequest, IgnoredFields, Reader, UnknownFields},
};
use serde_json::{Map, Value};
use std::sync::Arc;

impl App {
    /// Begins one answer to a chat in this process: the same fields, checks and reading as over HTTP, without a socket.
    pub fn talk(self: &Arc<Self>, body: &Map<String, Value>) -> Result<Speaker, ApiError> {
        let facts = &self.model.facts;
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        let request = ChatRequest::read(&Reader::new(body, &ignored), &facts.sampling, facts.vocab)?;
        let speaker = ask(self, 0, &request, "messages")?.into_speakers().pop();
        speaker.ok_or_else(|| ApiError::param("n", "must be 1"))
    }
}
