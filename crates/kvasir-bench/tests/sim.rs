//! End-to-end simulations: a published schedule, trace consistency, determinism, faults and aborts.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_bench::{
    sim::{Finished, FleetModel, Outcome, Replica, Report, Run, engine, run},
    trace::{self, End, Header, Lines},
    workload::{
        AgentProfile, AgentSessions, Agents, Chat, Poisson, Scenario, ScriptedModel, SeededParams, Workload,
    },
};
use kvasir_engine::{
    Chunked, Core, Limits, Mixing, Order, Policy, Rectangular, RectangularConfig, Route, StepTrace,
};
use kvasir_kv::{Cache, Paged, Radix, blocks::BlockConfig};
use kvasir_sim::{Clock, CostDevice, Faults, Preset, StaticShape};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write,
    sync::{Arc, Mutex},
};

const KNOBS: SeededParams = SeededParams {
    requests: 300,
    rate: 40.0,
    burstiness: 0.5,
    prompt_tokens: 64,
    output_tokens: 40,
    max_model_len: 4096,
    repetition: 0.0,
    seed: 7,
};

struct Setting {
    limits: Limits,
    policy: Box<dyn Policy>,
    cache: Box<dyn Cache>,
    overlap: bool,
    faults: Faults,
    aborts: u32,
    shape: Option<StaticShape>,
    lines: Option<Lines>,
}

fn chunked(overlap: bool, blocks: u32) -> Setting {
    Setting {
        limits: Limits { max_num_seqs: 64, max_model_len: 4096, ..Limits::default() },
        policy: Box::new(Chunked::new(2048, Mixing::Off)),
        cache: Box::new(Radix::new(BlockConfig { blocks, ..BlockConfig::default() }).unwrap()),
        overlap,
        faults: Faults::default(),
        aborts: 0,
        shape: None,
        lines: None,
    }
}

fn simulate(setting: Setting, workload: &mut dyn Workload) -> Finished {
    let clock = Clock::default();
    let preset = Preset::parse("h200:qwen3-0.6b").unwrap();
    let mut device =
        CostDevice::new(preset, clock.clone(), Box::new(ScriptedModel)).with_faults(setting.faults);
    if let Some(shape) = setting.shape {
        device = device.with_static_shapes(shape);
    }
    let core = Core::new(setting.limits, Order::Fcfs, setting.policy, setting.cache);
    let run_ = Run {
        replicas: vec![Replica { engine: engine(core, device, &clock, setting.overlap), clock }],
        route: Route::default(),
        fleet: FleetModel::default(),
        workload,
        window: 0..1_000_000,
        lines: setting.lines,
        aborts: setting.aborts,
        seed: 1,
    };
    run(run_, &mut |_, _| true)
}

/// The published admission figure: steps in which each request is prefilled and finishes.
///
/// The expected steps were recorded by an independent simulator of the same rules.
#[test]
fn the_documents_schedule_is_met_to_the_step() {
    let text = include_str!("../scenarios/admission.json");
    let mut scenario = Scenario::parse(text).unwrap();
    let config = RectangularConfig {
        chunk_size: 128,
        max_batch: 4,
        max_batch_tkv: 1536,
        ..RectangularConfig::default()
    };
    let limits = Limits { max_num_seqs: 4, max_model_len: 512, ..Limits::default() };
    let blocks = BlockConfig { block_size: 64, blocks: 34, dummy: true, ..BlockConfig::default() };
    let setting = Setting {
        limits,
        policy: Box::new(Rectangular::new(config)),
        cache: Box::new(Paged::new(blocks).unwrap()),
        overlap: false,
        faults: Faults::default(),
        aborts: 0,
        shape: Some(StaticShape { block: 64, chunk: 128, max_rows: 4, max_volume: 1536, max_model_len: 512 }),
        lines: None,
    };
    let finished = simulate(setting, &mut scenario);
    assert_eq!(finished.report.broke_off, None);
    // Step 35 of the figure: four requests could reach 4 × 512 slots, more than the volume limit of
    // 1,536.
    let seen =
        |step: &StepTrace| matches!(&step.projection, Some((_, 512, ends)) if *ends == [512, 576, 576]);
    assert!(finished.steps.iter().any(seen), "the trace has what the volume test projected");
    let mut numbers = HashMap::new();
    let (mut prefills, mut ends) = (BTreeMap::<u64, Vec<usize>>::new(), BTreeMap::new());
    for (i, step) in (1..).zip(&finished.steps) {
        numbers.extend(step.arrived.iter().map(|(number, _, _, tag)| (*number, *tag)));
        for row in step.rows.iter().filter(|row| row.1 == 0) {
            prefills.entry(numbers[&row.0]).or_default().push(i);
        }
        ends.extend(step.ended.iter().map(|(number, _)| (numbers[number], i)));
    }
    let expected: [(&[usize], usize); 8] = [
        (&[1], 22),
        (&[3, 5, 23], 70),
        (&[25, 27, 29, 31], 45),
        (&[33], 81),
        (&[46], 54),
        (&[48], 90),
        (&[55], 76),
        (&[71, 73], 84),
    ];
    for (tag, (chunks, end)) in (0..).zip(expected) {
        assert_eq!((prefills[&tag].as_slice(), ends[&tag]), (chunks, end), "request {tag}");
    }
}

/// Checks a trace for consistency.
///
/// Blocks owned by requests are exactly the held blocks, each row continues its request's previous
/// one, and running requests were admitted.
fn check_trace(steps: &[StepTrace], block: u32) {
    let mut tables: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut computed: HashMap<u64, u32> = HashMap::new();
    let mut uses: Vec<u8> = Vec::new();
    for step in steps {
        for id in &step.preempted {
            tables.remove(id);
            computed.remove(id);
        }
        computed.extend(step.admitted.iter().copied());
        for &(first, n) in &step.again {
            (first..first + u64::from(n)).for_each(|id| *computed.get_mut(&id).unwrap() += 1);
        }
        for &(id, _, first, tokens, _, _, drafts) in &step.rows {
            assert_eq!(computed[&id], first, "request {id} in step {}", step.step);
            computed.insert(id, first + tokens - drafts);
        }
        for change in &step.tables {
            let table = tables.entry(change.request).or_default();
            table.truncate(change.keep as usize);
            table.extend(change.runs.iter().flat_map(|&(first, n)| first..first + n));
        }
        for (id, table) in &tables {
            assert_eq!(
                table.len() as u32,
                computed[id].div_ceil(block),
                "request {id} in step {}",
                step.step
            );
        }
        for (id, _) in &step.ended {
            tables.remove(id);
            computed.remove(id);
        }
        for &(first, n, used) in &step.map {
            let end = (first + n) as usize;
            if uses.len() < end {
                uses.resize(end, 0);
            }
            uses[first as usize..end].fill(used);
        }
        let owned: BTreeSet<u32> = tables.values().flatten().copied().collect();
        let held: BTreeSet<u32> = (0..).zip(&uses).filter(|(_, used)| **used == 2).map(|(b, _)| b).collect();
        assert_eq!(owned, held, "step {}", step.step);
        assert_eq!(held.len() as u32 * block, step.room.2, "step {}", step.step);
    }
}

#[test]
fn a_trace_adds_up_and_comes_back_from_its_file() {
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let file = Shared::default();
    let header = Header { format: trace::FORMAT.into(), title: "t".into(), ..Header::default() };
    let lines = Lines::begin(Box::new(file.clone()), &header);
    let setting = Setting { lines: Some(lines.clone()), ..chunked(false, 900) };
    let finished = simulate(setting, &mut Agents::new(KNOBS));
    assert_eq!((finished.report.broke_off, finished.report.finished), (None, 300));
    check_trace(&finished.steps, 16);
    let end = End { total: finished.report.steps, names: vec![(1, "one".into())] };
    lines.end(&end).unwrap();
    let bytes = file.0.lock().unwrap().clone();
    let read = trace::read(&mut bytes.as_slice()).unwrap();
    assert_eq!(read, (header, finished.steps, end));
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("\"drafts\"") && !text.contains("\"accepted\""), "plain decoding has no drafts");
    let cut = &bytes[..bytes.len() / 2];
    assert!(trace::read(&mut &cut[..]).unwrap_err().starts_with("line "));
}

#[test]
fn equal_runs_are_equal_and_overlap_changes_times_only() {
    let chat = || -> Box<dyn Workload> { Box::new(Chat::new(KNOBS)) };
    let agents = || -> Box<dyn Workload> { Box::new(Agents::new(KNOBS)) };
    let coding = || -> Box<dyn Workload> { Box::new(AgentSessions::new(KNOBS, AgentProfile::CODING)) };
    for workload in [chat, agents, coding] {
        let report = |overlap, blocks| simulate(chunked(overlap, blocks), &mut *workload()).report;
        let (first, second) = (report(true, 4000), report(true, 4000));
        assert_eq!(first, second);
        assert_eq!((first.requests, first.finished), (300, 300));
        assert!(first.hit_rate > 0.3, "{}", first.hit_rate);
        let asked_and_answered = |report: &Report| {
            let ended = |o: &Outcome| (o.id.clone(), (o.finish, o.prompt, o.outputs));
            report.outcomes.iter().map(ended).collect::<BTreeMap<_, _>>()
        };
        for other in [report(false, 4000), report(true, 1200)] {
            assert_eq!(asked_and_answered(&first), asked_and_answered(&other));
        }
    }
}

#[test]
fn faults_and_aborts_leave_nothing_behind() {
    let faults = Faults { seed: 3, refused: 10, failed: 10, out_of_memory: 10, late: 50, lost: 0 };
    for overlap in [true, false] {
        let setting = Setting { faults, aborts: 200, ..chunked(overlap, 2000) };
        let report = simulate(setting, &mut Poisson::new(KNOBS)).report;
        // The driver checks the core's invariants once the core is idle.
        assert_eq!(report.broke_off, None);
        assert_eq!(report.requests, 300);
        assert!(report.failed_steps > 0 && report.ended["aborted"] > 0 && report.ended["failed"] > 0);
    }
    let faults = Faults { seed: 3, lost: 20, ..Faults::default() };
    let report = simulate(Setting { faults, ..chunked(true, 2000) }, &mut Poisson::new(KNOBS)).report;
    assert!(report.broke_off.unwrap().contains("device lost"));
}

/// A burst larger than the queue limit is held back by the driver; no request is refused.
#[test]
fn arrivals_at_a_full_queue_wait_in_order() {
    let limits = Limits { max_num_seqs: 64, max_model_len: 4096, max_waiting: 8, ..Limits::default() };
    let params = SeededParams { rate: f64::INFINITY, ..KNOBS };
    for overlap in [true, false] {
        let report = simulate(Setting { limits, ..chunked(overlap, 2000) }, &mut Poisson::new(params)).report;
        assert_eq!((report.broke_off, report.finished, report.refused), (None, 300, 0));
    }
}

#[test]
fn requests_too_large_to_run_are_refused_in_the_report() {
    let text = r#"{"format": "kvasir-scenario/1", "requests": [
        {"id": "too long", "prompt_len": 5000, "max_tokens": 5},
        {"id": "fine", "prompt_len": 50, "max_tokens": 5},
        {"id": "larger than the pool", "prompt_len": 3000, "max_tokens": 5}]}"#;
    let report = simulate(chunked(true, 100), &mut Scenario::parse(text).unwrap()).report;
    assert_eq!((report.requests, report.finished, report.refused), (3, 1, 2));
}
