//! Options of `sim` for a fleet: replicas, routing, roles, ranks, links and failures.

use crate::io::failure::Failure;
use crate::options::rules::rule;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kvasir_engine::{Role, Route};
use kvasir_sim::{Link, Links, Preset, RankError};
use serde_json::{Map, Value};
use std::{fmt, ops::RangeInclusive};

/// Numbers of replicas that compute prompts and that decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleCounts {
    prefill: u32,
    decode: u32,
}

impl RoleCounts {
    fn total(self) -> u32 {
        self.prefill + self.decode
    }
}

impl fmt::Display for RoleCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.prefill, self.decode)
    }
}

/// Mean time between failures of a replica, and duration of its restart, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReplicaFailures {
    pub(crate) mtbf: f64,
    pub(crate) restart: f64,
}

/// A fleet of simulated replicas.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimFleetArgs {
    /// Replicas of the engine, each on a simulated device of its own [default: 1, or P + D of --roles]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: Option<u32>,
    /// How replicas share the requests [default: prefix]
    #[arg(long, value_name = "POLICY", value_parser = route())]
    route: Option<Route>,
    /// Disaggregated prefill: P replicas compute prompts and D decode; those of --replicas beyond P + D do both
    #[arg(long, value_name = "P:D", value_parser = parse_roles)]
    roles: Option<RoleCounts>,
    /// Ranks of each replica (tensor parallelism), each on a machine of its own [default: 1]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1024))]
    tp: Option<u32>,
    /// Bandwidth (bytes/s) and latency (s) of the links between ranks and between replicas, such as ranks=450e9:0.5e-6,replicas=50e9:3e-6 [default: those of the machine]
    #[arg(long, value_name = "CLASS=BANDWIDTH:LATENCY,..", value_parser = parse_links)]
    links: Option<Links>,
    /// Failures of replicas: mean time between failures and duration of a restart in seconds, such as mtbf=86400,restart=60
    #[arg(long, value_name = "mtbf=S,restart=S", value_parser = parse_failures)]
    failures: Option<ReplicaFailures>,
}

/// Parses the name of a routing policy.
fn route() -> impl TypedValueParser<Value = Route> {
    PossibleValuesParser::new(Route::ALL.iter().map(|route| route.name()))
        .try_map(|name| name.parse::<Route>())
}

fn parse_roles(text: &str) -> Result<RoleCounts, String> {
    let count = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=50_000).contains(n));
    let parsed = text
        .split_once(':')
        .and_then(|(prefill, decode)| Some(RoleCounts { prefill: count(prefill)?, decode: count(decode)? }));
    parsed.ok_or_else(|| "not P:D with P and D from 1 to 50000".into())
}

/// Accepted bandwidths of a link, in bytes per second.
const BANDWIDTH: RangeInclusive<f64> = 1e3..=1e15;
/// Largest accepted latency of a link, in seconds.
const MAX_LATENCY: f64 = 10.0;

/// A link with these figures; an error names the figure that is out of bounds.
pub(crate) fn checked_link(bandwidth: f64, latency: f64) -> Result<Link, String> {
    if !BANDWIDTH.contains(&bandwidth) {
        return Err(format!("bandwidth is {bandwidth}; it is in bytes per second, from 1e3 to 1e15"));
    }
    if !(0.0..=MAX_LATENCY).contains(&latency) {
        return Err(format!("latency is {latency}; it is in seconds, from 0 to {MAX_LATENCY}"));
    }
    Ok(Link::given(bandwidth, latency))
}

fn parse_links(text: &str) -> Result<Links, String> {
    let mut links = Links::default();
    for part in text.split(',') {
        let parsed = part.split_once('=').and_then(|(class, figures)| {
            let (bandwidth, latency) = figures.split_once(':')?;
            Some((class, bandwidth.parse().ok()?, latency.parse().ok()?))
        });
        let (class, bandwidth, latency): (&str, f64, f64) =
            parsed.ok_or_else(|| format!("`{part}` is not CLASS=BANDWIDTH:LATENCY"))?;
        let link = checked_link(bandwidth, latency).map_err(|why| format!("`{class}`: {why}"))?;
        let entry = match class {
            "ranks" => &mut links.ranks,
            "replicas" => &mut links.replicas,
            _ => return Err(format!("unknown class `{class}`; expected `ranks` or `replicas`")),
        };
        if entry.replace(link).is_some() {
            return Err(format!("`{class}` occurs twice"));
        }
    }
    Ok(links)
}

fn parse_failures(text: &str) -> Result<ReplicaFailures, String> {
    let (mut mtbf, mut restart) = (None, None);
    for part in text.split(',') {
        let parsed = part.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let (name, value): (&str, f64) = parsed.ok_or_else(|| format!("`{part}` is not NAME=SECONDS"))?;
        let (entry, least) = match name {
            "mtbf" => (&mut mtbf, 1e-3),
            "restart" => (&mut restart, 0.0),
            _ => return Err(format!("unknown name `{name}`; expected `mtbf` or `restart`")),
        };
        if !(least..=1e9).contains(&value) {
            return Err(format!("`{name}` is {value}; it is in seconds, from {least} to 1e9"));
        }
        if entry.replace(value).is_some() {
            return Err(format!("`{name}` occurs twice"));
        }
    }
    match (mtbf, restart) {
        (Some(mtbf), Some(restart)) => Ok(ReplicaFailures { mtbf, restart }),
        _ => Err("`mtbf` and `restart` are both needed".into()),
    }
}

impl SimFleetArgs {
    /// Number of replicas.
    pub(crate) fn replicas(&self) -> u32 {
        self.replicas.or(self.roles.map(RoleCounts::total)).unwrap_or(1)
    }

    /// The routing policy.
    pub(crate) fn route(&self) -> Route {
        self.route.unwrap_or_default()
    }

    /// Failures of replicas; `None` if no replica fails.
    pub(crate) fn failures(&self) -> Option<ReplicaFailures> {
        self.failures
    }

    /// Roles of the first P + D replicas; the others do both.
    pub(crate) fn roles(&self) -> Vec<Role> {
        let Some(RoleCounts { prefill, decode }) = self.roles else { return Vec::new() };
        let repeated = |role: Role, count: u32| std::iter::repeat_n(role, count as usize);
        repeated(Role::Prefill, prefill).chain(repeated(Role::Decode, decode)).collect()
    }

    /// The preset with the links and ranks of the fleet. Rejects options that contradict each
    /// other, and roles and ranks without figures of their links.
    pub(crate) fn apply(&self, mut preset: Preset) -> Result<Preset, Failure> {
        rule(self.route.is_none() || self.replicas.is_some() || self.roles.is_some(), || {
            "--route needs --replicas or --roles: one engine gets every request".into()
        })?;
        if let (Some(roles), Some(replicas)) = (self.roles, self.replicas) {
            rule(roles.total() <= replicas, || {
                let total = roles.total();
                format!("--roles {roles} cannot be combined with --replicas {replicas}: it needs {total}")
            })?;
        }
        preset.machine.links = self.links.unwrap_or_default().or(preset.machine.links);
        let hint = "; give them with --links, or with [links] in the file of --machine";
        let machine = preset.machine.name;
        rule(self.roles.is_none() || preset.machine.links.replicas.is_some(), || {
            format!("--roles: the machine `{machine}` has no figures of a link between replicas{hint}")
        })?;
        let tp = self.tp.unwrap_or(1);
        preset.with_ranks(tp).map_err(|why| {
            let hint = if matches!(why, RankError::NoLink { .. }) { hint } else { "" };
            Failure::usage(format!("--tp {tp}: {why}{hint}"))
        })
    }

    /// Adds the configuration of the fleet to the setup of a report.
    pub(crate) fn describe(&self, preset: &Preset, setup: &mut Map<String, Value>) {
        if self.replicas() > 1 {
            setup.insert("replicas".into(), self.replicas().into());
            setup.insert("route".into(), self.route().name().into());
        }
        let figures = |link: Link| format!("{:e} B/s, {:e} s", link.bandwidth.value, link.latency.value);
        if preset.ranks > 1 {
            setup.insert("tp".into(), preset.ranks.into());
            let link = preset.machine.links.ranks;
            setup.extend(link.map(|link| ("rank_link".into(), figures(link).into())));
        }
        if let Some(roles) = self.roles {
            setup.insert("roles".into(), roles.to_string().into());
            let link = preset.machine.links.replicas;
            setup.extend(link.map(|link| ("replica_link".into(), figures(link).into())));
        }
        if let Some(ReplicaFailures { mtbf, restart }) = self.failures {
            setup.insert("failures".into(), format!("mtbf {mtbf} s, restart {restart} s").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_options_are_parsed_or_rejected_by_name() {
        let links = parse_links("ranks=4e11:1e-6,replicas=5e10:3e-6").unwrap();
        assert_eq!(links.ranks, Some(Link::given(4e11, 1e-6)));
        assert_eq!(parse_links("replicas=1e9:0").unwrap().ranks, None);
        for (text, message) in [
            ("ranks", "`ranks` is not CLASS"),
            ("nodes=1e9:0", "`ranks` or `replicas`"),
            ("ranks=1e9:0,ranks=1e9:0", "occurs twice"),
            ("ranks=nan:0", "bandwidth is NaN"),
            ("ranks=450:0", "bandwidth is 450"),
            ("ranks=1e9:-1", "latency is -1"),
            ("", "`` is not"),
        ] {
            assert!(parse_links(text).unwrap_err().contains(message), "{text}");
        }
        assert_eq!(parse_failures("restart=5,mtbf=60"), Ok(ReplicaFailures { mtbf: 60.0, restart: 5.0 }));
        for (text, message) in [
            ("mtbf=60", "both needed"),
            ("mtbf=0,restart=1", "`mtbf` is 0"),
            ("mtbf=inf,restart=1", "`mtbf` is inf"),
            ("mtbf=1,mtbf=2", "occurs twice"),
            ("rate=1", "`mtbf` or `restart`"),
        ] {
            assert!(parse_failures(text).unwrap_err().contains(message), "{text}");
        }
        assert_eq!(parse_roles("2:6"), Ok(RoleCounts { prefill: 2, decode: 6 }));
        for text in ["2", "0:1", "1:0", "-1:2", "1:2:3", "1:99999999999"] {
            assert!(parse_roles(text).is_err(), "{text}");
        }
    }
}
