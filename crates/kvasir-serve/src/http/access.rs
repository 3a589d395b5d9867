//! Access rules of the server: API keys, CORS origins and host names.

use super::{auth::Keys, hosts::Hosts, origins::Origins};

/// Access rules of the server.
#[derive(Clone, Debug, Default)]
pub struct AccessControl {
    /// Accepted API keys.
    pub keys: Keys,
    /// Allowed CORS origins.
    pub origins: Origins,
    /// Accepted `host` names.
    pub hosts: Hosts,
}
