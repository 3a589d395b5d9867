//! Scores text pairs with a cross-encoder: query and document form one sequence, and the score is
//! the sigmoid of the only logit of the classification head.

use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::http::answers::single_token::{self, SingleToken};
use crate::http::api::text_pairs::{PairScores, TextPairs};
use crate::http::app::App;
use crate::model::encoder::EncoderFacts;
use crate::request::sampling::SamplingFields;
use crate::work_pool::fair_queue::Cost;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// The scores of all pairs. All sequences are built first, so that an invalid one is rejected
/// before any is computed.
pub(super) async fn by_cross_encoder(
    app: &Arc<App>,
    key: u64,
    cost: Cost,
    encoder: EncoderFacts,
    pairs: Arc<TextPairs>,
) -> Result<PairScores, ApiError> {
    if encoder.labels != 1 {
        let why = format!("this model has {} labels; ranking needs a model with one", encoder.labels);
        return Err(ApiError::param("model", why));
    }
    let submissions = app.run_work(cost, move |app| {
        let mut fields = single_token::single_token(SamplingFields::default());
        fields.sampling.hidden = true;
        let submission = |(document, query): (&String, &String)| {
            let pair = app.model.encode_pair(query, document)?;
            let mut submission = app.submission("documents", pair.ids, &fields, key)?;
            submission.request.params.second_text_start = pair.second_text_start;
            Ok(submission)
        };
        pairs.iter().map(submission).collect::<Result<Vec<_>, ApiError>>()
    });
    let submissions = submissions.await?;
    let at_once = single_token::at_once(app, &submissions);
    let scored: Vec<(f64, u32)> = stream::iter(submissions)
        .map(|submission| score(app, submission))
        .buffered(at_once)
        .try_collect()
        .await?;
    let prompt_tokens = scored.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
    Ok(PairScores { scores: scored.into_iter().map(|(score, _)| score).collect(), prompt_tokens })
}

/// The score of one pair, and its number of tokens.
async fn score(app: &Arc<App>, submission: Submission) -> Result<(f64, u32), ApiError> {
    let SingleToken { hidden, prompt_tokens, .. } = single_token::run(app, submission).await?;
    let [logit] = hidden[..] else { return Err(ApiError::failed("the engine returned no score")) };
    Ok((1.0 / (1.0 + (-f64::from(logit)).exp()), prompt_tokens))
}
