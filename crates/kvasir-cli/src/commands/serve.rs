//! `kvasir serve`: HTTP server options, startup, listeners and graceful shutdown.

use crate::commands::serve::shutdown::{shutdown_signal, stopped_message, stopping_message};
use crate::commands::serve::startup_log::{forecast_logger, log_streams};
use crate::commands::{CommandLine, tokenizer, worker};
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::client_rules::ClientRuleArgs;
use crate::options::fleet::FleetArgs;
use crate::options::host::host;
use crate::options::keys::{Access, KeyArgs, unknown_limit};
use crate::options::kv_events::KvEventArgs;
use crate::options::limits::LimitArgs;
use crate::options::model::ModelArgs;
use crate::options::reports::{ReportArgs, log_info, log_warning};
use crate::options::rules::rule;
use crate::options::sampling::SamplingArgs;
use crate::options::sampling_defaults::SamplingDefaults;
use crate::startup::ready_engine::EngineFacts;
use crate::startup::{FleetStart, Service, Started};
use clap::builder::BoolishValueParser;
use kvasir_fleet::{BoundLoadPublisher, KvPublisher, LoadPublisher};
use kvasir_serve::{
    http::{
        AccessControl, App, Hosts, Keys, LimitListener, Loading, Origins, PublishedStreams, RateLimits,
        TlsAcceptor, TlsFiles, serve, start_probes,
    },
    metrics::Names,
    report::{Level, Reports},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::signal;

mod shutdown;
mod startup_log;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// IP address or host name to listen on; 0.0.0.0 is all addresses
    #[arg(long, default_value = "127.0.0.1", env = "KVASIR_HOST", value_parser = host)]
    host: IpAddr,
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 8000, env = "KVASIR_PORT")]
    port: u16,
    /// Port of a second listener on the same host that answers /live and /health without a key, and /metrics if the server has no keys
    #[arg(long, env = "KVASIR_HEALTH_PORT", value_name = "PORT")]
    health_port: Option<u16>,
    #[command(flatten)]
    key_args: KeyArgs,
    /// Answer /health, /ready and /version without a key
    #[arg(long, env = "KVASIR_OPEN_HEALTH", value_parser = BoolishValueParser::new())]
    open_health: bool,
    /// Allowed CORS origins, such as https://example.org, localhost for this machine's at any port, or * for all; a server without keys also accepts their host names [default: the server's own]
    #[arg(long, env = "KVASIR_ALLOWED_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    #[command(flatten)]
    client_rules: ClientRuleArgs,
    #[command(flatten)]
    sampling_args: SamplingArgs,
    #[command(flatten)]
    sampling_defaults: SamplingDefaults,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    kv_events: KvEventArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Directory for the files of POST /slots/ID?action=save and restore, which hold the tokens of a slot with their K and V; each API key with a name has its own folder in it [default: slots are not saved]
    #[arg(long, env = "KVASIR_SLOT_SAVE_PATH", value_name = "DIRECTORY")]
    slot_save_path: Option<PathBuf>,
    #[command(flatten)]
    reports: ReportArgs,
    /// PEM file of the certificate chain; enables TLS; SIGHUP reloads it and its key
    #[arg(long, env = "KVASIR_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key
    #[arg(long, env = "KVASIR_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Export metrics under the names of another server: vllm replaces kvasir's names, llama.cpp adds its own
    #[arg(long, value_enum, env = "KVASIR_METRICS_ALIAS", value_name = "SERVER")]
    metrics_alias: Option<Alias>,
    /// Seconds that running answers may take after SIGTERM
    #[arg(long, default_value_t = 30, env = "KVASIR_GRACE", value_name = "SECONDS")]
    grace: u64,
}

/// Connection limit of the probe listener.
const PROBES: usize = 32;
/// Read and idle timeout of probe connections.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, clap::ValueEnum)]
enum Alias {
    Vllm,
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

impl Args {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        &self.model
    }

    /// The options that a worker needs: model, engine, sampling and output parsing, and fleet.
    pub(crate) fn for_worker(self) -> (ModelArgs, Options, SamplingArgs, FleetArgs) {
        (self.model, self.options.for_serving(), self.sampling_args, self.fleet)
    }

    /// Whether KV events are published.
    pub(crate) fn publishes_kv_events(&self) -> bool {
        self.kv_events.is_on()
    }

    /// Validates options before the model is loaded; returns the TLS files and access rules.
    pub(crate) fn check(&self) -> Result<(Option<TlsFiles>, AccessControl), Failure> {
        self.fleet.check()?;
        rule(self.fleet.ranks() == 1 || !self.model.compute().is_simulated(), || {
            "--tp cannot be combined with --backend sim: it has no weights to divide".into()
        })?;
        rule(!self.fleet.expert_parallel() || !self.model.compute().is_simulated(), || {
            "--ep on cannot be combined with --backend sim: it has no experts".into()
        })?;
        self.kv_events.check(self.fleet.replicas().unwrap_or(1))?;
        if let Some(directory) = &self.slot_save_path {
            rule(self.fleet.replicas().is_none(), || {
                "--slot-save-path cannot be combined with --dp or --tp: K and V are in other processes".into()
            })?;
            rule(directory.is_dir(), || {
                format!("--slot-save-path {}: there is no such directory", directory.display())
            })?;
        }
        let keys = self.key_args.keys()?;
        if self.limits.max_priority.is_some() && !self.options.orders_by_priority() {
            return Err(Failure::usage("--max-priority needs --order priority"));
        }
        if self.health_port.is_some_and(|port| port != 0 && port == self.port) {
            return Err(Failure::usage(format!(
                "--health-port {0} is --port {0}; give another one",
                self.port
            )));
        }
        let origins = Origins::parse(&self.allowed_origins);
        let origins = origins.map_err(|why| Failure::usage(format!("--allowed-origins: {why}")))?;
        // A server on a network address, or with keys, has explicit access rules; only private ones
        // check host names.
        let is_private = self.host.is_loopback() && keys.is_empty();
        let hosts = if is_private { Hosts::Private } else { Hosts::Any };
        let keys = Keys::new(keys);
        let rate_limits = RateLimits::parse(&self.limits.rate_limit)
            .map_err(|why| Failure::usage(format!("--rate-limit: {why}")))?;
        if let Some(name) = rate_limits.unknown_names(&keys).first() {
            return Err(Failure::usage(unknown_limit(name)));
        }
        let access = AccessControl {
            keys,
            origins,
            hosts,
            metrics_key: self.key_args.metrics_key()?,
            open_health: self.open_health,
            rate_limits,
        };
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles::open(cert, key).map_err(Failure::usage)?),
            _ => None,
        };
        Ok((tls, access))
    }

    /// Serves until stopped. A failure is also written to the log if that is JSON.
    pub(crate) fn run(self, line: CommandLine) -> Result<ExitCode, Failure> {
        let reports = self.reports.start()?;
        match self.serve(line, reports.clone()) {
            Err(failure) if reports.logs_json() => {
                reports.send_server(Level::Error, &failure.to_string(), Vec::new());
                reports.flush(Duration::from_secs(1));
                Ok(failure.code())
            }
            result => result,
        }
    }

    fn serve(self, line: CommandLine, reports: Arc<Reports>) -> Result<ExitCode, Failure> {
        let began = Instant::now();
        // The engine runs on its own thread; two threads suffice for I/O.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(Failure::failed)?;
        // Before anything is read: a SIGHUP while the model loads must not end the server or be lost.
        let hangups = {
            let _context = runtime.enter();
            signal::unix::signal(signal::unix::SignalKind::hangup())
        };
        let (tls, access) = self.check()?;
        let (key_args, keys, rate_limits) =
            (self.key_args.clone(), access.keys.clone(), access.rate_limits.clone());
        let limits = &self.limits;
        let max_connections = limits.max_connections as usize;
        let peer_connections =
            limits.max_connections_per_peer.map_or(max_connections.div_ceil(2), |n| n as usize);
        let timeout = Duration::from_secs(limits.client_timeout.into());
        let own_name = self.client_rules.own_name().cloned();
        let exposed = self.exposed_files(line.config.as_deref(), &line.definition);
        let service = Service {
            on_forecast: Some(forecast_logger(reports.clone())),
            warms_up: true,
            defaults: Some(self.sampling_defaults),
            shows_progress: false,
            needs_template: false,
            kv_events: None,
            streams: PublishedStreams::default(),
            tokenizers: None,
            slot_directory: self.slot_save_path.clone(),
            access,
            names: match self.metrics_alias {
                None => Names::Own,
                Some(Alias::Vllm) => Names::Vllm,
                Some(Alias::LlamaCpp) => Names::LlamaCpp,
            },
            reports: reports.clone(),
            timeout: Duration::from_secs(limits.step_timeout.into()),
            rules: self.client_rules.rules(limits.max_priority),
            allowed: Box::new({
                let (limits, key_shares) = (limits.clone(), self.options.shares_by_key());
                move |slots, max_len| limits.admission_limits(slots, max_len, key_shares)
            }),
        };
        // Binds before the model is read: a port in use fails at once, and probes are answered
        // while it loads.
        let address = SocketAddr::new(self.host, self.port);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (address, loading) = runtime.block_on(async {
            let acceptor = tls.as_ref().map(TlsFiles::acceptor).transpose().map_err(Failure::failed)?;
            let listener = listen(address, max_connections, acceptor, "--port")?;
            let address = listener.address().map_err(Failure::failed)?;
            let listener = listener.with_read_timeout(timeout).with_peer_limit(peer_connections);
            Ok::<_, Failure>((address, Loading::start(listener)))
        })?;
        let probes = match self.health_port {
            Some(port) => {
                let address = SocketAddr::new(self.host, port);
                let started = start_probes(address, PROBES, PROBE_TIMEOUT);
                Some(started.map_err(|error| cannot_listen(address, &error, "--health-port"))?)
            }
            None => None,
        };
        let engines = self.fleet.replicas().unwrap_or(1);
        let kv_events = self.kv_events.start(engines, reports.clone())?;
        let loads = self.kv_events.bind_loads(engines)?;
        let published = kv_events.as_ref().map(KvPublisher::streams).unwrap_or_default();
        let streams = PublishedStreams {
            topic: self.kv_events.topic(),
            events: published.iter().map(|(events, _)| *events).collect(),
            replays: published.iter().filter_map(|(_, replay)| *replay).collect(),
            kept_batches: kv_events.as_ref().map_or(0, KvPublisher::kept_batches),
            loads: loads.as_ref().map(|loads| loads.addresses().to_vec()).unwrap_or_default(),
        };
        let tokenizers = match self.fleet.tokenizer_processes() {
            0 => None,
            processes => Some(tokenizer::command(processes, line.arguments.clone())?),
        };
        let service = Service { kv_events, streams: streams.clone(), tokenizers, ..service };
        let options = self.options.clone().for_serving();
        let (name, sampling_args) = (own_name.as_deref(), &self.sampling_args);
        let started = match self.fleet.replicas() {
            None => Started::new(&self.model, name, sampling_args, &options, service)?,
            Some(_) => {
                let command = worker::command(line.arguments)?;
                let (roles, ranks, route) = (self.fleet.roles(), self.fleet.ranks(), self.fleet.route());
                let expert_parallel = self.fleet.expert_parallel();
                let fleet = FleetStart { roles, ranks, expert_parallel, route, command };
                Started::fleet(&self.model, name, sampling_args, &options, fleet, service)?
            }
        };
        let summary = self.summary(&started, &keys, peer_connections);
        // The tokenizer processes run until the server has stopped.
        let Started {
            app,
            name,
            facts: EngineFacts { backend, slots, .. },
            warning,
            tokenizers: _tokenizers,
            ..
        } = started;
        let backend = backend.into_owned();
        let _loads = loads.map(|loads| start_loads(loads, &app, reports.clone())).transpose()?;
        runtime.block_on(async {
            let listener = loading.finish().await;
            let listener = listener.ok_or_else(|| Failure::failed("the listener has ended"))?;
            let mut probes_at = String::new();
            if let Some(probes) = probes {
                probes_at = format!(", probes at http://{}", probes.address());
                probes.serve_app(app.clone()).await;
            }
            let seconds = began.elapsed().as_secs_f64();
            log_info(
                &reports,
                &format!(
                    "{name} on {backend}, {slots} slots, {scheme}://{address}, ready after {seconds:.2} s{probes_at}"
                ),
                vec![
                    ("model", name.clone().into()),
                    ("backend", backend.as_str().into()),
                    ("slots", slots.into()),
                    ("address", format!("{scheme}://{address}").into()),
                    ("ready_s", seconds.into()),
                ],
            );
            for line in summary {
                log_info(&reports, &line, Vec::new());
            }
            warning.into_iter().for_each(|warning| log_warning(&reports, warning));
            log_streams(&reports, &published, &streams.loads);
            self.log_access_warnings(&reports, &exposed, &keys);
            if app.needs_tool_prompt() {
                let warning = "the chat template renders no tools: requests with tools get a generic prompt";
                log_warning(&reports, warning);
            }
            let grace = Duration::from_secs(self.grace);
            let stop = async {
                shutdown_signal().await;
                let open = app.host_open();
                log_info(&reports, &stopping_message(open as u64, self.grace), vec![("open_answers", open.into())]);
            };
            let cut = async {
                tokio::select! {
                    () = tokio::time::sleep(grace) => {}
                    () = shutdown_signal() => {}
                }
            };
            let cut = tokio::select! {
                cut = serve(app.clone(), listener, stop, cut) => cut,
                () = key_args.reload(hangups, Access { keys, rate_limits, tls }, reports.clone()) => 0,
            };
            log_info(&reports, &stopped_message(cut as u64), vec![("cut_answers", cut.into())]);
            reports.flush(Duration::from_secs(1));
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Starts the publisher of the loads of an app's engines.
fn start_loads(
    loads: BoundLoadPublisher,
    app: &Arc<App>,
    reports: Arc<Reports>,
) -> Result<LoadPublisher, Failure> {
    // The publisher's thread must not keep the app alive.
    let app = Arc::downgrade(app);
    let sample = Box::new(move || app.upgrade().map(|app| app.rank_loads()).unwrap_or_default());
    let started = loads.start(sample, Box::new(move |line| log_warning(&reports, line)));
    started.map_err(Failure::failed)
}

fn listen(
    address: SocketAddr,
    max_connections: usize,
    tls: Option<TlsAcceptor>,
    option: &str,
) -> Result<LimitListener, Failure> {
    let listener = LimitListener::open(address, max_connections, tls);
    listener.map_err(|error| cannot_listen(address, &error, option))
}

fn cannot_listen(address: SocketAddr, error: &io::Error, option: &str) -> Failure {
    Failure::failed(format!("cannot listen on {address}: {error}; {option} and --host take another place"))
}

#[cfg(test)]
mod tests {
    /// `--print-config` belongs to no run of a server.
    #[test]
    fn every_option_has_an_environment_variable() {
        use clap::CommandFactory;
        let mut cli = crate::cli::Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments() {
            let Some(name) = arg.get_long().filter(|name| !["print-config", "help"].contains(name)) else {
                continue;
            };
            let variable = format!("KVASIR_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(variable.as_str()), "--{name}");
        }
    }
}
