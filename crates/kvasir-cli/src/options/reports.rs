//! Log and trace options of the server, and its log of itself.

use crate::io::failure::Failure;
use kvasir_fleet::OnLog;
use kvasir_serve::report::{Collector, Format, Level, Log, Reports};
use serde_json::Value;
use std::{
    io::{self, Write},
    sync::Arc,
};

/// What is logged about requests, and to whom.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Log format: text or json
    #[arg(long, value_enum, default_value = "text", env = "KVASIR_LOG_FORMAT")]
    log_format: LogFormat,
    /// Log level on stderr: off, error, warn, info (a line per request) or debug
    #[arg(long, value_enum, default_value = "info", env = "KVASIR_LOG_LEVEL")]
    log_level: LogLevel,
    /// OTLP collector for traces, over HTTP, such as http://127.0.0.1:4318
    #[arg(long, env = "KVASIR_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl ReportArgs {
    /// Starts what writes the log and sends traces.
    pub(crate) fn start(&self) -> Result<Arc<Reports>, Failure> {
        let collector = self.otlp_endpoint.as_deref().map(|url| Collector::parse(url, "kvasir"));
        let collector =
            collector.transpose().map_err(|why| Failure::usage(format!("--otlp-endpoint: {why}")))?;
        let format = match self.log_format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        let level = match self.log_level {
            LogLevel::Off => None,
            LogLevel::Error => Some(Level::Error),
            LogLevel::Warn => Some(Level::Warn),
            LogLevel::Info => Some(Level::Info),
            LogLevel::Debug => Some(Level::Debug),
        };
        Reports::start(level.map(|level| Log { format, level }), collector).map_err(Failure::failed)
    }
}

/// Logs an event of the server.
pub(crate) fn log_info(reports: &Reports, message: &str, fields: Vec<(&'static str, Value)>) {
    log(reports, Level::Info, message, fields);
}

/// Warns of a setting.
pub(crate) fn log_warning(reports: &Reports, message: &str) {
    log(reports, Level::Warn, message, Vec::new());
}

/// Writes to stderr: through the log if that writes JSON, else a line.
pub(crate) fn log(reports: &Reports, level: Level, message: &str, fields: Vec<(&'static str, Value)>) {
    if reports.logs_json() {
        reports.send_server(level, message, fields);
    } else {
        let kind = if level == Level::Warn { "warning: " } else { "" };
        // stderr may be closed already, which is no failure.
        let _ = writeln!(io::stderr(), "kvasir: {kind}{message}");
    }
}

/// A callback that writes messages about worker or tokenizer processes to the log.
pub(crate) fn process_logger(reports: &Arc<Reports>) -> OnLog {
    let reports = reports.clone();
    Box::new(move |is_warning, message| {
        let level = if is_warning { Level::Warn } else { Level::Info };
        log(&reports, level, message, Vec::new());
    })
}
