//! `TimeBreakdown`: the time of replicas by cause.

use kvasir_engine::Role;
use serde::Serialize;
use std::ops::AddAssign;

/// Seconds of replicas by cause. The sum is the number of replicas times the simulated time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeBreakdown {
    /// Prompt tokens that no replica had computed before.
    pub prefill: f64,
    /// Prompt tokens that a replica had computed before: evicted, or cached on another replica.
    pub lost_prefixes: f64,
    /// Tokens computed again after a preemption.
    pub after_preemption: f64,
    /// Tokens computed again after the failure of a replica.
    pub after_failure: f64,
    /// Tokens of handed-off requests whose K and V did not arrive. The last, partly filled block is
    /// never sent.
    pub after_hand_off: f64,
    /// Decode rows.
    pub decode: f64,
    /// Draft models.
    pub drafts: f64,
    /// Collectives of tensor-parallel ranks.
    pub collectives: f64,
    /// Steps that failed.
    pub failed_steps: f64,
    /// From a failure until the replica accepts requests again.
    pub restart: f64,
    /// No step runs.
    pub idle: f64,
}

impl TimeBreakdown {
    /// Causes by name, with their times.
    pub fn parts(&self) -> [(&'static str, f64); 11] {
        [
            ("prefill", self.prefill),
            ("lost prefixes", self.lost_prefixes),
            ("after preemption", self.after_preemption),
            ("after failure", self.after_failure),
            ("after hand-off", self.after_hand_off),
            ("decode", self.decode),
            ("drafts", self.drafts),
            ("collectives", self.collectives),
            ("failed steps", self.failed_steps),
            ("restart", self.restart),
            ("idle", self.idle),
        ]
    }

    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// Combines each part with the same part of `other`.
    fn zip_with(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            prefill: combine(self.prefill, other.prefill),
            lost_prefixes: combine(self.lost_prefixes, other.lost_prefixes),
            after_preemption: combine(self.after_preemption, other.after_preemption),
            after_failure: combine(self.after_failure, other.after_failure),
            after_hand_off: combine(self.after_hand_off, other.after_hand_off),
            decode: combine(self.decode, other.decode),
            drafts: combine(self.drafts, other.drafts),
            collectives: combine(self.collectives, other.collectives),
            failed_steps: combine(self.failed_steps, other.failed_steps),
            restart: combine(self.restart, other.restart),
            idle: combine(self.idle, other.idle),
        }
    }

    /// Converts nanoseconds, which the simulation sums, to seconds.
    pub(crate) fn in_seconds(self) -> Self {
        self.zip_with(Self::default(), |ns, _| ns / 1e9)
    }
}

impl AddAssign for TimeBreakdown {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip_with(other, |sum, part| sum + part);
    }
}

/// The time of all replicas of one role.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoleTime {
    /// The role.
    pub role: Role,
    /// Number of its replicas.
    pub replicas: u32,
    /// Seconds of its replicas.
    pub seconds: TimeBreakdown,
}

impl RoleTime {
    /// The times of replicas by role, in the order of [`Role::ALL`].
    pub(crate) fn by_role(replicas: impl Iterator<Item = (Role, TimeBreakdown)>) -> Vec<Self> {
        let mut times: Vec<Self> = Role::ALL
            .iter()
            .map(|&role| Self { role, replicas: 0, seconds: TimeBreakdown::default() })
            .collect();
        for (role, seconds) in replicas {
            if let Some(time) = times.iter_mut().find(|time| time.role == role) {
                time.replicas += 1;
                time.seconds += seconds;
            }
        }
        times.retain(|time| time.replicas > 0);
        times
    }

    /// Table in percent, a column per role: the heading, then a line per cause.
    pub fn table(times: &[Self]) -> Vec<(&'static str, Vec<String>)> {
        let heading = |time: &Self| match time.replicas {
            1 => time.role.to_string(),
            n => format!("{} ({n})", time.role),
        };
        let mut lines = vec![("time of replicas", times.iter().map(heading).collect())];
        let columns: Vec<_> = times.iter().map(|time| (time.seconds.parts(), time.seconds.total())).collect();
        for (i, (name, _)) in TimeBreakdown::default().parts().into_iter().enumerate() {
            let share = |(parts, total): &([(&str, f64); 11], f64)| {
                if *total > 0.0 { parts[i].1 / total * 100.0 } else { 0.0 }
            };
            // Lines that round to 0.00 % are omitted.
            if columns.iter().any(|column| share(column) >= 0.005) {
                lines.push((name, columns.iter().map(|column| format!("{:.2} %", share(column))).collect()));
            }
        }
        lines
    }
}
