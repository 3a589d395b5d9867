//! Startup messages of `kvasir serve`: forecast, summary, addresses of streams, and access warnings.

use crate::chat::statistics::plural;
use crate::commands::serve::Args;
use crate::config::holds_secrets;
use crate::doctor::forecast::Forecast;
use crate::options::reports::{log, log_info, log_warning};
use crate::startup::ready_engine::EngineFacts;
use crate::startup::{OnForecast, Started};
use clap::Command;
use kvasir_serve::{
    host::AdmissionLimits,
    http::Keys,
    report::{Level, Reports},
};
use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Logs the forecast of memory and speed.
pub(super) fn forecast_logger(reports: Arc<Reports>) -> OnForecast {
    Box::new(move |forecast: &Forecast| {
        let fields = vec![
            ("stored_bytes", forecast.stored.into()),
            ("free_bytes", forecast.free.into()),
            ("kv_tokens", forecast.division.as_ref().map(|division| division.slots).into()),
            ("first_token_s", forecast.first_token.map(|(_, seconds)| seconds).into()),
        ];
        let level = if forecast.fits() == Some(false) { Level::Warn } else { Level::Info };
        log(&reports, level, &forecast.to_string(), fields);
    })
}

/// Logs the addresses of each engine's streams: KV events, their replay, and loads. Warns if other
/// hosts can reach the KV events.
pub(super) fn log_streams(
    reports: &Reports,
    kv_events: &[(SocketAddr, Option<SocketAddr>)],
    loads: &[SocketAddr],
) {
    for (rank, (events, replay)) in kv_events.iter().enumerate() {
        let replay = replay.map_or_else(String::new, |replay| format!(", replay at tcp://{replay}"));
        log_info(reports, &format!("KV events of engine {rank} at tcp://{events}{replay}"), Vec::new());
    }
    for (rank, loads) in loads.iter().enumerate() {
        log_info(reports, &format!("loads of engine {rank} at tcp://{loads}"), Vec::new());
    }
    if kv_events.iter().any(|(events, _)| !events.ip().is_loopback()) {
        let warning = "--kv-events: every host that reaches this address can read the tokens of all prompts";
        log_warning(reports, warning);
    }
}

impl Args {
    /// Warns about exposed files of keys, and about a network address without keys.
    pub(super) fn log_access_warnings(&self, reports: &Reports, exposed: &[PathBuf], keys: &Keys) {
        for path in exposed {
            let path = path.display();
            let warning = format!("{path} holds keys, and every user of this machine can read it: chmod o-r");
            log_warning(reports, &warning);
        }
        if !self.host.is_loopback() && keys.is_empty() {
            let warning = "without API keys, every host that reaches this address can use the model; \
                           --api-key or --api-key-file demand one";
            log_warning(reports, warning);
        }
    }

    /// Two startup log lines: compute and KV cache; access and limits.
    pub(super) fn summary(&self, started: &Started, keys: &Keys, peer_connections: usize) -> [String; 2] {
        let EngineFacts { slots, memory, max_len, kv, packed_bytes, shared_bytes, arithmetic, .. } =
            &started.facts;
        let (slots, max_len, engines) = (*slots, *max_len, self.fleet.replicas());
        let computes = match engines {
            Some(1) => format!("1 process of {arithmetic}"),
            Some(engines) => format!("{engines} processes, each of {arithmetic}"),
            None => arithmetic.clone(),
        };
        let computes = match self.fleet.ranks() {
            1 => computes,
            ranks => format!("{computes} and {ranks} ranks"),
        };
        let computes = if self.fleet.expert_parallel() {
            format!("{computes} and a part of the experts")
        } else {
            computes
        };
        let packed = match (*packed_bytes - *shared_bytes, *shared_bytes) {
            (0, 0) => String::new(),
            (0, shared) => format!("; weights {:.2} GB, shared", shared as f64 / 1e9),
            (private, 0) if engines.is_some() => {
                format!("; weights {:.2} GB in each process", private as f64 / 1e9)
            }
            (_, 0) => String::new(),
            (private, shared) => format!(
                "; weights {:.2} GB, shared, and {:.2} GB in each process",
                shared as f64 / 1e9,
                private as f64 / 1e9
            ),
        };
        let cap = if memory.is_capped { ", capped by default (--kv-capacity N)" } else { "" };
        let gigabytes = memory.kv_bytes() as f64 / 1e9;
        let states = memory.states.map_or_else(String::new, |states| format!("; {states}"));
        let windows = memory.windows.iter().map(|window| format!("; {window}")).collect::<String>();
        let joined = memory.joined_windows.map_or_else(String::new, |reason| {
            format!("; sliding-window layers store K and V of all tokens: {reason}")
        });
        let computes = format!(
            "{computes}{packed}; K and V as {kv}, {gigabytes:.2} GB{cap}{windows}{joined}{states}; \
             contexts of up to {max_len} tokens"
        );
        let key_count = match (keys.count() as u64, keys.has_admin()) {
            (0, _) => "no API keys".into(),
            (count @ 2.., true) => format!("{count} API keys with an admin's"),
            (count, _) => plural(count, "API key"),
        };
        let tls = if self.tls_cert.is_some() { "TLS" } else { "no TLS" };
        let all_slots = slots.saturating_mul(engines.unwrap_or(1));
        let AdmissionLimits { answers, tokens, .. } =
            self.limits.admission_limits(all_slots, max_len, self.options.shares_by_key());
        let limits = format!(
            "{tls}, {key_count}; at most {answers} requests with {tokens} tokens, {} connections, {peer_connections} per peer",
            self.limits.max_connections
        );
        [computes, limits]
    }

    /// Files of keys that every user of this machine can read.
    pub(super) fn exposed_files(&self, config: Option<&Path>, definition: &Command) -> Vec<PathBuf> {
        let is_open =
            |path: &&Path| std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0);
        let config = config.filter(|path| holds_secrets(definition, path));
        let others = [self.key_args.api_key_file.as_deref(), self.tls_key.as_deref()];
        [config].into_iter().chain(others).flatten().filter(is_open).map(Path::to_owned).collect()
    }
}
