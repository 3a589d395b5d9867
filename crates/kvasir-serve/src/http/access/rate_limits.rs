//! Rates per API key: requests and tokens per minute, as token buckets.
//!
//! A bucket holds at most a minute's worth and refills evenly. Every request with a body takes one
//! request before any work is done for it. An answer takes the tokens that admission counts: its
//! prompt, and the answer that it may expect. A request refused for its tokens stays counted, since
//! it was rendered and tokenized.

use crate::http::access::api_keys::Keys;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A key's limits per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per minute.
    pub requests: u64,
    /// Tokens per minute, of prompts and answers.
    pub tokens: u64,
}

/// Limits by the name of a key. Clones share the buckets.
#[derive(Clone, Debug, Default)]
pub struct RateLimits {
    /// Names of keys, `*` for all others, with their limits.
    rules: Vec<(String, RateLimit)>,
    /// By id of the key.
    buckets: Arc<Mutex<HashMap<u64, Buckets>>>,
}

/// What is left of a key's minute, for the headers `x-ratelimit-*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateState {
    pub(crate) limit: RateLimit,
    pub(crate) requests_left: u64,
    pub(crate) tokens_left: u64,
    /// Time until both buckets are full.
    pub(crate) requests_reset: Duration,
    pub(crate) tokens_reset: Duration,
}

impl RateState {
    /// The headers, as other servers have them.
    pub(crate) fn headers(&self) -> Vec<(&'static str, String)> {
        let seconds = |time: Duration| format!("{:.3}s", time.as_secs_f64());
        vec![
            ("x-ratelimit-limit-requests", self.limit.requests.to_string()),
            ("x-ratelimit-limit-tokens", self.limit.tokens.to_string()),
            ("x-ratelimit-remaining-requests", self.requests_left.to_string()),
            ("x-ratelimit-remaining-tokens", self.tokens_left.to_string()),
            ("x-ratelimit-reset-requests", seconds(self.requests_reset)),
            ("x-ratelimit-reset-tokens", seconds(self.tokens_reset)),
        ]
    }
}

/// What a request takes from its key's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
    requests: f64,
    tokens: f64,
    at: Instant,
}

/// The name of all keys without a limit of their own.
const ALL_OTHERS: &str = "*";

/// Whether a character separates two limits.
fn separates(c: char) -> bool {
    c == ';' || c.is_whitespace()
}

/// The first limit of a text with its name, and the text behind it.
fn first_rule(text: &str) -> Result<(String, RateLimit, &str), String> {
    let wrong = || format!("`{text}` is not NAME:REQUESTS,TOKENS; white space or `;` separates several");
    let (name, numbers) = text.split_once(':').ok_or_else(wrong)?;
    let (requests, behind) = numbers.split_once(',').ok_or_else(wrong)?;
    let behind = behind.trim_start();
    let (tokens, behind) = behind.split_at(behind.find(separates).unwrap_or(behind.len()));
    let number = |text: &str| text.trim().parse().ok().filter(|n| *n > 0).ok_or_else(wrong);
    let limit = RateLimit { requests: number(requests)?, tokens: number(tokens)? };
    let name = name.trim();
    if name.is_empty() || name.contains([',', ';']) {
        Err(wrong())
    } else {
        Ok((name.to_owned(), limit, behind))
    }
}

impl RateLimits {
    /// Parses limits as `NAME:REQUESTS,TOKENS` per minute, where NAME is a key's name, or `*` for all
    /// others. A text may hold several, separated by white space or `;`. A name has no `:`, `,` or `;`.
    pub fn parse(limits: &[String]) -> Result<Self, String> {
        let mut rules: Vec<(String, RateLimit)> = Vec::new();
        for text in limits {
            let mut rest = text.as_str();
            loop {
                let (name, limit, behind) = first_rule(rest)?;
                if rules.iter().any(|(other, _)| *other == name) {
                    return Err(format!("`{name}` has two limits"));
                }
                rules.push((name, limit));
                rest = behind.trim_start_matches(separates);
                if rest.is_empty() {
                    break;
                }
            }
        }
        Ok(Self { rules, ..Self::default() })
    }

    /// The names that none of these keys has; `*` is not one of them.
    pub fn unknown_names(&self, keys: &Keys) -> Vec<&str> {
        let names = self.rules.iter().map(|(name, _)| name.as_str());
        names.filter(|name| *name != ALL_OTHERS && !keys.has_name(name)).collect()
    }

    /// Takes `requests` requests and `tokens` tokens from a key's buckets. `None` for a key without a
    /// limit. On error nothing was taken; it says when to try again.
    pub(crate) fn take(
        &self,
        key: u64,
        name: Option<&str>,
        Charge { requests, tokens }: Charge,
        now: Instant,
    ) -> Option<Result<RateState, (RateState, Duration)>> {
        let named = |wanted: &str| self.rules.iter().find(|(of, _)| of == wanted).map(|(_, limit)| *limit);
        let limit = name.and_then(named).or_else(|| named(ALL_OTHERS))?;
        let (most_requests, most_tokens) = (limit.requests as f64, limit.tokens as f64);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket =
            buckets.entry(key).or_insert(Buckets { requests: most_requests, tokens: most_tokens, at: now });
        let minutes = now.saturating_duration_since(bucket.at).as_secs_f64() / 60.0;
        bucket.at = now;
        bucket.requests = (bucket.requests + minutes * most_requests).min(most_requests);
        bucket.tokens = (bucket.tokens + minutes * most_tokens).min(most_tokens);
        // A request that is larger than a minute's worth waits for a full bucket.
        let wanted = (tokens as f64).min(most_tokens);
        let wait = |lacks: f64, most: f64| Duration::from_secs_f64((lacks / most * 60.0).max(0.0));
        let requests = requests as f64;
        let lacks =
            wait(requests - bucket.requests, most_requests).max(wait(wanted - bucket.tokens, most_tokens));
        if lacks.is_zero() {
            bucket.requests -= requests;
            bucket.tokens -= wanted;
        }
        let state = RateState {
            limit,
            requests_left: bucket.requests as u64,
            tokens_left: bucket.tokens as u64,
            requests_reset: wait(most_requests - bucket.requests, most_requests),
            tokens_reset: wait(most_tokens - bucket.tokens, most_tokens),
        };
        Some(if lacks.is_zero() { Ok(state) } else { Err((state, lacks)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::access::api_keys::ApiKey;

    fn one_request(tokens: u64) -> Charge {
        Charge { requests: 1, tokens }
    }

    fn limits(text: &str) -> RateLimits {
        RateLimits::parse(&[text.to_owned()]).unwrap()
    }

    #[test]
    fn buckets_empty_and_refill() {
        let (limits, start) = (limits("*:2,100"), Instant::now());
        let take = |tokens, seconds| {
            limits.take(1, None, one_request(tokens), start + Duration::from_secs(seconds)).unwrap()
        };
        assert_eq!(take(60, 0).unwrap().tokens_left, 40);
        let (state, wait) = take(60, 0).unwrap_err();
        assert_eq!((state.requests_left, wait), (1, Duration::from_secs(12)), "nothing was taken");
        assert!(take(60, 12).is_ok() && take(1, 12).is_err(), "both requests are taken");
        assert!(take(100, 72).is_ok());
        // Other keys have buckets of their own.
        assert!(limits.take(2, None, one_request(100), start).unwrap().is_ok());
    }

    #[test]
    fn tokens_and_requests_are_taken_apart() {
        let (limits, start) = (limits("*:1,100"), Instant::now());
        let take = |requests, tokens| limits.take(1, None, Charge { requests, tokens }, start).unwrap();
        assert!(take(1, 0).is_ok() && take(0, 100).is_ok());
        assert!(take(1, 0).is_err() && take(0, 1).is_err());
    }

    #[test]
    fn a_request_beyond_a_minute_waits_for_a_full_bucket() {
        let (limits, start) = (limits("*:10,100"), Instant::now());
        assert!(limits.take(1, None, one_request(5000), start).unwrap().is_ok());
        assert!(limits.take(1, None, one_request(1), start).unwrap().is_err());
    }

    #[test]
    fn names_come_before_the_star() {
        let limits = RateLimits::parse(&["alice:5,10".into(), "*:1,2".into()]).unwrap();
        let limit = |key, name: Option<&str>| {
            limits.take(key, name, one_request(0), Instant::now()).unwrap().unwrap().limit.requests
        };
        assert_eq!((limit(1, Some("alice")), limit(2, Some("bob")), limit(3, None)), (5, 1, 1));
        assert!(self::limits("bob:1,1").take(1, Some("alice"), one_request(1), Instant::now()).is_none());
        for wrong in ["", "5,10", "a:5", "a:0,1", "a:x,1", ":1,1", "a:b:1,1", "a,b:1,1", "a:1,1,b:1,1"] {
            assert!(RateLimits::parse(&[wrong.to_owned()]).unwrap_err().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn white_space_or_a_semicolon_separates_limits() {
        for text in ["alice:1,10 bob:2,20", "alice:1,10;bob:2,20", " alice: 1, 10 ;\n bob:2,20; "] {
            let names = |rules: Vec<(String, RateLimit)>| {
                rules
                    .into_iter()
                    .map(|(name, limit)| (name, limit.requests, limit.tokens))
                    .collect::<Vec<_>>()
            };
            let expected = vec![("alice".to_owned(), 1, 10), ("bob".to_owned(), 2, 20)];
            assert_eq!(names(limits(text).rules), expected, "{text}");
        }
        assert_eq!(limits("two words:1,1").rules[0].0, "two words");
        for twice in [vec!["a:1,1", "a:2,2"], vec!["*:1,1 b:1,1 *:1,1"]] {
            let twice: Vec<String> = twice.into_iter().map(str::to_owned).collect();
            assert!(RateLimits::parse(&twice).unwrap_err().contains("has two limits"));
        }
    }

    #[test]
    fn names_without_a_key_are_found() {
        let key = |name: Option<&str>, secret: &str| ApiKey {
            name: name.map(str::to_owned),
            secret: secret.into(),
            is_admin: false,
        };
        let keys = Keys::new(vec![key(Some("alice"), "a"), key(None, "b")]);
        let unknown = |text: &str| limits(text).unknown_names(&keys).join(" ");
        assert_eq!(unknown("alice:1,1 *:1,1"), "");
        assert_eq!(unknown("dave:1,1 *:1,1 alice:1,1 carol:1,1"), "dave carol");
        assert_eq!(unknown("2:1,1"), "2", "numbers of logs are no names");
    }
}
