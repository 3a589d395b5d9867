//! Access rules of the server: API keys and their rates, CORS origins and host names.
//!
//! Knows no route; middleware applies them.

pub(crate) mod api_keys;
mod charge;
pub(crate) mod hosts;
pub(crate) mod origins;
pub(crate) mod rate_limits;

use crate::http::access::{api_keys::Keys, hosts::Hosts, origins::Origins, rate_limits::RateLimits};

/// Access rules of the server.
#[derive(Clone, Debug, Default)]
pub struct AccessControl {
    /// Accepted API keys.
    pub keys: Keys,
    /// Allowed CORS origins.
    pub origins: Origins,
    /// Accepted `host` names.
    pub hosts: Hosts,
    /// Key of `/metrics` and all steps, and of nothing else.
    pub metrics_key: Option<String>,
    /// Whether `/health`, `/ready` and `/version` need no key.
    pub open_health: bool,
    /// Rates of the keys.
    pub rate_limits: RateLimits,
}
