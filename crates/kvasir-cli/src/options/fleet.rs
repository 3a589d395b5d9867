//! Options of `serve` for engines in processes of their own.

use crate::io::failure::Failure;
use crate::options::rules::rule;
use crate::options::switch::word;
use kvasir_engine::Route;

/// How many engines serve, and which one gets a request.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Engines that serve, each a process of its own with its own KV cache and --threads [default: one engine in this process]
    #[arg(long, env = "KVASIR_DP", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    dp: Option<u32>,
    /// With --dp: the engine that gets a request: round-robin, least-requests, least-tokens, prefix (the one that holds most of the prompt) or session [default: prefix]
    #[arg(long, env = "KVASIR_ROUTE", value_parser = word::<Route>)]
    route: Option<Route>,
}

impl FleetArgs {
    /// Number of worker processes; `None` if the engine runs in this one.
    pub(crate) fn replicas(&self) -> Option<u32> {
        self.dp
    }

    /// How a replica is chosen for a request.
    pub(crate) fn route(&self) -> Route {
        self.route.unwrap_or(Route::Prefix)
    }

    /// Whether `--route prefix` was asked for: engines without a prefix cache then cannot serve.
    pub(crate) fn demands_prefixes(&self) -> bool {
        self.route == Some(Route::Prefix)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        rule(self.dp.is_some() || self.route.is_none(), || {
            "--route needs --dp: one engine gets all requests".into()
        })
    }
}
