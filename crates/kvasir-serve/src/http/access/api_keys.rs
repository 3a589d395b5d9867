//! API key authentication.

use crate::error::ApiError;
use axum::http::{HeaderMap, header::AUTHORIZATION};

/// Accepted API keys; an empty list disables authentication.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<String>);

impl Keys {
    /// Accepts these keys.
    pub fn new(keys: Vec<String>) -> Self {
        Self(keys)
    }

    /// Whether authentication is disabled.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One-based index of the key that a request presents, or 0 if authentication is disabled.
    ///
    /// Constant time: every key is compared in full, so timing does not reveal a prefix.
    pub fn check(&self, headers: &HeaderMap) -> Result<u64, ApiError> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text(AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
        let presented = bearer.or_else(|| text("x-api-key")).unwrap_or_default();
        let found = self.0.iter().zip(1..).fold(0, |found, (key, number)| {
            if eq_constant_time(key.as_bytes(), presented.as_bytes()) { number } else { found }
        });
        match found {
            0 => Err(ApiError::unauthorized()),
            number => Ok(number),
        }
    }
}

/// Index of the authenticated API key, as a request extension.
#[derive(Clone, Copy)]
pub(crate) struct Caller(pub(crate) u64);

/// Constant-time comparison: the time depends on the lengths alone.
fn eq_constant_time(key: &[u8], presented: &[u8]) -> bool {
    let differ =
        (0..key.len()).fold(0, |differ, i| differ | key[i] ^ presented.get(i).copied().unwrap_or(!key[i]));
    std::hint::black_box(differ) == 0 && key.len() == presented.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&str], name: &'static str, value: &str) -> Result<u64, u16> {
        let keys = Keys::new(keys.iter().map(|key| key.to_string()).collect());
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        keys.check(&headers).map_err(|error| error.status)
    }

    #[test]
    fn only_whole_keys_authenticate() {
        assert_eq!(check(&[], "authorization", "x"), Ok(0));
        assert_eq!(check(&["abc", "def"], "authorization", "Bearer def"), Ok(2));
        assert_eq!(check(&["abc"], "x-api-key", "abc"), Ok(1));
        for wrong in ["Bearer ab", "Bearer abcd", "Bearer ", "abc", "bearer abc"] {
            assert_eq!(check(&["abc"], "authorization", wrong), Err(401), "{wrong}");
        }
    }
}
