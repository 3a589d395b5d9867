//! `Route`: the routing policies by name; `RouteRequest`: what a router must know of a request;
//! `RouteError`: why it has no replica for it.

use crate::request::ids::SessionId;
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Routing policy over data-parallel replicas, as `--route` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// One replica after the other.
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
        write!(f, "unknown route `{}`: it is one of {}", self.0, names.join(", "))
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

/// How far the load of replicas may differ under [`Route::Prefix`]. A replica is not chosen for its
/// prefix while it has over `requests` outstanding requests more than the least loaded one, and also
/// over `factor` times as many.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Imbalance {
    /// Outstanding requests beyond those of the least loaded replica.
    pub requests: u64,
    /// Outstanding requests in multiples of those of the least loaded replica.
    pub factor: f64,
}

impl Default for Imbalance {
    fn default() -> Self {
        Self { requests: 8, factor: 1.5 }
    }
}

impl Imbalance {
    /// Most outstanding requests of a replica that may be chosen for its prefix.
    pub(crate) fn most(&self, least: u64) -> u64 {
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
    /// How far [`Route::Prefix`] may unbalance the replicas.
    pub imbalance: Imbalance,
    /// Outstanding requests of the least loaded replica from which [`Route::Prefix`] sends requests
    /// with a prefix that is being computed after it. With less load it is sooner computed by several
    /// replicas than waited for.
    pub gather_at: u64,
}

impl RouterConfig {
    /// Defaults of a policy.
    pub fn new(route: Route) -> Self {
        Self { route, request_weight: 0, block_size: 16, imbalance: Imbalance::default(), gather_at: 24 }
    }
}

/// What a router must know of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteRequest<'a> {
    /// The prompt. May be empty if the policy is not [`Route::Prefix`].
    pub prompt: &'a [Token],
    /// Prompt tokens that it adds to the load of its replica.
    pub tokens: u64,
    /// Prefix-cache salt.
    pub salt: u64,
    /// Its session.
    pub session: Option<SessionId>,
    /// The replica that it must run on.
    pub requested: Option<usize>,
}

impl<'a> RouteRequest<'a> {
    /// A request with this prompt, of no session and any replica.
    pub fn new(prompt: &'a [Token], salt: u64) -> Self {
        Self { prompt, tokens: prompt.len() as u64, salt, ..Self::default() }
    }
}

/// Why a request has no replica.
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
            Self::UnknownReplica(replica) => write!(f, "data_parallel_rank: no replica {replica}"),
            Self::Unavailable(replica) => {
                write!(f, "data_parallel_rank: replica {replica} is not available")
            }
            Self::NoneAvailable => f.write_str("no replica is available"),
        }
    }
}

impl std::error::Error for RouteError {}
