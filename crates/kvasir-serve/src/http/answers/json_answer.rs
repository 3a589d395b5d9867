//! JSON responses that are built as a whole, charged to the budget of answers.
//!
//! What is collected (`AnswerMemory`) and the text that is written from it are charged before they
//! exist. The text stays charged until the connection has sent it or is dropped, so answers that
//! clients do not read count, too. A text of more than [`LARGE`] bytes is written on the work pool.

use crate::error::ApiError;
use crate::http::app::App;
use crate::memory_budget::{ANSWERS, HeldMemory};
use crate::work_pool::fair_queue::Cost;
use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use std::{io, sync::Arc};

/// Collected bytes from which an answer is written on the work pool.
const LARGE: usize = 64 << 10;
/// Bytes of JSON that are charged at a time.
const CHARGED_AT_ONCE: usize = 256 << 10;

/// Memory of what an answer collects before it is written.
#[derive(Debug)]
pub(crate) struct AnswerMemory {
    memory: HeldMemory,
    bytes: usize,
}

impl Default for AnswerMemory {
    fn default() -> Self {
        Self { memory: ANSWERS.hold(), bytes: 0 }
    }
}

impl AnswerMemory {
    /// Charges further bytes. Fails with 503 when the budget is used up.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.memory.grow_to(self.bytes.saturating_add(bytes))?;
        self.bytes += bytes;
        Ok(())
    }
}

/// A JSON text, with its share of the budget.
pub(crate) struct JsonAnswer {
    text: Vec<u8>,
    memory: HeldMemory,
    /// The refusal of the budget, behind an error of the serializer.
    refusal: Option<ApiError>,
}

impl JsonAnswer {
    /// Serializes a value on this thread, which belongs to the work pool unless the value is small.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self, ApiError> {
        let mut answer = Self { text: Vec::new(), memory: ANSWERS.hold(), refusal: None };
        match serde_json::to_writer(&mut answer, value) {
            Ok(()) => Ok(answer),
            Err(error) => Err(answer.refusal.unwrap_or_else(|| ApiError::failed(error.to_string()))),
        }
    }

    /// Serializes what was collected under `memory`; on the work pool if it is large.
    pub(crate) async fn collected<T: Serialize + Send + 'static>(
        app: &Arc<App>,
        memory: AnswerMemory,
        value: T,
    ) -> Result<Self, ApiError> {
        if memory.bytes < LARGE {
            return Self::of(&value);
        }
        app.run_work(Cost::Light, move |_| {
            let _memory = memory;
            Self::of(&value)
        })
        .await
    }
}

impl io::Write for JsonAnswer {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        // The vector doubles; its unused half is never touched.
        let charged = (self.text.len() + part.len()).next_multiple_of(CHARGED_AT_ONCE);
        if let Err(refusal) = self.memory.grow_to(charged) {
            self.refusal = Some(refusal);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.text.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for JsonAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl IntoResponse for JsonAnswer {
    fn into_response(mut self) -> Response {
        self.text.shrink_to_fit();
        self.memory.shrink_to(self.text.len());
        // The buffer owns the share, and drops it once the socket has taken the last byte.
        let body = Body::from(Bytes::from_owner(self));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
