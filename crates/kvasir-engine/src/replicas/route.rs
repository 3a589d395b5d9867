//! `Route`: the routing policies by name; `RouteRequest`: the router's view of a request;
//! `RouteError`: why no replica can be picked for it.

use crate::request::ids::SessionId;
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Routing policy over data-parallel replicas, as `--route` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// The next available replica for each request.
    RoundRobin,
    /// Fewest outstanding requests, then fewest prompt tokens.
    LeastRequests,
    /// Fewest outstanding prompt tokens, plus [`RouterConfig::request_weight`] per request.
    LeastTokens,
    /// The replica that holds the longest prefix of the prompt, unless it is overloaded.
    #[default]
    Prefix,
    /// The replica of the request's session, else the least loaded.
    Session,
}

impl Route {
    /// All policies.
    pub const ALL: &[Self] =
        &[Self::RoundRobin, Self::LeastRequests, Self::LeastTokens, Self::Prefix, Self::Session];

    /// The name on the command line (`--route`).
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::LeastRequests => "least-requests",
            Self::LeastTokens => "least-tokens",
            Self::Prefix => "prefix",
            Self::Session => "session",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: there is no routing policy of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRoute(pub String);

impl fmt::Display for UnknownRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Route::ALL.iter().map(|route| route.name()).collect();
        write!(f, "unknown route `{}`: expected one of {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownRoute {}

impl FromStr for Route {
    type Err = UnknownRoute;

    fn from_str(text: &str) -> Result<Self, UnknownRoute> {
        let found = Self::ALL.iter().find(|route| route.name() == text);
        found.copied().ok_or_else(|| UnknownRoute(text.to_owned()))
    }
}

/// Tolerated imbalance of load under [`Route::Prefix`]. A replica with more outstanding requests
/// than `max(least + requests, least * factor)` is not chosen for its prefix, where `least` is the
/// number of the least loaded replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Imbalance {
    /// Outstanding requests more than the least loaded replica has.
    pub requests: u64,
    /// Outstanding requests as a multiple of the least loaded replica's.
    pub factor: f64,
}

impl Default for Imbalance {
    fn default() -> Self {
        Self { requests: 8, factor: 1.5 }
    }
}

impl Imbalance {
    /// Maximum of outstanding requests of a replica that may be chosen for its prefix.
    pub(crate) fn max_requests(&self, least: u64) -> u64 {
        least.saturating_add(self.requests).max((least as f64 * self.factor) as u64)
    }
}

/// Configuration of a [`Router`](crate::Router).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterConfig {
    /// Policy.
    pub route: Route,
    /// Tokens that [`Route::LeastTokens`] adds per outstanding request.
    pub request_weight: u64,
    /// Tokens per block of the replicas' prefix caches, for [`Route::Prefix`].
    pub block_size: u32,
    /// Whether prefix hits end at checkpoints of recurrent states, for [`Route::Prefix`].
    pub hits_end_at_checkpoints: bool,
    /// The imbalance that [`Route::Prefix`] tolerates.
    pub imbalance: Imbalance,
    /// [`Route::Prefix`] routes a request to a replica that is still computing its prefix if the
    /// least loaded replica has at least this many outstanding requests. Under less load, computing
    /// the prefix on several replicas is faster than waiting for one.
    pub gather_at: u64,
}

impl RouterConfig {
    /// The default configuration of a policy.
    pub fn new(route: Route) -> Self {
        Self {
            route,
            request_weight: 0,
            block_size: 16,
            hits_end_at_checkpoints: false,
            imbalance: Imbalance::default(),
            gather_at: 24,
        }
    }
}

/// The properties of a request that routing depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteRequest<'a> {
    /// The prompt. May be empty if the policy is not [`Route::Prefix`].
    pub prompt: &'a [Token],
    /// Tokens that it adds to the load of its replica.
    pub tokens: u64,
    /// Prefix-cache salt.
    pub salt: u64,
    /// Its session.
    pub session: Option<SessionId>,
    /// The replica that it must run on.
    pub requested: Option<usize>,
}

impl<'a> RouteRequest<'a> {
    /// A request with this prompt, without a session or a requested replica.
    pub fn new(prompt: &'a [Token], salt: u64) -> Self {
        Self { prompt, tokens: prompt.len() as u64, salt, ..Self::default() }
    }
}

/// Why no replica can be picked for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// There is no replica with the requested index.
    UnknownReplica(usize),
    /// The requested replica is not available.
    Unavailable(usize),
    /// No replica is available.
    NoneAvailable,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownReplica(replica) => write!(f, "there is no replica `{replica}`"),
            Self::Unavailable(replica) => write!(f, "replica `{replica}` is not available"),
            Self::NoneAvailable => f.write_str("no replica is available"),
        }
    }
}

impl std::error::Error for RouteError {}
