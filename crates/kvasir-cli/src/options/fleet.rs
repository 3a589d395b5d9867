//! Options of `serve` for several processes: the number of workers (data parallelism), their roles,
//! the ranks of each (tensor parallelism), whether experts are divided among them (expert
//! parallelism), the routing policy, and the tokenizer processes.

use crate::io::failure::Failure;
use crate::options::rules::rule;
use crate::options::switch::{Switch, word};
use kvasir_engine::{Coalescing, Phase, Role, Route};

/// What rank 0 broadcasts: the steps that it has scheduled, or the requests that each rank
/// schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RankControlMode {
    Steps,
    Requests,
}

/// Numbers of engines and ranks, roles of the engines, and the routing policy.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Engines that serve, each a process of its own with its own KV cache and --threads [default: one engine in this process]
    #[arg(long, env = "KVASIR_DP", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    dp: Option<u32>,
    /// Ranks of each engine (tensor parallelism), each a process with its shard of the weights and its part of --threads [default: 1]
    #[arg(long, env = "KVASIR_TP", value_name = "M", value_parser = clap::value_parser!(u32).range(1..=64))]
    tp: Option<u32>,
    /// With --tp: rank 0 schedules and sends each step (`steps`), or every rank schedules the same requests, and hashes of the steps are compared (`requests`) [default: steps]
    #[arg(long, value_enum, env = "KVASIR_RANK_CONTROL", value_name = "BY")]
    rank_control: Option<RankControlMode>,
    /// With --dp, for MoE models: each engine holds a part of the experts, and all run their steps in lockstep (expert parallelism) [default: off]
    #[arg(long, env = "KVASIR_EP", value_name = "on|off", value_parser = word::<Switch>)]
    ep: Option<Switch>,
    /// With --ep on: an engine that is decoding delays its prompts until the other engines also have prompts [default: off]
    #[arg(long, env = "KVASIR_PREFILL_COALESCING", value_name = "on|off", value_parser = word::<Switch>)]
    prefill_coalescing: Option<Switch>,
    /// With --dp: the engine that gets a request: round-robin, least-requests, least-tokens, prefix (the one that holds most of the prompt) or session [default: prefix]
    #[arg(long, env = "KVASIR_ROUTE", value_parser = word::<Route>)]
    route: Option<Route>,
    /// With --dp: the role of each engine, N entries: prefill (computes prompts, then sends K and V to an engine that decodes), decode or both, such as prefill,decode,decode [default: both for all]
    #[arg(long, env = "KVASIR_ROLE", value_name = "ROLE,…", value_delimiter = ',', value_parser = word::<Role>)]
    role: Vec<Role>,
    /// Processes that tokenize prompts and detokenize answers [default: 0, the server's own process]
    #[arg(long, env = "KVASIR_TOKENIZER_PROCESSES", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    tokenizer_processes: Option<u32>,
}

impl FleetArgs {
    /// Number of worker processes; `None` if the engine runs in the server's process. With `--tp`
    /// the engine is a worker, so the front can restart it and resume its requests.
    pub(crate) fn replicas(&self) -> Option<u32> {
        self.dp.or((self.ranks() > 1).then_some(1))
    }

    /// Number of ranks of each engine.
    pub(crate) fn ranks(&self) -> usize {
        self.tp.unwrap_or(1) as usize
    }

    /// Whether the experts of the model are divided among the engines.
    pub(crate) fn expert_parallel(&self) -> bool {
        self.ep.is_some_and(Switch::is_on)
    }

    /// Settings of prefill coalescing for steps of up to `max_num_batched_tokens` tokens; `None` if
    /// it is off.
    pub(crate) fn coalescing(&self, max_num_batched_tokens: u32) -> Option<Coalescing> {
        let is_on = self.prefill_coalescing.is_some_and(Switch::is_on);
        is_on.then(|| Coalescing {
            max_num_batched_tokens: max_num_batched_tokens.into(),
            ..Coalescing::default()
        })
    }

    /// The control mode of the ranks; `steps` by default.
    pub(crate) fn rank_control(&self) -> RankControlMode {
        self.rank_control.unwrap_or(RankControlMode::Steps)
    }

    /// The routing policy.
    pub(crate) fn route(&self) -> Route {
        self.route.unwrap_or(Route::Prefix)
    }

    /// The roles of the engines.
    pub(crate) fn roles(&self) -> Vec<Role> {
        let engines = self.dp.unwrap_or(1) as usize;
        if self.role.is_empty() { vec![Role::Both; engines] } else { self.role.clone() }
    }

    /// Number of tokenizer processes.
    pub(crate) fn tokenizer_processes(&self) -> usize {
        self.tokenizer_processes.unwrap_or(0) as usize
    }

    /// Whether engines transfer K and V.
    pub(crate) fn transfers_kv(&self) -> bool {
        self.role.contains(&Role::Prefill)
    }

    /// Whether `--route prefix` was given. A worker whose cache records no KV events then fails to
    /// start. Under the default policy it serves, and is chosen by load.
    pub(crate) fn requires_prefix_cache(&self) -> bool {
        self.route == Some(Route::Prefix)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        rule(self.ranks() > 1 || self.rank_control.is_none(), || {
            "--rank-control needs --tp: without it an engine has one rank".into()
        })?;
        rule(self.dp.is_some() || self.route.is_none(), || {
            "--route needs --dp: without it there is only one engine".into()
        })?;
        self.check_experts()?;
        rule(self.ranks() == 1 || self.role.is_empty(), || {
            "--role cannot be combined with --tp: each rank holds only its shard of K and V".into()
        })?;
        let Some(engines) = self.dp else {
            return rule(self.role.is_empty(), || {
                "--role needs --dp: without it there is only one engine".into()
            });
        };
        if self.role.is_empty() {
            return Ok(());
        }
        let given = self.role.len();
        rule(given == engines as usize, || {
            format!("--role has {given} entries, but --dp {engines} starts {engines} engines")
        })?;
        for (phase, name) in [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")] {
            rule(self.role.iter().any(|role| role.runs(phase)), || {
                format!("--role has no engine for {name}: add the role {name} or both")
            })?;
        }
        Ok(())
    }

    fn check_experts(&self) -> Result<(), Failure> {
        rule(self.expert_parallel() || self.prefill_coalescing.is_none(), || {
            "--prefill-coalescing needs --ep on: without it engines do not run their steps together".into()
        })?;
        if !self.expert_parallel() {
            return Ok(());
        }
        rule(self.dp.is_some_and(|engines| engines > 1), || {
            "--ep on needs --dp N with at least 2 engines: the experts are divided among them".into()
        })?;
        rule(self.ranks() == 1, || {
            "--ep on cannot be combined with --tp: the ranks of an engine already divide its experts".into()
        })?;
        rule(self.role.is_empty(), || {
            "--ep on cannot be combined with --role: all engines take part in every step".into()
        })
    }
}
