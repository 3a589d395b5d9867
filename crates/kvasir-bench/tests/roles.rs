//! Simulated fleets with disaggregated prefill, tensor-parallel ranks and failures of replicas.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_bench::{
    sim::{Failures, FleetModel, Replica, Report, Run, TimeBreakdown, engine, run},
    workload::{Agents, ScriptedModel, SeededParams, Workload},
};
use kvasir_engine::{Chunked, Core, Limits, Mixing, Order, Role, Route, Summary};
use kvasir_kv::{Radix, blocks::BlockConfig};
use kvasir_sim::{Clock, CostDevice, Link, Preset};
use kvasir_testkit::Random;
use std::collections::BTreeMap;

/// Configuration of a simulated fleet.
#[derive(Clone)]
struct Fleet {
    roles: Vec<Role>,
    ranks: u32,
    route: Route,
    blocks: u32,
    link: Link,
    /// Mean time between failures and restart time, in seconds.
    failures: Option<(f64, f64)>,
    aborts: u32,
    seed: u64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            roles: vec![Role::Both; 4],
            ranks: 1,
            route: Route::Prefix,
            blocks: 4000,
            link: Link::given(50e9, 3e-6),
            failures: None,
            aborts: 0,
            seed: 1,
        }
    }
}

impl Fleet {
    fn replica(&self) -> Replica {
        let clock = Clock::default();
        let preset = Preset::parse("h200:qwen3-14b").unwrap().with_ranks(self.ranks).unwrap();
        let device = CostDevice::new(preset, clock.clone(), Box::new(ScriptedModel));
        let blocks = BlockConfig { blocks: self.blocks, ..BlockConfig::default() };
        let limits = Limits { max_num_seqs: 64, max_model_len: 16_384, ..Limits::default() };
        let (policy, cache) = (Box::new(Chunked::new(2048, Mixing::Off)), Radix::new(blocks).unwrap());
        let mut core = Core::new(limits, Order::Fcfs, policy, Box::new(cache));
        core.record_kv_events().unwrap();
        Replica { engine: engine(core, device, &clock, true), clock }
    }

    fn run(&self, workload: &mut dyn Workload) -> Report {
        let failures = self.failures.map(|(mtbf_seconds, restart_seconds)| {
            let rebuild = Box::new(|_| Some(self.replica()));
            Failures { mtbf_seconds, restart_seconds, rebuild }
        });
        let fleet =
            FleetModel { roles: self.roles.clone(), link: Some(self.link), failures, records_series: true };
        let run_ = Run {
            replicas: self.roles.iter().map(|_| self.replica()).collect(),
            route: self.route,
            fleet,
            workload,
            window: 0..0,
            lines: None,
            aborts: self.aborts,
            seed: self.seed,
        };
        let report = run(run_, &mut |_, _| true).report;
        let times: f64 = report.time_of_replicas.iter().map(|time| time.seconds.total()).sum();
        let expected = report.seconds * self.roles.len() as f64;
        assert!((times / expected - 1.0).abs() < 0.02, "{times} s of {expected} s: {report:?}");
        report
    }
}

/// Roles of a disaggregated fleet.
fn prefill_decode(prefill: usize, decode: usize) -> Vec<Role> {
    [vec![Role::Prefill; prefill], vec![Role::Decode; decode]].concat()
}

fn agents(requests: u64, rate: f64) -> Agents {
    Agents::new(SeededParams {
        requests,
        rate,
        burstiness: 1.0,
        prompt_tokens: 160,
        output_tokens: 80,
        max_model_len: 16_384,
        repetition: 0.0,
        seed: 7,
    })
}

/// Time of all replicas by cause.
fn total_time(report: &Report) -> TimeBreakdown {
    let mut sum = TimeBreakdown::default();
    report.time_of_replicas.iter().for_each(|time| sum += time.seconds);
    sum
}

/// Prompt tokens, output tokens and finish reason of each request, by id.
fn outcomes(report: &Report) -> BTreeMap<&str, (u32, u32, String)> {
    report
        .outcomes
        .iter()
        .map(|outcome| (outcome.id.as_str(), (outcome.prompt, outcome.outputs, outcome.finish.to_string())))
        .collect()
}

#[test]
fn one_rank_has_no_collectives_and_four_are_faster() {
    let reports = [1, 4].map(|ranks| Fleet { ranks, ..Fleet::default() }.run(&mut agents(150, 40.0)));
    let plain = Preset::parse("h200:qwen3-14b").unwrap();
    assert_eq!(plain.with_ranks(1), Ok(plain));
    assert_eq!((total_time(&reports[0]).collectives, outcomes(&reports[0])), (0.0, outcomes(&reports[1])));
    let four = total_time(&reports[1]);
    assert!(four.collectives > 0.0 && four.decode + four.collectives < total_time(&reports[0]).decode);
    assert!(reports[1].ttft_ms.mean < reports[0].ttft_ms.mean);
}

#[test]
fn disaggregated_prefill_keeps_outputs_and_recomputes_only_partial_blocks() {
    let colocated = Fleet::default().run(&mut agents(300, 40.0));
    let fleet = Fleet { roles: prefill_decode(1, 3), ..Fleet::default() };
    let disaggregated = fleet.run(&mut agents(300, 40.0));
    assert_eq!(outcomes(&colocated), outcomes(&disaggregated));
    assert_eq!(disaggregated, fleet.run(&mut agents(300, 40.0)), "equal runs differ");
    let (prefill, decode) = disaggregated.replicas.split_at(1);
    assert!(prefill[0].handed_off > 250 && prefill[0].transfers.sent_tokens > 10_000, "{prefill:?}");
    assert!(decode.iter().all(|replica| replica.transfers.received_tokens > 0 && replica.handed_off == 0));
    // The decode replicas compute partly filled blocks only.
    let [prefill, decode] = [Role::Prefill, Role::Decode]
        .map(|role| disaggregated.time_of_replicas.iter().find(|time| time.role == role).unwrap().seconds);
    assert!(decode.prefill == 0.0 && decode.lost_prefixes == 0.0, "{decode:?}");
    assert!(decode.after_hand_off < decode.decode / 2.0 && prefill.after_hand_off == 0.0, "{decode:?}");
    assert!(disaggregated.request_times_ms.between_replicas > 0.0);
    assert_eq!(colocated.request_times_ms.between_replicas, 0.0);
}

/// Senders decode while a slow link transfers. Beyond its send buffer, blocks are computed again.
#[test]
fn a_slow_link_delays_decode_and_causes_recomputation() {
    let report = |bandwidth| {
        let link = Link::given(bandwidth, 1e-3);
        let fleet = Fleet { roles: prefill_decode(2, 2), link, ..Fleet::default() };
        fleet.run(&mut agents(200, 40.0))
    };
    let [fast, slow, slowest] = [50e9, 1e9, 20e6].map(report);
    assert_eq!(outcomes(&fast), outcomes(&slow));
    assert_eq!(outcomes(&fast), outcomes(&slowest));
    let decode_of_senders = |report: &Report| {
        report.time_of_replicas.iter().find(|time| time.role == Role::Prefill).unwrap().seconds.decode
    };
    assert!(decode_of_senders(&slow) > 1.5 * decode_of_senders(&fast));
    let unsent =
        |report: &Report| report.replicas.iter().map(|replica| replica.transfers.unsent_tokens).sum::<u64>();
    assert_eq!(unsent(&fast), 0);
    assert!(unsent(&slowest) > 1000, "{}", unsent(&slowest));
    assert!(total_time(&slowest).after_hand_off > total_time(&fast).after_hand_off);
}

/// A workload that counts how often each of its requests ends.
struct EndCounter<'a> {
    workload: &'a mut dyn Workload,
    counts: BTreeMap<u64, u32>,
}

impl Workload for EndCounter<'_> {
    fn title(&self) -> String {
        self.workload.title()
    }

    fn total(&self) -> u64 {
        self.workload.total()
    }

    fn next(&mut self) -> Option<kvasir_bench::workload::Job> {
        self.workload.next()
    }

    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<kvasir_bench::workload::Job>) {
        *self.counts.entry(summary.tag).or_default() += 1;
        self.workload.ended(summary, now, more);
    }
}

#[test]
fn every_request_ends_once_whichever_replicas_fail() {
    let without_failures = Fleet::default().run(&mut agents(200, 60.0));
    let (mut failures, mut lost, mut recomputed) = (0, 0, 0.0);
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let fleet = Fleet {
            roles: match random.below(4) {
                0 => vec![Role::Both; random.between(1, 5) as usize],
                1 => prefill_decode(1, 1),
                2 => prefill_decode(2, 3),
                _ => [prefill_decode(1, 2), vec![Role::Both]].concat(),
            },
            route: random.pick(Route::ALL),
            blocks: random.pick(&[1200, 4000]),
            link: Link::given(random.pick(&[1e8, 5e9]), 1e-3),
            failures: Some((random.pick(&[0.5, 2.0, 8.0]), random.pick(&[0.0, 0.1, 3.0]))),
            aborts: random.pick(&[0, 0, 100]),
            seed,
            ..Fleet::default()
        };
        let mut workload = agents(200, 60.0);
        let mut counter = EndCounter { workload: &mut workload, counts: BTreeMap::new() };
        let report = fleet.run(&mut counter);
        assert_eq!((&report.broke_off, report.requests), (&None, 200), "seed {seed}");
        assert!(
            counter.counts.len() == 200 && counter.counts.values().all(|count| *count == 1),
            "seed {seed}"
        );
        assert_eq!(report, fleet.run(&mut agents(200, 60.0)), "seed {seed}");
        if fleet.aborts == 0 && report.finished == 200 {
            assert_eq!(outcomes(&without_failures), outcomes(&report), "seed {seed}");
        }
        failures += report.replicas.iter().map(|replica| replica.failures).sum::<u32>();
        lost += report.replicas.iter().map(|replica| replica.transfers.lost_tokens).sum::<u64>();
        recomputed += total_time(&report).after_failure;
    }
    assert!(failures > 100 && lost > 0 && recomputed > 0.0, "{failures} {lost} {recomputed}");
}

/// Round-robin routing finds fewer cached prefixes than prefix routing, so it spends more time on
/// lost ones.
#[test]
fn lost_prefixes_are_distinguished_from_new_prompts() {
    let report = |route| Fleet { route, ..Fleet::default() }.run(&mut agents(400, 60.0));
    let [prefix, round_robin] = [Route::Prefix, Route::RoundRobin].map(report);
    let [few, many] = [&prefix, &round_robin].map(total_time);
    assert!(many.lost_prefixes > 1.5 * few.lost_prefixes, "{few:?} {many:?}");
    assert!((many.prefill / few.prefill - 1.0).abs() < 0.25, "{few:?} {many:?}");
}
