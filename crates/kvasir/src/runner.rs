//! Runs an engine in the caller's thread: requests in, detokenized pieces out.

use crate::answer::{Answer, Piece};
use crate::backend::AnyExecutor;
use crate::error::Error;
use crate::model::Model;
use crate::prompt::Prompt;
use kvasir_engine::{Engine, EventOutput, Finish, Params, RequestId, Turn};
use kvasir_exec::TokenLogprobs;
use kvasir_formats::TextStream;
use kvasir_kv::Token;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// An engine with its model's tokenizer.
pub(crate) struct Runner {
    pub(crate) model: Arc<Model>,
    pub(crate) engine: Engine<AnyExecutor>,
    running: HashMap<RequestId, Running>,
    /// Pieces not taken yet.
    pieces: VecDeque<Piece>,
}

/// Accumulated output of a running request.
struct Running {
    ids: Vec<Token>,
    logprobs: Vec<TokenLogprobs>,
    text: String,
    stream: TextStream,
}

impl Runner {
    pub(crate) fn new(model: Arc<Model>, engine: Engine<AnyExecutor>) -> Self {
        Self { model, engine, running: HashMap::new(), pieces: VecDeque::new() }
    }

    /// Queues a request. Without `params.eos`, the model's end-of-sequence tokens apply.
    pub(crate) fn add(&mut self, prompt: Prompt, params: &Params) -> Result<RequestId, Error> {
        let ids = self.model.ids(prompt, true)?;
        let mut params = params.clone();
        if params.eos.is_empty() {
            params.eos.clone_from(&self.model.eos);
        }
        let request = self.model.loaded.request(ids, params)?;
        let added = self.engine.add_request(request);
        if added.is_err() {
            // The caller receives the refusal directly, so its outbox event is discarded.
            self.collect();
        }
        let id = added.map_err(Error::Refused)?;
        let stream = TextStream::continuing(true);
        self.running
            .insert(id, Running { ids: Vec::new(), logprobs: Vec::new(), text: String::new(), stream });
        Ok(id)
    }

    /// Runs one engine step and collects its output.
    pub(crate) fn turn(&mut self) -> Result<Turn, Error> {
        let turn = self.engine.step();
        self.collect();
        turn.map_err(|exit| Error::Failed(exit.to_string()))
    }

    /// Whether no request is queued or running and no piece is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.engine.core().is_idle() && self.pieces.is_empty()
    }

    /// Aborts a request and drops its pending pieces.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.running.remove(&id);
        self.engine.abort(id);
        self.collect();
        self.pieces.retain(|piece| piece.request != id);
    }

    /// Ends a request and returns what it has generated.
    pub(crate) fn stop(&mut self, id: RequestId) -> Option<Answer> {
        self.engine.abort(id);
        self.collect();
        let end = self.pieces.iter().find(|piece| piece.request == id && piece.answer.is_some());
        let answer = end.and_then(|piece| piece.answer.clone());
        self.cancel(id);
        answer.map(|answer| Answer { reason: Finish::StopText, ..answer })
    }

    /// Takes all pending pieces.
    pub(crate) fn take_all(&mut self) -> Vec<Piece> {
        self.pieces.drain(..).collect()
    }

    /// Takes the oldest pending piece of a request.
    fn take(&mut self, id: RequestId) -> Option<Piece> {
        let at = self.pieces.iter().position(|piece| piece.request == id)?;
        self.pieces.remove(at)
    }

    /// Runs the engine until a request has a piece. Pieces of other requests stay pending.
    pub(crate) fn next(&mut self, id: RequestId) -> Result<Piece, Error> {
        loop {
            if let Some(piece) = self.take(id) {
                return Ok(piece);
            }
            if self.turn()? == Turn::Idle && self.pieces.iter().all(|piece| piece.request != id) {
                return Err(Error::Failed("the engine stopped without an answer".into()));
            }
        }
    }

    /// Runs requests to completion; returns their answers.
    pub(crate) fn answers(&mut self, ids: &[RequestId]) -> Result<Vec<Answer>, Error> {
        let whole = |id: &RequestId| loop {
            if let Some(answer) = self.next(*id)?.answer {
                return Ok(answer);
            }
        };
        ids.iter().map(whole).collect()
    }

    /// Converts the outbox into pieces.
    fn collect(&mut self) {
        let outbox = self.engine.core_mut().outbox();
        for EventOutput { event, tokens: ids, logprobs, summary, .. } in outbox.iter() {
            let Some(running) = self.running.get_mut(&event.request) else { continue };
            running.logprobs.extend(logprobs.iter().map(|(_, logprobs)| logprobs.clone()));
            running.ids.extend_from_slice(ids);
            let mut text = match &self.model.tokenizer {
                Some(tokenizer) => ids.iter().map(|id| running.stream.push(tokenizer, *id)).collect(),
                None => String::new(),
            };
            if summary.is_some() {
                text.push_str(&running.stream.finish());
            }
            running.text.push_str(&text);
            let answer = summary.and_then(|summary| {
                let Running { ids, logprobs, text, .. } = self.running.remove(&event.request)?;
                Some(Answer::new(summary, ids, self.model.tokenizer.as_ref().map(|_| text), logprobs))
            });
            self.pieces.push_back(Piece { request: event.request, ids: ids.to_vec(), text, answer });
        }
        outbox.clear();
    }
}
