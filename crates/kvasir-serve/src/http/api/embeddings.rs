//! OpenAI `/v1/embeddings`: an L2-normalized vector per input: the last token's hidden state, or
//! the pooled vector of an encoder.
//!
//! Each input runs as a one-token request through the engine; its hidden state is returned beside
//! the token. Requests to encoders end without a token.

use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::http::answers::json_answer::{AnswerMemory, JsonAnswer};
use crate::http::answers::single_token::{self, SingleToken};
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::completions::Prompt;
use crate::request::embeddings::{EmbeddingsRequest, Encoding};
use crate::request::fields::EMBEDDINGS;
use crate::work_pool::fair_queue::Cost;
use axum::{extract::Request, extract::State};
use futures_util::{StreamExt, TryStreamExt, stream};
use kvasir_kv::Token;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

/// `{"input", "encoding_format"?}` → per input a unit vector: the normalized hidden state of its
/// last token.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<JsonAnswer, ApiError> {
    let (key, body) = read_body(&app, request, EMBEDDINGS).await?;
    let cost = body.cost();
    let requested = EmbeddingsRequest::read(&body.reader(), app.model.facts.vocab)?;
    drop(body);
    let encoding = requested.encoding;
    let Embedded { vectors, tokens, memory } = embed_all(&app, key, cost, requested).await?;
    let entry =
        |(index, vector)| Entry { object: "embedding", index, embedding: Vector { vector, encoding } };
    let list = List {
        object: "list",
        model: app.model.name.clone(),
        data: vectors.into_iter().enumerate().map(entry).collect(),
        usage: json!({"prompt_tokens": tokens, "total_tokens": tokens}),
    };
    JsonAnswer::collected(&app, memory, list).await
}

/// The response.
#[derive(Serialize)]
struct List {
    object: &'static str,
    model: String,
    data: Vec<Entry>,
    usage: Value,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector, written while the response is serialized: as text it takes several times its memory.
pub(crate) struct Vector {
    pub(crate) vector: Vec<f32>,
    pub(crate) encoding: Encoding,
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.encoding {
            // As f64, in which clients read numbers: equal to those of the other encoding.
            Encoding::Float => serializer.collect_seq(self.vector.iter().map(|x| f64::from(*x))),
            Encoding::Base64 => {
                let bytes: Vec<u8> = self.vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                serializer.serialize_str(&base64(&bytes))
            }
        }
    }
}

/// Vectors of the inputs of a request.
#[derive(Default)]
pub(crate) struct Embedded {
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub(crate) tokens: u64,
    /// What the vectors are charged.
    pub(crate) memory: AnswerMemory,
}

/// The similarity of two unit vectors: their cosine, -1 to 1.
pub(crate) fn similarity(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The unit vectors of all inputs.
pub(crate) async fn embed_all(
    app: &Arc<App>,
    key: u64,
    cost: Cost,
    requested: EmbeddingsRequest,
) -> Result<Embedded, ApiError> {
    app.model_names().check(requested.model.as_deref())?;
    app.model.chat.require_logits("embedding")?;
    app.model.require_embeddings()?;
    let width = app.model.facts.hidden.unwrap_or_default();
    let dimensions = requested.dimensions.unwrap_or(width);
    if dimensions > width {
        let why = format!("`dimensions` must be at most {width}, the length of this model's vectors");
        return Err(ApiError::param("dimensions", why));
    }
    let mut memory = AnswerMemory::default();
    memory.charge(requested.inputs.len() * dimensions as usize * size_of::<f32>())?;
    let submissions = app.run_work(cost, move |app| submissions(app, &requested, key)).await?;
    let at_once = single_token::at_once(app, &submissions);
    let vectors: Vec<(Vec<f32>, u32)> = stream::iter(submissions)
        .map(|submission| embed(app, submission, dimensions as usize))
        .buffered(at_once)
        .try_collect()
        .await?;
    let tokens = vectors.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
    Ok(Embedded { vectors: vectors.into_iter().map(|(vector, _)| vector).collect(), tokens, memory })
}

/// Builds all orders first, so that an invalid input is rejected before anything is computed.
fn submissions(app: &App, requested: &EmbeddingsRequest, key: u64) -> Result<Vec<Submission>, ApiError> {
    let mut fields = single_token::single_token(requested.sampling.clone());
    fields.sampling.hidden = true;
    let one = |(i, input)| {
        let param = requested.param;
        let name = if requested.inputs.len() == 1 { param.to_owned() } else { format!("{param}[{i}]") };
        app.check_bytes(&name, input, requested.truncate).map_err(ApiError::for_embedding_input)?;
        let ids = app.ids(input, true).map_err(|error| ApiError { param: Some(name.clone()), ..error });
        let mut ids = ids?;
        if requested.truncate {
            truncate(app, input, &mut ids);
        }
        app.model.check_text_len(&name, &ids)?;
        if ids.is_empty() {
            return Err(ApiError::param(&name, format!("`{name}` has no token")));
        }
        app.submission(&name, ids, &fields, key).map_err(ApiError::for_embedding_input)
    };
    requested.inputs.iter().enumerate().map(one).collect()
}

/// Truncates an input to the context length. A text keeps its final special token, such as `[SEP]`.
fn truncate(app: &App, input: &Prompt, ids: &mut Vec<Token>) {
    let max_tokens = app.model.facts.max_len as usize - 1;
    let is_text = matches!(input, Prompt::Text(_));
    let end = ids.last().copied().filter(|last| is_text && app.model.chat.tokenizer().is_special(*last));
    if ids.len() <= max_tokens {
        return;
    }
    ids.truncate(max_tokens);
    if let (Some(end), Some(last)) = (end, ids.last_mut()) {
        *last = end;
    }
}

/// The vector of one input, and its number of tokens.
async fn embed(
    app: &Arc<App>,
    submission: Submission,
    dimensions: usize,
) -> Result<(Vec<f32>, u32), ApiError> {
    let SingleToken { hidden: mut state, prompt_tokens, .. } = single_token::run(app, submission).await?;
    // The leading part of a vector is what models trained for it (Matryoshka) shorten to.
    state.truncate(dimensions);
    Ok((unit(state)?, prompt_tokens))
}

/// L2 normalization: `v / |v|`.
fn unit(mut vector: Vec<f32>) -> Result<Vec<f32>, ApiError> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length == 0.0 || !length.is_finite() {
        return Err(ApiError::failed("the input has no direction: its hidden state is zero or no number"));
    }
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    Ok(vector)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | group.get(i).map_or(0, |byte| usize::from(*byte)));
        for place in 0..4 {
            // `n` bytes fill `n + 1` digits.
            let digit = DIGITS[bits >> (18 - 6 * place) & 63];
            text.push(if place <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_examples() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}\u{fe}", "w7/Dvg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn vectors_are_normalized_or_refused() {
        assert_eq!(unit(vec![3.0, 0.0, -4.0]), Ok(vec![0.6, 0.0, -0.8]));
        assert!(unit(vec![1e30, 1e30]).is_ok_and(|v| (v[0] - 0.5f32.sqrt()).abs() < 1e-6));
        assert!(unit(vec![0.0; 3]).is_err() && unit(vec![f32::NAN]).is_err() && unit(vec![]).is_err());
    }
}
