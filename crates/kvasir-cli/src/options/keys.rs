//! API keys of the server: options, the file of named keys, and its reload.
//!
//! A key is given once: under one name and with one kind of rights.

// Layering exception: `plural` words the chat's statistics, and one message of this file.
use crate::chat::statistics::plural;
use crate::io::failure::Failure;
use crate::options::reports::{log_info, log_warning};
use kvasir_serve::{
    http::{ApiKey, Keys, RateLimits, TlsFiles},
    report::Reports,
};
use std::{path::PathBuf, sync::Arc};
use tokio::signal;

/// API keys, given or in a file.
#[derive(clap::Args, Clone)]
pub(crate) struct KeyArgs {
    /// API key that clients must send, on every route except /live, /ping and the page; may be given several times
    #[arg(long, env = "KVASIR_API_KEY", hide_env_values = true, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,
    /// API key of an administrator, which also opens /metrics and shows the steps of all keys' requests; may be given several times
    #[arg(long, env = "KVASIR_ADMIN_KEY", hide_env_values = true, value_name = "KEY", value_delimiter = ',')]
    admin_key: Vec<String>,
    /// File of API keys, one per line as NAME: KEY or KEY, with a last word `admin` for an administrator's; logs show the name; SIGHUP reloads it
    #[arg(long, env = "KVASIR_API_KEY_FILE", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Key that opens /metrics and the steps of all requests, and nothing else; API keys then do not open /metrics
    #[arg(long, env = "KVASIR_METRICS_KEY", hide_env_values = true, value_name = "KEY")]
    metrics_key: Option<String>,
}

/// API keys, each with the option that it is from.
#[derive(Default)]
struct PlacedKeys(Vec<(String, ApiKey)>);

impl PlacedKeys {
    /// Adds a key. A repetition changes nothing; the same key under another name or with other rights is
    /// refused, because the server could not tell which of them a request presents.
    fn add(&mut self, place: String, key: ApiKey) -> Result<(), Failure> {
        match self.0.iter().find(|(_, other)| other.secret == key.secret) {
            None => self.0.push((place, key)),
            Some((_, same)) if *same == key => {}
            Some((first, _)) => {
                return Err(Failure::usage(format!(
                    "{place}: this key is given by {first} too, with another name or other rights; give it once"
                )));
            }
        }
        Ok(())
    }
}

impl KeyArgs {
    /// The metrics key.
    pub(crate) fn metrics_key(&self) -> Result<Option<String>, Failure> {
        let key = self.metrics_key.as_deref().map(|key| key.trim().to_owned());
        if key.as_deref() == Some("") {
            return Err(Failure::usage("--metrics-key: the key is empty"));
        }
        Ok(key)
    }

    /// The keys of `--api-key`, `--admin-key` and `--api-key-file`.
    pub(crate) fn keys(&self) -> Result<Vec<ApiKey>, Failure> {
        let mut keys = PlacedKeys::default();
        for (option, list, is_admin) in
            [("--api-key", &self.api_key, false), ("--admin-key", &self.admin_key, true)]
        {
            for (i, key) in list.iter().enumerate() {
                let secret = key.trim().to_owned();
                if secret.is_empty() {
                    return Err(Failure::usage(format!("{option}: key {} is empty", i + 1)));
                }
                keys.add(option.to_owned(), ApiKey { name: None, secret, is_admin })?;
            }
        }
        if let Some(file) = &self.api_key_file {
            let fail = |why: String| Failure::usage(format!("--api-key-file {}: {why}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|e| fail(e.to_string()))?;
            let named = ApiKey::parse_file(&text).map_err(fail)?;
            if named.is_empty() {
                return Err(Failure::usage(format!("--api-key-file {}: holds no key", file.display())));
            }
            for (line, key) in named {
                keys.add(format!("--api-key-file {} line {line}", file.display()), key)?;
            }
        }
        if let Some(secret) = self.metrics_key()?
            && let Some((place, _)) = keys.0.iter().find(|(_, key)| key.secret == secret)
        {
            return Err(Failure::usage(format!(
                "--metrics-key: this key is given by {place} too, with other rights; give another one"
            )));
        }
        Ok(keys.0.into_iter().map(|(_, key)| key).collect())
    }

    /// Reads keys and certificates again on every SIGHUP. A file that cannot be read changes nothing.
    pub(crate) async fn reload(
        &self,
        hangups: std::io::Result<signal::unix::Signal>,
        access: Access,
        reports: Arc<Reports>,
    ) {
        let Access { keys, rate_limits, tls } = access;
        // Without a handler, nothing is ever reloaded.
        let Ok(mut hangups) = hangups else { return std::future::pending().await };
        while hangups.recv().await.is_some() {
            match self.keys() {
                Ok(list) => {
                    let count = list.len();
                    keys.replace(list);
                    let message = format!("{} reloaded", plural(count as u64, "API key"));
                    log_info(&reports, &message, vec![("keys", count.into())]);
                    for name in rate_limits.unknown_names(&keys) {
                        log_warning(&reports, &unknown_limit(name));
                    }
                }
                Err(failure) => log_warning(&reports, &format!("API keys are unchanged: {failure}")),
            }
            match tls.as_ref().map(TlsFiles::reload) {
                None => {}
                Some(Ok(())) => log_info(&reports, "certificates reloaded", Vec::new()),
                Some(Err(why)) => log_warning(&reports, &format!("certificates are unchanged: {why}")),
            }
        }
    }
}

/// What is replaced or checked on SIGHUP.
pub(crate) struct Access {
    pub(crate) keys: Keys,
    pub(crate) rate_limits: RateLimits,
    pub(crate) tls: Option<TlsFiles>,
}

/// Says that a rate limit applies to no key.
pub(crate) fn unknown_limit(name: &str) -> String {
    format!(
        "--rate-limit {name}: no key has this name; --api-key-file names keys (NAME: KEY), and * limits all others"
    )
}
