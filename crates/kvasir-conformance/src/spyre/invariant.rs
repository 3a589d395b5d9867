//! Replays `spyre.volume_invariant`: no decode step may exceed the batch volume limit (rows ×
//! padded context).

use crate::case::{Case, CaseError};
use crate::compare::Mismatch;
use crate::outcome::Outcome;
use crate::spyre::harness::Harness;
use crate::spyre::scenario::{MOST, MOST_REQUESTS, Scenario, stream};
use kvasir_engine::RectangularConfig;
use kvasir_engine::rectangular::Rules;
use serde::Deserialize;
use serde_json::json;

/// Upper bound on steps before a workload counts as endless.
const MOST_STEPS: u32 = 1 << 20;

#[derive(Deserialize)]
struct Workload {
    prompt_lengths: Vec<u32>,
    max_tokens: Option<u32>,
    max_tokens_1: Option<u32>,
    max_tokens_2: Option<u32>,
    target_generated_tokens: Option<u32>,
}

impl Workload {
    fn is_sane(&self) -> bool {
        let lengths = [self.max_tokens, self.max_tokens_1, self.max_tokens_2, self.target_generated_tokens];
        let mut lengths = lengths.iter().flatten().chain(&self.prompt_lengths);
        self.prompt_lengths.len() <= MOST_REQUESTS && lengths.all(|&length| length <= MOST)
    }
}

/// Runs a long workload to its end under each rule set, with and without pausing.
///
/// No decode step may exceed the volume limit.
pub(crate) fn run(case: &Case) -> Result<Outcome, CaseError> {
    let scenario = Scenario::read(case, Rules::Later, true)?;
    let workload: Workload = serde_json::from_value(case.field("workload")?.clone())
        .map_err(|error| case.error(format!("field `workload`: {error}")))?;
    if !workload.is_sane() {
        return Err(case.error("field `workload`: more or longer than a replay takes"));
    }
    for (rules, pausing) in
        [(Rules::Later, true), (Rules::Later, false), (Rules::Document, true), (Rules::Document, false)]
    {
        let policy = RectangularConfig { rules, pausing, ..scenario.policy };
        if let Err(why) = run_one(&scenario, policy, &workload) {
            let at = format!("rules {rules}, pausing {pausing}");
            let expected = case.field("invariant")?.clone();
            return Ok(Outcome::Failed(Box::new(Mismatch { at, expected, got: json!(why) })));
        }
    }
    Ok(Outcome::Passed)
}

/// Result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    steps: u32,
    max_volume: u64,
    pause_events: u64,
}

fn run_one(scenario: &Scenario, policy: RectangularConfig, workload: &Workload) -> Result<Run, String> {
    let mut bench = Harness::new(policy, scenario.limits, scenario.blocks)?;
    bench.watch_rows = false;
    let in_two = workload.max_tokens_1.is_some();
    let prompt = |request: usize, length: u32| {
        let seed = if in_two { request as u32 } else { 0 };
        (0..length).map(|at| stream(0, seed, at)).collect::<Vec<_>>()
    };
    let first = workload.max_tokens_1.or(workload.max_tokens).unwrap_or(16);
    for (i, &length) in workload.prompt_lengths.iter().enumerate() {
        bench.add(prompt(i, length), first, None)?;
    }
    let mut to_come = workload.max_tokens_2;
    // The last prefill chunk yields the first output, hence one more than the decode steps.
    let target = workload.target_generated_tokens.unwrap_or(0) + 1;
    let mut run = Run::default();
    while run.steps < MOST_STEPS {
        if let Some(second) = to_come
            && bench.outputs_of(0) >= target
        {
            to_come = None;
            let n = workload.prompt_lengths.len();
            for (i, &length) in workload.prompt_lengths.iter().enumerate() {
                bench.add(prompt(n + i, length), second, None)?;
            }
        }
        if to_come.is_none() && bench.is_idle() {
            return Ok(Run { pause_events: bench.events().0, ..run });
        }
        bench.step()?;
        run.steps += 1;
        run.max_volume = run.max_volume.max(bench.ran.volume);
        if bench.ran.volume > policy.max_batch_tkv {
            return Err(format!("volume {} at tkv {}", bench.ran.volume, bench.ran.tkv));
        }
    }
    Err(format!("not done after {MOST_STEPS} steps"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Suite;

    /// Reference values from an independent simulator of the same rules.
    #[test]
    fn long_workloads_match_the_recorded_results() {
        let suite = Suite::parse(include_str!("../../cases/spyre.json")).unwrap();
        let runs = |pausing: bool| {
            let cases = suite.cases.iter().filter(|case| case.kind == "spyre.volume_invariant");
            let runs = cases.map(|case| {
                let scenario = Scenario::read(case, Rules::Later, pausing).unwrap();
                let workload = serde_json::from_value(case.field("workload").unwrap().clone()).unwrap();
                let run = run_one(&scenario, scenario.policy, &workload).unwrap();
                (run.max_volume, run.steps, run.pause_events)
            });
            runs.collect::<Vec<_>>()
        };
        assert_eq!(runs(true), [(130_880, 16_950, 1), (131_072, 7_380, 8)]);
        assert_eq!(runs(false), [(130_560, 18_627, 0), (122_880, 14_398, 0)]);
    }
}
