//! Charges requests and tokens against the rate limit of an API key.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::access::AccessControl;
use crate::http::access::rate_limits::{Charge, RateLimit};
use crate::metrics::{Metrics, Rejected};
use std::time::Instant;

impl AccessControl {
    /// Fails with status 429 if the limit is exhausted. Sets the rate-limit headers of the response.
    pub(in crate::http) fn charge(
        &self,
        key: u64,
        charge: Charge,
        metrics: &Metrics,
    ) -> Result<(), ApiError> {
        let name = self.keys.name(key);
        let Some(taken) = self.rate_limits.take(key, name.as_deref(), charge, Instant::now()) else {
            return Ok(());
        };
        let (state, wait) = match taken {
            Ok(state) => (state, None),
            Err((state, wait)) => (state, Some(wait)),
        };
        RequestContext::current().set_rate(state.headers());
        let Some(wait) = wait else { return Ok(()) };
        metrics.reject(Rejected::KeyRate, metrics.of_key(key, name.as_deref()).as_deref());
        let seconds = wait.as_secs() as u32 + 1;
        let RateLimit { requests, tokens } = state.limit;
        let why = format!(
            "the key's rate is {requests} requests and {tokens} tokens per minute; try again in {seconds} s"
        );
        Err(ApiError { retry_after: Some(seconds), ..ApiError::too_many(why) })
    }
}
