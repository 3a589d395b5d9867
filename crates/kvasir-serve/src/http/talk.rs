//! In-process chat without a socket, used by `kvasir chat`: same validation and output parsing as
//! the HTTP API.

use super::{App, ask::ask, speaker::Speaker};
use crate::{
    ApiError,
    request::{ChatRequest, IgnoredFields, Reader, UnknownFields},
};
use serde_json::{Map, Value};
use std::sync::Arc;

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
