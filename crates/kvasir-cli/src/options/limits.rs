//! Options of `serve` for limits: requests, tokens, rates, connections and times.

use kvasir_serve::host::AdmissionLimits;

/// Limits beyond which requests and connections get 429 or 503.
#[derive(clap::Args, Clone)]
pub(crate) struct LimitArgs {
    /// Maximum open requests, running and queued; further ones get 429
    #[arg(long, default_value_t = 1024, env = "KVASIR_MAX_REQUESTS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_requests: u32,
    /// Maximum open requests per API key [default: no further limit]
    #[arg(long, env = "KVASIR_MAX_REQUESTS_PER_KEY", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_requests_per_key: Option<u32>,
    /// Maximum tokens of open requests, prompts and answers together; further ones get 429 [default: eight pools]
    #[arg(long, env = "KVASIR_MAX_REQUEST_TOKENS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_request_tokens: Option<u64>,
    /// Requests and tokens per minute of an API key by its name in --api-key-file, * for all others: NAME:REQUESTS,TOKENS; may be given several times; further requests get 429
    #[arg(long, env = "KVASIR_RATE_LIMIT", value_name = "NAME:REQUESTS,TOKENS")]
    pub(crate) rate_limit: Vec<String>,
    /// Largest `priority` that requests get, with --order priority [default: no limit]
    #[arg(long, env = "KVASIR_MAX_PRIORITY", value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_priority: Option<i32>,
    /// Maximum open connections; further ones get 503
    #[arg(long, default_value_t = 4096, env = "KVASIR_MAX_CONNECTIONS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// Maximum open connections per client address, or IPv6 network of 64 bits; this machine's are not limited [default: half of --max-connections]
    #[arg(long, env = "KVASIR_MAX_CONNECTIONS_PER_PEER", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections_per_peer: Option<u32>,
    /// Timeout in seconds for reading a request, for writing to a slow client, and for idle connections
    #[arg(long, default_value_t = 30, env = "KVASIR_CLIENT_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) client_timeout: u32,
    /// Seconds without a completed step, while requests are open, after which /health fails; with --dp, an engine that completes no step for this time (at least 3 s) is killed, and its requests continue on another engine
    #[arg(long, default_value_t = 120, env = "KVASIR_STEP_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) step_timeout: u32,
}

impl LimitArgs {
    /// Admission limits for a pool of `slots` and sequences of at most `max_len` tokens.
    pub(crate) fn admission_limits(&self, slots: u32, max_len: u32, key_shares: bool) -> AdmissionLimits {
        let answers = self.max_requests as usize;
        AdmissionLimits {
            answers,
            answers_per_key: self.max_requests_per_key.map_or(answers, |n| n as usize),
            // A request of maximum length always fits.
            tokens: self.max_request_tokens.unwrap_or(8 * u64::from(slots)).max(max_len.into()),
            key_shares,
        }
    }
}
