//! Simulations of several replicas behind the router.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_bench::{
    sim::{FleetModel, Replica, Report, Run, engine, run},
    workload::{AgentProfile, AgentSessions, Agents, Poisson, ScriptedModel, SeededParams, Workload},
};
use kvasir_engine::{Chunked, Core, Limits, Mixing, Order, Route};
use kvasir_kv::{Radix, blocks::BlockConfig};
use kvasir_sim::{Clock, CostDevice, Faults, Preset};

/// A fleet of replicas with caches of `blocks` blocks.
struct Fleet {
    replicas: u64,
    route: Route,
    blocks: u32,
    faults: Faults,
    limits: Limits,
}

impl Fleet {
    fn new(replicas: u64, route: Route) -> Self {
        let limits = Limits { max_num_seqs: 64, max_model_len: 16_384, ..Limits::default() };
        Self { replicas, route, blocks: 2000, faults: Faults::default(), limits }
    }

    fn replica(&self, index: u64) -> Replica {
        let clock = Clock::default();
        let preset = Preset::parse("h200:qwen3-14b").unwrap();
        let faults = Faults { seed: index, ..self.faults };
        let device = CostDevice::new(preset, clock.clone(), Box::new(ScriptedModel)).with_faults(faults);
        let cache = Radix::new(BlockConfig { blocks: self.blocks, ..BlockConfig::default() }).unwrap();
        let policy = Box::new(Chunked::new(8192, Mixing::Off));
        let mut core = Core::new(self.limits, Order::Fcfs, policy, Box::new(cache));
        if self.route == Route::Prefix {
            core.record_kv_events().unwrap();
        }
        Replica { engine: engine(core, device, &clock, true), clock }
    }

    fn run(&self, workload: &mut dyn Workload) -> Report {
        let replicas = (0..self.replicas).map(|index| self.replica(index)).collect();
        let run_ = Run {
            replicas,
            route: self.route,
            fleet: FleetModel::default(),
            workload,
            window: 0..0,
            lines: None,
            aborts: 0,
            seed: 1,
        };
        run(run_, &mut |_, _| true).report
    }
}

fn params(requests: u64, rate: f64) -> SeededParams {
    SeededParams {
        requests,
        rate,
        burstiness: 1.0,
        prompt_tokens: 160,
        output_tokens: 80,
        max_model_len: 16_384,
        repetition: 0.0,
        seed: 7,
    }
}

fn agents(fleet: &Fleet, requests: u64, rate: f64) -> Report {
    let report = fleet.run(&mut Agents::new(params(requests, rate)));
    assert_eq!((&report.broke_off, report.finished), (&None, requests), "{}", fleet.route);
    report
}

#[test]
fn every_route_completes_all_requests_deterministically() {
    for &route in Route::ALL {
        let fleet = Fleet::new(3, route);
        let report = agents(&fleet, 200, 40.0);
        assert_eq!(report, agents(&fleet, 200, 40.0), "{route}");
        let on_replicas: u64 = report.replicas.iter().map(|replica| replica.requests).sum();
        assert_eq!((report.replicas.len(), on_replicas), (3, 200));
        assert!(report.replicas.iter().all(|replica| replica.requests > 20), "{:?}", report.replicas);
        let tokens: u64 = report.replicas.iter().map(|replica| replica.output_tokens).sum();
        assert_eq!(tokens, report.output_tokens);
        let times = report.request_times_ms;
        let sum = times.queue + times.prefill + times.decode;
        assert!((sum / report.e2e_ms.mean - 1.0).abs() < 0.01);
    }
}

#[test]
fn prefix_routing_halves_the_time_to_first_token_of_round_robin() {
    let report = |route| agents(&Fleet { blocks: 4000, ..Fleet::new(8, route) }, 2000, 500.0);
    let [prefix, round_robin] = [Route::Prefix, Route::RoundRobin].map(report);
    assert!(prefix.ttft_ms.mean * 2.0 < round_robin.ttft_ms.mean);
    assert!(prefix.hit_rate > round_robin.hit_rate + 0.1);
    assert!(prefix.imbalance < 1.5);
}

#[test]
fn prefix_and_session_routing_raise_the_hit_rate_of_sessions() {
    let report = |route| {
        let params = params(600, 20.0);
        Fleet::new(4, route).run(&mut AgentSessions::new(params, AgentProfile::INTERACTIVE))
    };
    let [prefix, session, round_robin] = [Route::Prefix, Route::Session, Route::RoundRobin].map(report);
    assert!(session.hit_rate > round_robin.hit_rate + 0.1);
    assert!(prefix.hit_rate >= session.hit_rate - 0.02);
}

#[test]
fn a_lost_replica_leaves_the_others_serving() {
    let faults = Faults { lost: 1, ..Faults::default() };
    let fleet = Fleet { faults, ..Fleet::new(8, Route::Prefix) };
    let report = fleet.run(&mut Agents::new(params(200, 40.0)));
    let lost = report.replicas.iter().filter(|replica| replica.lost).count();
    assert!((1..8).contains(&lost) && report.broke_off.is_none(), "{lost} {:?}", report.broke_off);
    assert!(report.requests == 200 && report.ended["failed"] > 0 && report.finished > 100);
    let faults = Faults { lost: 200, ..Faults::default() };
    let report = Fleet { faults, ..fleet }.run(&mut Agents::new(params(400, 40.0)));
    assert!(report.broke_off.is_some_and(|why| why.contains("lost")));
}

/// 8 replicas serve 8 times as many requests as one in about the same time, and refuse none.
#[test]
fn the_queue_limit_applies_to_each_replica() {
    let seconds = |replicas| {
        let fleet = Fleet::new(replicas, Route::RoundRobin);
        let fleet = Fleet { limits: Limits { max_waiting: 4, ..fleet.limits }, ..fleet };
        let burst =
            SeededParams { output_tokens: 2, prompt_tokens: 16, ..params(replicas * 200, f64::INFINITY) };
        let report = fleet.run(&mut Poisson::new(burst));
        assert_eq!((report.finished, report.refused), (replicas * 200, 0));
        report.seconds
    };
    let (one, eight) = (seconds(1), seconds(8));
    assert!(eight < one * 2.0, "{one} s, {eight} s");
}
