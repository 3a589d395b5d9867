//! Workload options of `sim` and `bench serve`: kind, request count, arrival rate, lengths, seed.

use crate::io::failure::Failure;
use kvasir_bench::workload::{
    AgentProfile, AgentSessions, Agents, Chat, Offline, Poisson, SeededParams, Steady, Workload,
};

/// A seeded workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Chats of several turns on shared system prompts
    Chat,
    /// Agents: a long shared trunk, parallel branches and tool calls
    Agents,
    /// Coding agents: sessions of many turns on a growing context, with sub-agents
    CodingAgents,
    /// Agents that read 131 tokens for each that they write
    ReadingAgents,
    /// Agents with a user in the loop: 86 % of an agent's requests follow its last within 1 s, 95 % within 10 s
    InteractiveAgents,
    /// Mini-SGLang's offline benchmark, to the token
    Offline,
    /// Independent requests of random sizes at random times
    Poisson,
    /// Independent requests of one size
    Steady,
}

/// Maximum requests of the offline workload, which draws all of them up front.
const MOST_OFFLINE: u64 = 100_000;

/// Which requests come, and when.
#[derive(clap::Args)]
pub(crate) struct WorkloadArgs {
    /// Synthetic workload [default: bench serve steady; sim none]
    #[arg(long, value_enum)]
    pub(crate) workload: Option<Kind>,
    /// Number of requests [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    requests: Option<u64>,
    /// Arrival rate in requests per second; inf sends all at once [default: 8; steady inf]
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Gamma shape of arrival gaps: 1 is Poisson, less is burstier [default: 1]
    #[arg(long, value_name = "SHAPE")]
    burstiness: Option<f64>,
    /// Median tokens of a user message or tool result [default: 64; agents 160; coding-agents 3060; reading-agents 770; interactive-agents 400; poisson and steady 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: Option<u32>,
    /// Median tokens of an answer [default: 160; agents 80; coding-agents 444; reading-agents 300; interactive-agents 120; poisson and steady 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    output_tokens: Option<u32>,
    /// steady: length of the prefix that all prompts share [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    shared_prefix: Option<u32>,
    /// Seed of the workload and of injected faults
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

impl WorkloadArgs {
    /// Builds the workload; prompt plus answer are at most `max_model_len` tokens. `repetition` is the share of an answer
    /// that repeats its earlier passages.
    pub(crate) fn build(
        &self,
        kind: Kind,
        max_model_len: u32,
        repetition: f64,
    ) -> Result<Box<dyn Workload>, Failure> {
        let requests = self.requests.unwrap_or(256);
        self.check(kind)?;
        let (prompt, output, rate) = match kind {
            Kind::CodingAgents => (AgentProfile::CODING.result, AgentProfile::CODING.answer, 8.0),
            Kind::ReadingAgents => (AgentProfile::READING.result, AgentProfile::READING.answer, 8.0),
            Kind::InteractiveAgents => {
                (AgentProfile::INTERACTIVE.result, AgentProfile::INTERACTIVE.answer, 8.0)
            }
            Kind::Agents => (160, 80, 8.0),
            Kind::Poisson => (512, 128, 8.0),
            Kind::Steady => (512, 128, f64::INFINITY),
            Kind::Chat | Kind::Offline => (64, 160, 8.0),
        };
        let params = SeededParams {
            requests,
            rate: within("rate", self.rate.unwrap_or(rate), 1e-6, f64::INFINITY)?,
            burstiness: within("burstiness", self.burstiness.unwrap_or(1.0), 0.01, 1000.0)?,
            prompt_tokens: self.prompt_tokens.unwrap_or(prompt),
            output_tokens: self.output_tokens.unwrap_or(output),
            max_model_len,
            repetition,
            seed: self.seed,
        };
        Ok(match kind {
            Kind::Chat => Box::new(Chat::new(params)),
            Kind::Agents => Box::new(Agents::new(params)),
            Kind::CodingAgents => Box::new(AgentSessions::new(params, AgentProfile::CODING)),
            Kind::ReadingAgents => Box::new(AgentSessions::new(params, AgentProfile::READING)),
            Kind::InteractiveAgents => Box::new(AgentSessions::new(params, AgentProfile::INTERACTIVE)),
            Kind::Poisson => Box::new(Poisson::new(params)),
            Kind::Steady => {
                let shared = self.shared_prefix.unwrap_or(0);
                if shared > params.prompt_tokens {
                    return Err(Failure::usage(format!(
                        "--shared-prefix {shared} is more than --prompt-tokens {}",
                        params.prompt_tokens
                    )));
                }
                Box::new(Steady::new(params, shared))
            }
            Kind::Offline => Box::new(Offline::new(requests)),
        })
    }

    /// Rejects options of other workloads.
    fn check(&self, kind: Kind) -> Result<(), Failure> {
        if self.shared_prefix.is_some() && kind != Kind::Steady {
            return Err(Failure::usage("--shared-prefix needs --workload steady"));
        }
        if let Some(requests) = self.requests.filter(|n| *n > MOST_OFFLINE && kind == Kind::Offline) {
            return Err(Failure::usage(format!(
                "--requests {requests} is more than {MOST_OFFLINE}, which --workload offline has at once"
            )));
        }
        match self.shapes().next().filter(|_| kind == Kind::Offline) {
            Some(name) => Err(Failure::usage(format!(
                "--{name} cannot be combined with --workload offline: its requests are fixed"
            ))),
            None => Ok(()),
        }
    }

    /// Rejects workload options when a scenario file is given.
    pub(crate) fn check_none(&self) -> Result<(), Failure> {
        let others = [("requests", self.requests.is_some()), ("shared-prefix", self.shared_prefix.is_some())];
        let others = others.into_iter().filter_map(|(name, is_given)| is_given.then_some(name));
        match self.shapes().chain(others).next() {
            Some(name) => Err(Failure::usage(format!(
                "--{name} cannot be combined with SCENARIO.json: its requests are written down"
            ))),
            None => Ok(()),
        }
    }

    /// Names of the given options that shape most workloads.
    fn shapes(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("rate", self.rate.is_some()),
            ("burstiness", self.burstiness.is_some()),
            ("prompt-tokens", self.prompt_tokens.is_some()),
            ("output-tokens", self.output_tokens.is_some()),
        ];
        given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name))
    }
}

fn within(name: &str, value: f64, low: f64, high: f64) -> Result<f64, Failure> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::usage(format!("--{name} {value} is not between {low} and {high}")))
    }
}
