//! Severity of reported events, for `--log-level`.

/// `--log-level`: minimum severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything, including requests that needed no engine.
    Debug,
    /// Every request that ran.
    #[default]
    Info,
    /// Rejected requests; settings to reconsider.
    Warn,
    /// Requests that failed through no fault of the client; a server that cannot start.
    Error,
}

impl Level {
    /// Its name in a log line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}
