//! Builds, validates and submits engine requests.
//!
//! `App::submission` runs these steps: truncate the prompt, limit the answer, complete the engine
//! parameters, isolate the prefix cache, check, and count the tokens that admission charges.

use crate::context::clamped_limit::ClampedLimit;
use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::engine_thread::{Submission, TokenStream};
use crate::host::errors::refused;
use crate::http::access::rate_limits::Charge;
use crate::http::app::App;
use crate::request::completions::Prompt;
use crate::request::sampling::SamplingFields;
use kvasir_engine::{Params, Request};
use kvasir_kv::Token;
use std::hash::BuildHasher;

/// Answer tokens that admission charges for a request without `max_tokens`: few answers are as long
/// as the model allows.
const EXPECTED_ANSWER: u32 = 1024;

impl App {
    /// Builds the engine request: a prompt beyond the context is rejected, a maximum beyond it clamped.
    pub(super) fn submission(
        &self,
        param: &str,
        prompt: Vec<Token>,
        fields: &SamplingFields,
        key: u64,
    ) -> Result<Submission, ApiError> {
        let prompt = self.truncate(prompt, fields);
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if used == 0 {
            return Err(ApiError::param(param, format!("`{param}` has no token")));
        }
        let limit = self.answer_limit(param, used, fields)?;
        if fields.sampling.logprobs.is_some() || fields.prompt_logprobs.is_some() {
            self.model.chat.require_logits("probability")?;
        }
        let mut params = self.params(fields, limit, key)?;
        params.marks = self.model.message_ends(&prompt);
        let final_len = used.saturating_add(params.max_tokens);
        params.salt = self.prefix_salt(key, fields.cache_salt.as_deref(), final_len);
        // Checked before streaming starts, so that the error has an HTTP status.
        params.check().map_err(refused)?;
        let tokens = self.charged_tokens(used, &params, fields);
        Ok(Submission { request: Request { tag: 0, prompt, params }, tokens })
    }

    /// Keeps the last `truncate_prompt` prompt tokens; a negative value keeps what fits beside the
    /// answer.
    fn truncate(&self, mut prompt: Vec<Token>, fields: &SamplingFields) -> Vec<Token> {
        let longest = self.model.facts.max_len;
        if let Some(keep) = fields.truncate_prompt {
            let rest = longest.saturating_sub(fields.length.reserved(longest));
            let keep = u32::try_from(keep).unwrap_or(rest) as usize;
            prompt.drain(..prompt.len().saturating_sub(keep));
        }
        prompt
    }

    /// The context shift of the request, where the server allows one.
    fn context_shift(&self, fields: &SamplingFields) -> Option<u32> {
        fields.context_shift.filter(|_| self.model.facts.context_shift)
    }

    /// Maximum number of answer tokens after `used` prompt tokens. A larger maximum of the request is
    /// clamped, which the response's headers report.
    fn answer_limit(&self, param: &str, used: u32, fields: &SamplingFields) -> Result<u32, ApiError> {
        let (facts, length) = (&self.model.facts, &fields.length);
        let left = if self.context_shift(fields).is_some() {
            length.fit_shifting(param, used, facts.max_len)?
        } else {
            length.fit(param, used, facts.max_len)?
        };
        let limit = left.min(facts.max_new_tokens.unwrap_or(left).max(length.min_tokens));
        if let Some(requested) = length.max_tokens.filter(|requested| *requested > limit) {
            let clamped = ClampedLimit { field: length.field, requested, limit };
            RequestContext::current().clamped.record(clamped);
        }
        Ok(limit)
    }

    /// Engine parameters: those of the request, and what the server adds.
    fn params(&self, fields: &SamplingFields, limit: u32, key: u64) -> Result<Params, ApiError> {
        let mut params = fields.params(limit);
        if fields.seed.is_none() {
            params.sampling.seed = self.model.facts.seed.unwrap_or_else(|| self.random_u64());
        }
        params.chain =
            fields.samplers.as_ref().map(|samplers| self.model.sampler_chain(samplers)).transpose()?;
        params.context_shift = self.context_shift(fields);
        params.prediction = self.prediction(fields)?;
        params.eos = self.model.facts.eos.clone();
        params.key = key;
        params.priority = params.priority.min(self.rules.max_priority);
        Ok(params)
    }

    /// The tokens of a predicted output, if the drafter uses them; for another drafter, or for none,
    /// the field is recorded as ignored. A method that is not the server's is refused.
    fn prediction(&self, fields: &SamplingFields) -> Result<Vec<Token>, ApiError> {
        let (requested, drafter) = (&fields.speculation, self.model.facts.drafter);
        if let Some(method) = requested.method.as_deref().filter(|method| Some(*method) != drafter) {
            let why = match drafter {
                Some(own) => format!("method `{method}` is not that of this server, `{own}`"),
                None => format!("method `{method}`: this server runs without --spec"),
            };
            return Err(ApiError::param("speculation.method", why));
        }
        match drafter {
            _ if requested.prediction.is_empty() => Ok(Vec::new()),
            Some("suffix") if requested.max_tokens == Some(0) => Ok(Vec::new()),
            Some("suffix") => self.model.encode_prediction(&requested.prediction),
            _ => {
                RequestContext::current().ignored.record("prediction");
                Ok(Vec::new())
            }
        }
    }

    /// The salt isolates prefix caches by key: no hits, and no timing side channel, across keys.
    pub(super) fn prefix_salt(&self, key: u64, cache_salt: Option<&str>, final_len: u32) -> u64 {
        let facts = &self.model.facts;
        let of_model = (facts.prefix_salt)(final_len.min(facts.max_len));
        self.salt(key, cache_salt) << 1 | of_model
    }

    /// The hash of a key, the request's `cache_salt` and the key's erasure count; 0 without any.
    pub(super) fn salt(&self, key: u64, text: Option<&str>) -> u64 {
        match (key, text, self.erasures.of(key)) {
            (0, None, 0) => 0,
            all => self.random.hash_one(all),
        }
    }

    /// KV cache tokens that admission charges: prompt plus expected output.
    fn charged_tokens(&self, used: u32, params: &Params, fields: &SamplingFields) -> u64 {
        let most = params.max_tokens.min(self.model.facts.max_len - used);
        let expected = fields.length.max_tokens.map_or(most.min(EXPECTED_ANSWER), |_| most);
        u64::from(used) + u64::from(expected)
    }

    /// Submits requests of one key to the engine, each with `n` answers.
    pub(super) fn submit(&self, submissions: Vec<Submission>, n: u32) -> Result<Vec<TokenStream>, ApiError> {
        let sessions: Vec<_> =
            submissions.iter().filter_map(|submission| submission.request.params.session).collect();
        let tokens = submissions.iter().map(|submission| submission.tokens).sum::<u64>() * u64::from(n);
        if let Some(first) = submissions.first() {
            let charge = Charge { requests: 0, tokens };
            self.access.charge(first.request.params.key, charge, self.host.metrics())?;
        }
        let answers = self.host.submit(submissions, n)?;
        // A session deleted while its turn was prepared: the engine saw the deletion too early, so
        // it is repeated.
        let deleted = sessions.into_iter().filter(|id| !self.sessions.contains(*id));
        deleted.for_each(|id| self.host.end_session(id));
        Ok(answers)
    }

    /// Rejects a text prompt that cannot fit the context, unless it is to be truncated.
    pub(super) fn check_bytes(&self, param: &str, prompt: &Prompt, truncates: bool) -> Result<(), ApiError> {
        match prompt {
            Prompt::Text(text) if !truncates => self.model.check_bytes(param, text),
            Prompt::Sequence(parts) => {
                parts.iter().try_for_each(|part| self.check_bytes(param, part, truncates))
            }
            _ => Ok(()),
        }
    }

    /// The tokens of a prompt; `begins` prepends the BOS token.
    pub(super) fn ids(&self, prompt: &Prompt, begins: bool) -> Result<Vec<Token>, ApiError> {
        match prompt {
            Prompt::Text(text) => self.model.encode(text, begins),
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Sequence(parts) => {
                let parts = parts.iter().enumerate().map(|(i, part)| self.ids(part, begins && i == 0));
                Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
    }
}
