//! Per-request context (request id, API key index, route, trace parent), stored as a task-local
//! value.
//!
//! Handlers do not pass it on: `RequestContext::current` reads it anywhere within the request's
//! task.

use crate::context::clamped_limit::ClampRecord;
use crate::context::connection_cut::ConnectionCut;
use crate::context::ignored_fields::IgnoredFields;
use std::{
    future::Future,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
};

/// Context of one HTTP request, for logs and traces. Never holds prompt text.
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    /// Request id, returned as `x-request-id`.
    pub id: String,
    /// Id of the API key, from 1; 0 without keys.
    pub key: u64,
    /// Name of the API key, if it has one.
    pub key_name: Option<String>,
    /// Address of the client, or of the proxy in front of it.
    pub client: Option<IpAddr>,
    /// The path of the request.
    pub route: String,
    /// W3C trace context: trace id and parent span id.
    pub parent: Option<(u128, u64)>,
    /// Names of ignored fields of the body.
    pub ignored: IgnoredFields,
    /// The clamped maximum of its answers.
    pub clamped: ClampRecord,
    /// Response headers that say what is left of the key's rate.
    pub rate: Arc<Mutex<Vec<(&'static str, String)>>>,
    /// Set when the client has left: long computations for it end.
    pub gone: Arc<AtomicBool>,
    /// Closes the connection of a client that reads too slowly.
    pub(crate) connection: Arc<ConnectionCut>,
}

/// Accounting unit of request work and memory: an API key or, without one, a client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    Key(u64),
    Address(Option<IpAddr>),
}

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

impl RequestContext {
    /// Runs `work` with this context as the task-local context.
    pub(crate) async fn scope<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Runs `work` on this thread with this context as the current one.
    pub(crate) fn scope_sync<T>(self: Arc<Self>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }

    /// The current context; a blank one outside of any request.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT.try_with(Arc::clone).unwrap_or_default()
    }

    /// The tenant of the request.
    pub(crate) fn tenant(&self) -> Tenant {
        if self.key == 0 { Tenant::Address(self.client) } else { Tenant::Key(self.key) }
    }

    /// Sets the response headers of the key's rate.
    pub(crate) fn set_rate(&self, headers: Vec<(&'static str, String)>) {
        *self.rate.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }

    /// Takes the response headers of the key's rate.
    pub(crate) fn take_rate(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.rate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Parses trace id and span id of a W3C `traceparent` header.
    pub(crate) fn parse_parent(header: &str) -> Option<(u128, u64)> {
        let mut parts = header.trim().split('-');
        let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, n| text.len() == n && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(span, 16) {
            return None;
        }
        let ids = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        (ids.0 != 0 && ids.1 != 0).then_some(ids)
    }
}

/// Accepts a client-supplied id if it is safe in headers and logs: at most 128 plain ASCII
/// characters.
pub(crate) fn sane_id(text: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (!text.is_empty() && text.len() <= 128 && text.chars().all(plain)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_follows_w3c() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            RequestContext::parse_parent(good),
            Some((0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331))
        );
        for bad in [
            "",
            "00-0-0-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b7169203331-01",
        ] {
            assert_eq!(RequestContext::parse_parent(bad), None, "{bad}");
        }
    }

    #[test]
    fn unsafe_request_ids_are_rejected() {
        assert_eq!(sane_id("req-1_a.b:c"), Some("req-1_a.b:c"));
        assert!(sane_id("").is_none() && sane_id("a b").is_none() && sane_id("a\nb").is_none());
        assert!(sane_id(&"x".repeat(129)).is_none());
    }
}
