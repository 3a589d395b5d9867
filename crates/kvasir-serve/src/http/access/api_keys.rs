//! API key authentication, with names for logs and a list that can be replaced while serving.

use crate::error::ApiError;
use crate::metrics::per_key::RESERVED_LABELS;
use axum::http::{HeaderMap, header::AUTHORIZATION};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

/// Accepted API keys; an empty list disables authentication. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Keys(Arc<RwLock<KeyList>>);

/// An API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Name for logs.
    pub name: Option<String>,
    /// What clients send.
    pub secret: String,
    /// Whether it opens `/metrics` and shows the requests of all keys.
    pub is_admin: bool,
}

impl ApiKey {
    /// Parses a file of keys: one per line, as `NAME: KEY` or `KEY`, with `admin` behind an admin's.
    /// A comment begins with `#`, at the start of a line or behind white space. Returns each key with its
    /// line, from 1. Errors name the line.
    pub fn parse_file(text: &str) -> Result<Vec<(usize, Self)>, String> {
        let lines = text.lines().map(|line| without_comment(line).trim()).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty());
        let key = |(at, line): (usize, &str)| {
            let (name, secret) = match line.split_once(':') {
                Some((name, secret)) => (Some(name.trim().to_owned()), secret.trim()),
                None => (None, line),
            };
            let (secret, is_admin) = match secret.split_once(char::is_whitespace) {
                Some((secret, mark)) if mark.trim() == "admin" => (secret, true),
                _ => (secret, false),
            };
            if let Some(label) = name.as_deref().filter(|name| RESERVED_LABELS.contains(name)) {
                return Err(format!(
                    "line {} names a key `{label}`, a label that metrics reserve for keys without a name or beyond the label limit; choose another name",
                    at + 1
                ));
            }
            let is_plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
            if secret.is_empty() || !is_plain || name.as_deref() == Some("") {
                return Err(format!(
                    "line {} is neither `NAME: KEY` nor `KEY`, nor one with `admin`",
                    at + 1
                ));
            }
            Ok((at + 1, Self { name, secret: secret.to_owned(), is_admin }))
        };
        lines.map(key).collect()
    }
}

/// A line up to its comment.
fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    line.match_indices('#').find(begins).map_or(line, |(at, _)| &line[..at])
}

#[derive(Debug, Default)]
struct KeyList {
    /// Accepted keys, each with its id.
    accepted: Vec<(u64, ApiKey)>,
    /// Ids of all keys that were ever accepted: a key keeps its id, and so its sessions, when the
    /// list is replaced.
    ids: HashMap<String, u64>,
}

impl Keys {
    /// Accepts these keys.
    pub fn new(keys: Vec<ApiKey>) -> Self {
        let list = Self::default();
        list.replace(keys);
        list
    }

    /// Accepts these keys from now on. Running requests of others go on.
    pub fn replace(&self, keys: Vec<ApiKey>) {
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let KeyList { accepted, ids } = &mut *list;
        *accepted = keys
            .into_iter()
            .map(|key| {
                let next = ids.len() as u64 + 1;
                (*ids.entry(key.secret.clone()).or_insert(next), key)
            })
            .collect();
    }

    /// Whether authentication is disabled.
    pub fn is_empty(&self) -> bool {
        self.read(|list| list.accepted.is_empty())
    }

    /// Id of the key that a request presents, from 1, or 0 if authentication is disabled.
    ///
    /// Constant time: every key is compared in full, so timing does not reveal a prefix.
    pub fn check(&self, headers: &HeaderMap) -> Result<u64, ApiError> {
        self.read(|list| {
            if list.accepted.is_empty() {
                return Ok(0);
            }
            let presented = presented(headers);
            let found = list.accepted.iter().fold(0, |found, (id, key)| {
                if eq_constant_time(key.secret.as_bytes(), presented.as_bytes()) { *id } else { found }
            });
            if found == 0 { Err(ApiError::unauthorized()) } else { Ok(found) }
        })
    }

    /// Whether an accepted key is an admin's.
    pub fn is_admin(&self, id: u64) -> bool {
        self.read(|list| list.accepted.iter().any(|(of, key)| *of == id && key.is_admin))
    }

    /// Whether any accepted key is an admin's.
    pub fn has_admin(&self) -> bool {
        self.read(|list| list.accepted.iter().any(|(_, key)| key.is_admin))
    }

    /// Number of accepted keys.
    pub fn count(&self) -> usize {
        self.read(|list| list.accepted.len())
    }

    /// Name of an accepted key, if it has one.
    pub fn name(&self, id: u64) -> Option<String> {
        self.read(|list| list.accepted.iter().find(|(of, _)| *of == id).and_then(|(_, key)| key.name.clone()))
    }

    /// Whether an accepted key has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.read(|list| list.accepted.iter().any(|(_, key)| key.name.as_deref() == Some(name)))
    }

    fn read<T>(&self, with: impl FnOnce(&KeyList) -> T) -> T {
        with(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The key that a request presents: a bearer token, or `x-api-key`.
fn presented(headers: &HeaderMap) -> &str {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let bearer = text(AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| text("x-api-key")).unwrap_or_default()
}

/// Whether a request presents this key.
pub(crate) fn presents(headers: &HeaderMap, key: &str) -> bool {
    eq_constant_time(key.as_bytes(), presented(headers).as_bytes())
}

/// Id of the authenticated API key, as a request extension.
#[derive(Clone, Copy)]
pub(crate) struct Caller(pub(crate) u64);

/// Whether the caller may see the requests of all keys, as a request extension.
#[derive(Clone, Copy)]
pub(crate) struct SeesAll(pub(crate) bool);

impl SeesAll {
    /// Rejects other callers.
    pub(crate) fn check(self) -> Result<(), ApiError> {
        if self.0 { Ok(()) } else { Err(ApiError::unauthorized()) }
    }
}

/// Constant-time comparison: the time depends on the lengths alone.
fn eq_constant_time(key: &[u8], presented: &[u8]) -> bool {
    let differ =
        (0..key.len()).fold(0, |differ, i| differ | key[i] ^ presented.get(i).copied().unwrap_or(!key[i]));
    std::hint::black_box(differ) == 0 && key.len() == presented.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> ApiKey {
        ApiKey { name: None, secret: secret.to_owned(), is_admin: false }
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    fn check(keys: &[&str], name: &'static str, value: &str) -> Result<u64, u16> {
        let keys = Keys::new(keys.iter().map(|secret| key(secret)).collect());
        keys.check(&headers(name, value)).map_err(|error| error.status)
    }

    #[test]
    fn only_whole_keys_authenticate() {
        assert_eq!(check(&[], "authorization", "x"), Ok(0));
        assert_eq!(check(&["abc", "def"], "authorization", "Bearer def"), Ok(2));
        assert_eq!(check(&["abc"], "authorization", "bearer abc"), Ok(1));
        assert_eq!(check(&["abc"], "x-api-key", "abc"), Ok(1));
        for wrong in ["Bearer ab", "Bearer abcd", "Bearer ", "abc", "Basic abc"] {
            assert_eq!(check(&["abc"], "authorization", wrong), Err(401), "{wrong}");
        }
    }

    #[test]
    fn a_replaced_list_keeps_the_ids_of_its_keys() {
        let keys = Keys::new(vec![key("a"), key("b")]);
        let id = |secret: &str| keys.check(&headers("x-api-key", secret)).ok();
        assert_eq!((id("a"), id("b")), (Some(1), Some(2)));
        keys.replace(vec![ApiKey { name: Some("carol".into()), ..key("c") }, key("b")]);
        assert_eq!((id("a"), id("b"), id("c")), (None, Some(2), Some(3)));
        assert_eq!((keys.name(3), keys.name(2)), (Some("carol".into()), None));
    }

    #[test]
    fn files_have_a_key_per_line() {
        let text = "# team\nalice: sk-1\n\n  sk-2  # until May\nops: sk-3  admin # two: words\n\t# x\nsk#4\n";
        let named = ApiKey { name: Some("alice".into()), ..key("sk-1") };
        let admin = ApiKey { name: Some("ops".into()), is_admin: true, ..key("sk-3") };
        let all = vec![(2, named), (4, key("sk-2")), (5, admin), (7, key("sk#4"))];
        assert_eq!(ApiKey::parse_file(text), Ok(all));
        for (wrong, line) in [("a: ", 1), ("ok\n: x", 2), ("two words", 1), ("a: admin b", 1)] {
            assert!(ApiKey::parse_file(wrong).unwrap_err().starts_with(&format!("line {line} ")), "{wrong}");
        }
    }

    #[test]
    fn reserved_metric_labels_are_no_key_names() {
        for name in ["others", "unnamed"] {
            let why = ApiKey::parse_file(&format!("alice: sk-1\n{name}: sk-2")).unwrap_err();
            assert!(why.starts_with("line 2 ") && why.contains(name), "{why}");
        }
    }
}
