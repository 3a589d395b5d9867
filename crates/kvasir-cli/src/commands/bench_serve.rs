//! `kvasir bench serve`: load generator that measures TTFT, TPOT and goodput of an
//! OpenAI-compatible server.

use crate::io::atomic_file::AtomicFile;
use crate::io::failure::Failure;
use crate::io::progress;
use crate::options::workload::{Kind, WorkloadArgs};
use kvasir_bench::{
    load::{self, Address, Goal, Pressure, Report, Route, Target, TrustedRoots},
    workload::{Scenario, Workload},
};
use serde_json::{Map, Value, json};
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Default limit of prompt plus answer, in tokens.
const LONGEST: u32 = 4096;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    /// URL of the server
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8000", value_parser = Address::parse)]
    address: Address,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Scenario file (`{"format": "kvasir-scenario/1", ..}`) instead of a workload
    #[arg(long, value_name = "SCENARIO.json", conflicts_with = "workload")]
    scenario: Option<PathBuf>,
    /// Concurrent requests; further ones wait in the client
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: u32,
    /// Route: chat, completions, or completions with token ids
    #[arg(long, value_enum, default_value = "chat")]
    route: RouteArg,
    /// Maximum prompt plus answer tokens of a request [default: 4096, or the served model's context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    max_model_len: Option<u32>,
    /// Model name [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Bearer token
    #[arg(long, env = "KVASIR_BENCH_KEY", hide_env_values = true, value_name = "KEY")]
    key: Option<String>,
    /// PEM file of trusted root certificates for https [default: the system's]
    #[arg(long, env = "SSL_CERT_FILE", hide_env_values = true, value_name = "FILE.pem")]
    ca: Option<PathBuf>,
    /// Let answers end at the model's end-of-sequence token
    #[arg(long)]
    keep_eos: bool,
    /// Extra fields of every request body, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    extra: Option<Map<String, Value>>,
    /// Goodput limits in milliseconds: ttft:N, tpot:N, e2e:N; an answer must meet all that are given
    #[arg(long, value_name = "BOUND", value_delimiter = ',')]
    goodput: Vec<String>,
    /// Timeout of a request in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    timeout: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the report as an HTML page
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RouteArg {
    Chat,
    Completions,
    Ids,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let goal = self.goodput.iter().try_fold(Goal::default(), |goal, bound| goal.with(bound));
        let pressure = Pressure {
            concurrency: self.concurrency as usize,
            goal: goal.map_err(|why| Failure::usage(format!("--goodput: {why}")))?,
            ignore_eos: !self.keep_eos,
        };
        let trust = self.address.secure.then(|| TrustedRoots::of(self.ca.as_deref())).transpose();
        let target = Target {
            address: self.address.clone(),
            roots: trust.map_err(|why| Failure::usage(format!("--ca {why}")))?,
            route: match self.route {
                RouteArg::Chat => Route::Chat,
                RouteArg::Completions => Route::Completions,
                RouteArg::Ids => Route::Ids,
            },
            model: self.model_name.clone(),
            key: self.key.clone(),
            extra: self.extra.clone().unwrap_or_default(),
        };
        let no_answer = |error| Failure::failed(format!("{}: {error}", self.address.authority));
        let server = load::meet(target, Duration::from_secs(self.timeout)).map_err(no_answer)?;
        let mut workload = self.requests(server.context())?;
        let page = self.html.as_deref().map(AtomicFile::create).transpose()?;
        let bar = progress::bar(workload.total());
        let report = load::measure(server, pressure, &mut *workload, &mut |ended| bar.set_position(ended));
        bar.finish_and_clear();
        let report = report.map_err(no_answer)?;
        if let Some(page) = page {
            page.write_plots(&report.workload, &setup(&report), &report.plots)?;
            page.commit()?;
        }
        self.print(&report)
    }

    /// The requests for a server with this context length, if known.
    fn requests(&self, context: Option<u32>) -> Result<Box<dyn Workload>, Failure> {
        if let Some(path) = &self.scenario {
            self.workload.check_none()?;
            let name = |why| Failure::usage(format!("{}: {why}", path.display()));
            return Ok(Box::new(Scenario::parse(&Failure::read_option("--scenario", path)?).map_err(name)?));
        }
        let kind = self.workload.workload.unwrap_or(Kind::Steady);
        if self.route == RouteArg::Ids && matches!(kind, Kind::Chat | Kind::Agents) {
            return Err(Failure::usage(
                "--route ids cannot be combined with a workload of several turns: answers come as text",
            ));
        }
        self.workload.build(kind, self.max_model_len.unwrap_or_else(|| longest(context)), 0.0)
    }

    fn print(&self, report: &Report) -> Result<ExitCode, Failure> {
        if self.json {
            println!("{}", serde_json::to_string(report).map_err(Failure::failed)?);
        } else {
            for (name, value) in report.numbers() {
                println!("{name:<28}{value}");
            }
        }
        match report.completed {
            0 => Err(Failure::failed("no request was answered")),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Default sequence limit. Chat templates add tokens to every message, so 1/16 of the context is
/// reserved.
fn longest(context: Option<u32>) -> u32 {
    context.map_or(LONGEST, |context| LONGEST.min(context - context / 16).max(2))
}

fn setup(report: &Report) -> Value {
    let text = |key: &str| report.server.get(key).and_then(Value::as_str).unwrap_or_default();
    json!({"device": text("url"), "notes": [
        format!("{} of {}", text("route"), text("model")),
        format!("{} requests at once at most", report.concurrency),
    ]})
}
