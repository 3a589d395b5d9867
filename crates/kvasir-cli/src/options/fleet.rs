//! Options of `serve` for engines in processes of their own.

use kvasir_engine::{Balance, Router};

/// How many engines serve, and which one gets a request.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Engines that serve, each a process of its own with its own KV cache and --threads [default: one engine in this process]
    #[arg(long, env = "KVASIR_DP", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    dp: Option<u32>,
}

impl FleetArgs {
    /// Number of worker processes; `None` if the engine runs in this one.
    pub(crate) fn replicas(&self) -> Option<u32> {
        self.dp
    }

    /// Chooses a replica for each request.
    pub(crate) fn router(&self) -> Router {
        Router::new(Balance::LeastRequests, self.dp.unwrap_or(1) as usize)
    }
}
