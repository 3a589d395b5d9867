//! `kvasir sim`: discrete-event simulation of the real scheduler and cache on a simulated device.

use crate::io::atomic_file::AtomicFile;
use crate::io::failure::Failure;
use crate::io::interruption::Interruption;
use crate::io::progress;
use crate::options::Options;
use crate::options::machine_file;
use crate::options::model::DraftArgs;
use crate::options::resolve::{setup, speculation, static_shape};
use crate::options::rules::rule;
use crate::options::sim_fleet::SimFleetArgs;
use crate::options::workload::{Kind, WorkloadArgs};
use clap::builder::ArgPredicate;
use kvasir::{Facts, GroupFacts};
use kvasir_bench::{
    sim::{
        self, Failures, Finished, FleetModel, Replica, ReplicaReport, Report, RoleTime, Run, SimulatedMachine,
    },
    trace::{self, End, Header, Lines},
    workload::{Scenario, ScriptedModel, Workload},
};
use kvasir_engine::{Resolved, Role, Route};
use kvasir_sim::{Clock, CostDevice, DraftProfile, Faults, Preset};
use serde_json::{Map, Value};
use std::{
    fmt::Display,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Fault rates in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    faults: Faults,
    aborts: u32,
}

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    /// Scenario file (`{"format": "kvasir-scenario/1", ..}`) instead of a workload
    #[arg(value_name = "SCENARIO.json", conflicts_with = "workload")]
    scenario: Option<PathBuf>,
    #[command(flatten)]
    requests: WorkloadArgs,
    /// Share of an answer that repeats its earlier passages, which drafts of --spec ngram and suffix find, at most 0.94
    /// [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = probability)]
    repetition: Option<f64>,
    #[command(flatten)]
    fleet: SimFleetArgs,
    /// Injected faults per thousand steps (refused, failed, out_of_memory, late, lost) or requests (aborts)
    #[arg(long, value_name = "KIND=N,..", value_parser = parse_trouble, default_value = "", hide_default_value = true)]
    faults: Trouble,
    /// Machine, model shape and weight type (bf16, fp8, q8_0) of the cost model; with --machine SHAPE[:WEIGHTS]
    #[arg(
        long,
        value_name = "MACHINE[:SHAPE[:WEIGHTS]]",
        default_value = "h200:qwen3-0.6b",
        default_value_if("machine", ArgPredicate::IsPresent, "qwen3-0.6b"),
        env = "KVASIR_SIM_PRESET"
    )]
    sim_preset: String,
    /// TOML file of a machine's bandwidth, arithmetic, memory and launch costs; --sim-preset then gives the model only
    #[arg(long, value_name = "FILE.toml")]
    machine: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
    /// Write an HTML page that draws the steps
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Steps on the page, counted from 1; plots cover the whole run [default: 1..2000]
    #[arg(long, value_name = "FROM..TO", value_parser = parse_steps, requires = "html")]
    html_steps: Option<Range<u64>>,
    /// Write a trace: one JSON line per step
    #[arg(long, value_name = "OUT.jsonl")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    draft: DraftArgs,
    /// With --spec mtp, eagle3 and draft: probability that a draft is accepted if all before it are, for each depth; the
    /// last one holds for all deeper drafts. Drafts of ngram and suffix are verified against the tokens of the workload
    #[arg(long, value_name = "P,..", value_delimiter = ',', requires = "spec", value_parser = probability)]
    acceptance: Vec<f64>,
    #[command(flatten)]
    options: Options,
}

fn probability(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "not a number between 0 and 1".into())
}

fn parse_trouble(text: &str) -> Result<Trouble, String> {
    let mut trouble = Trouble::default();
    let mut kinds = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (kind, number) = part.split_once('=').ok_or_else(|| format!("`{part}` is not KIND=N"))?;
        let number = number.parse().ok().filter(|n| *n <= 1000);
        let number: u32 = number.ok_or_else(|| format!("`{part}`: thousandths are 0 to 1000"))?;
        if kinds.contains(&kind) {
            return Err(format!("`{kind}` occurs twice"));
        }
        kinds.push(kind);
        let faults = &mut trouble.faults;
        *match kind {
            "refused" => &mut faults.refused,
            "failed" => &mut faults.failed,
            "out_of_memory" => &mut faults.out_of_memory,
            "late" => &mut faults.late,
            "lost" => &mut faults.lost,
            "aborts" => &mut trouble.aborts,
            _ => {
                return Err(format!(
                    "unknown kind `{kind}`; there are refused, failed, out_of_memory, late, lost, aborts"
                ));
            }
        } = number;
    }
    Ok(trouble)
}

fn parse_steps(text: &str) -> Result<Range<u64>, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(from, to)| Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?)));
    match parsed {
        Some((from, to)) if from >= 1 && to >= from && to - from < 100_000 => Ok(from - 1..to),
        Some((from, to)) if from >= 1 && to >= from => Err("a page holds 100000 steps at most".into()),
        _ => Err(format!("`{text}` is not FROM..TO, counted from 1")),
    }
}

/// Largest number of replicas that the report lists one by one.
const MAX_LISTED: usize = 16;

/// The named replicas that the report lists: all, or above [`MAX_LISTED`] the least and the most
/// busy one.
fn listed_replicas(replicas: &[ReplicaReport]) -> Vec<(String, ReplicaReport)> {
    let named = replicas.iter().enumerate().map(|(index, replica)| (format!("replica {index}"), *replica));
    let mut named: Vec<_> = named.collect();
    if named.len() > MAX_LISTED {
        named.sort_by(|(_, a), (_, b)| a.device_busy.total_cmp(&b.device_busy));
        named = [named.first(), named.last()].into_iter().flatten().cloned().collect();
    }
    named
}

/// Notes shown on the page: the simulated machine and the sources of its figures.
fn notes(preset: &Preset) -> Vec<String> {
    let machine = SimulatedMachine::of(preset);
    let sources = machine.sources().into_iter().map(|(source, figures)| format!("{figures} ({source})"));
    vec![format!("Simulated on a machine of {}.", sources.collect::<Vec<_>>().join("; "))]
}

/// Nanoseconds of simulated time after which a run ends with an error, far below what the clock holds.
const LONGEST: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

impl Args {
    /// Machine and model of the cost model.
    fn preset(&self) -> Result<Preset, Failure> {
        let text = &self.sim_preset;
        let Some(path) = &self.machine else {
            return Preset::parse(text).map_err(|why| Failure::usage(format!("--sim-preset {text}: {why}")));
        };
        let (shape, weights) = Preset::parse_model(text).map_err(|why| {
            Failure::usage(format!("--sim-preset {text}: with --machine it is SHAPE[:WEIGHTS]: {why}"))
        })?;
        Ok(Preset::new(machine_file::read(path, weights)?, shape))
    }

    /// The draft model of the simulated device, if `--spec` names one.
    fn draft_model(&self, preset: &Preset) -> Result<Option<DraftProfile>, Failure> {
        let Some(spec) = self.draft.speculation() else { return Ok(None) };
        let refused = |why: String| Err(Failure::usage(format!("--spec {spec}: {why}")));
        let Some(shape) = spec.simulated_shape(preset.shape) else {
            if self.acceptance.is_empty() {
                return Ok(None);
            }
            return Err(Failure::usage(format!(
                "--acceptance cannot be combined with --spec {spec}: its drafts are verified against the tokens of the workload"
            )));
        };
        if self.acceptance.is_empty() {
            return refused("needs --acceptance P,..: the simulated draft model computes nothing".into());
        }
        if spec.proposes_trees() {
            return refused("topk above 1: the simulated draft model proposes chains".into());
        }
        let acceptance = self.acceptance.clone();
        shape.map(|shape| Some(DraftProfile { shape, acceptance })).or_else(refused)
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let preset = self.fleet.apply(self.preset()?)?;
        let draft = self.draft_model(&preset)?;
        let spec = self.draft.speculation();
        let (scenario, written) = match &self.scenario {
            Some(path) => {
                let name = |why: &dyn Display| Failure::usage(format!("{}: {why}", path.display()));
                let scenario = Scenario::parse(&Failure::read(path)?).map_err(|why| name(&why))?;
                let written = Options::from_map(scenario.options()).map_err(|why| name(&why))?;
                (Some(scenario), written)
            }
            None => (None, Options::default()),
        };
        let config = self.options.over(&written)?.config()?;
        let facts = Facts {
            max_model_len: preset.shape.max_model_len,
            free_bytes: Some(preset.free_bytes()),
            groups: vec![GroupFacts::full(preset.slot_bytes())],
            is_cpu: preset.machine.is_cpu,
            is_simulated: true,
            has_graphs: true,
            overlaps: spec.is_none(),
            ..Facts::default()
        };
        let resolved = config.resolve(&facts)?;
        let (replicas, route, roles) = (self.fleet.replicas(), self.fleet.route(), self.fleet.roles());
        self.check_replicas(scenario.as_ref())?;
        let core = resolved.core()?;
        let mut workload = self.workload(scenario, resolved.limits.max_model_len)?;
        let mut setup = setup(&resolved, &core);
        setup.insert("device".into(), preset.to_string().into());
        self.fleet.describe(&preset, &mut setup);
        setup.extend(spec.map(|spec| ("spec".into(), speculation(spec))));
        setup.insert("notes".into(), notes(&preset).into());
        let header =
            Header { format: trace::FORMAT.into(), title: workload.title(), setup: setup.clone(), first: 0 };
        self.check_files()?;
        let page = self.html.as_deref().map(AtomicFile::create).transpose()?;
        let trace = self.trace.as_deref().map(AtomicFile::create).transpose()?;
        let lines =
            trace.as_ref().map(|file| file.writer().map(|out| Lines::begin(out, &header))).transpose()?;

        let build = |index: u32| self.replica(&resolved, preset, draft.as_ref(), index);
        let fleet = (0..replicas).map(build).collect::<Result<Vec<_>, _>>()?;
        let failures = self.fleet.failures().map(|failures| Failures {
            mtbf_seconds: failures.mtbf,
            restart_seconds: failures.restart,
            rebuild: Box::new(|index| build(index as u32).ok()),
        });
        let link = preset.machine.links.replicas.filter(|_| !roles.is_empty());
        let records_series = page.is_some() && replicas > 1;
        let fleet_model = FleetModel { roles, link, failures, records_series };
        let began = Instant::now();
        let bar = progress::bar(workload.total());
        let run = Run {
            replicas: fleet,
            route,
            fleet: fleet_model,
            workload: &mut *workload,
            window: if page.is_some() { self.html_steps.clone().unwrap_or(0..2000) } else { 0..0 },
            lines: lines.clone(),
            aborts: self.faults.aborts,
            seed: self.requests.seed,
        };
        let interruption = Interruption::watch();
        let mut reached = 0;
        let finished = sim::run(run, &mut |ended, now| {
            bar.set_position(ended);
            reached = now;
            !interruption.has_come() && now < LONGEST
        });
        bar.finish_and_clear();
        if reached >= LONGEST {
            let why = "the simulated time has passed 100 years: the machine is too slow, or the rate too low";
            return Err(Failure::failed(format!("{why}; no file was written")));
        }
        if interruption.has_come() {
            return Err(Failure::failed("interrupted; no file was written"));
        }
        // Page and trace hold the steps of the first replica.
        let steps = finished.report.replicas.first().map_or(finished.report.steps, |first| first.steps);
        let end = End { total: steps, names: finished.names.clone() };
        if let (Some(file), Some(lines)) = (trace, lines) {
            lines.end(&end).map_err(|error| Failure::write(file.path(), &error))?;
            drop(lines);
            file.commit()?;
        }
        if let Some(file) = page {
            self.write_page(&file, header, &finished, &end)?;
            file.commit()?;
        }
        self.print(&finished.report, setup, began.elapsed())
    }

    /// Builds replica `index`: an engine over a simulated device, whose faults depend on `index`.
    fn replica(
        &self,
        resolved: &Resolved,
        preset: Preset,
        draft: Option<&DraftProfile>,
        index: u32,
    ) -> Result<Replica, Failure> {
        let mut core = resolved.core()?;
        // The report counts lost prefixes from KV events, if the cache can record them.
        let events = core.record_kv_events();
        if self.fleet.replicas() > 1 && self.fleet.route() == Route::Prefix {
            events.map_err(|error| {
                Failure::usage(format!("--route prefix with --cache {}: {error}", resolved.kind))
            })?;
        }
        let clock = Clock::default();
        let seed = self.requests.seed.wrapping_add(u64::from(index));
        let mut device = CostDevice::new(preset, clock.clone(), Box::new(ScriptedModel))
            .with_faults(Faults { seed, ..self.faults.faults })
            .with_graphs(resolved.limits.graph_max_batch);
        if let Some(shape) = static_shape(resolved) {
            device = device.with_static_shapes(shape);
        }
        if let Some(draft) = draft {
            device = device.with_draft(draft.clone());
        }
        let engine = sim::engine(core, device, &clock, resolved.overlap);
        let mut engine = match self.draft.speculation() {
            Some(spec) => spec.apply(engine)?,
            None => engine,
        };
        if self.fleet.roles().contains(&Role::Prefill) {
            engine.kv_layout().map_err(|error| {
                Failure::usage(format!("--roles with --cache {}: {error}", resolved.kind))
            })?;
        }
        Ok(Replica { engine, clock })
    }

    /// Rejects outputs and scenarios that need a single engine.
    fn check_replicas(&self, scenario: Option<&Scenario>) -> Result<(), Failure> {
        let replicas = self.fleet.replicas();
        let only_one = |name: &str, why: &str| {
            Err(Failure::usage(format!("{name} cannot be combined with {replicas} replicas: {why}")))
        };
        if replicas > 1 && self.trace.is_some() {
            return only_one("--trace", "it holds the steps of one engine");
        }
        if replicas > 1 && scenario.is_some_and(Scenario::counts_steps) {
            return only_one("`arrival_step`", "replicas do not step together; `arrival` is a time");
        }
        Ok(())
    }

    /// Rejects output paths that coincide with each other or with the input.
    fn check_files(&self) -> Result<(), Failure> {
        let place = |path: &Option<PathBuf>| path.as_deref().map(kvasir_formats::AtomicFile::resolve);
        let (read, html, trace) = (place(&self.scenario), place(&self.html), place(&self.trace));
        let same = |a: &Option<PathBuf>, b: &Option<PathBuf>| a.is_some() && a == b;
        let pairs = [
            ("--html and --trace", same(&html, &trace)),
            ("--html and SCENARIO.json", same(&html, &read)),
            ("--trace and SCENARIO.json", same(&trace, &read)),
        ];
        match pairs.iter().find(|(_, is_same)| *is_same) {
            Some((names, _)) => Err(Failure::usage(format!("{names} name the same file"))),
            None => Ok(()),
        }
    }

    fn workload(&self, scenario: Option<Scenario>, max_model_len: u32) -> Result<Box<dyn Workload>, Failure> {
        match (self.requests.workload, scenario) {
            (Some(kind), _) => {
                rule(self.repetition.is_none() || kind != Kind::Offline, || {
                    "--repetition cannot be combined with --workload offline: its requests are fixed".into()
                })?;
                self.requests.build(kind, max_model_len, self.repetition.unwrap_or(0.0))
            }
            (None, Some(scenario)) => {
                self.requests.check_none()?;
                rule(self.repetition.is_none(), || {
                    "--repetition cannot be combined with SCENARIO.json: its requests are written down".into()
                })?;
                Ok(Box::new(scenario))
            }
            (None, None) => Err(Failure::usage("neither SCENARIO.json nor --workload is given")),
        }
    }

    fn write_page(
        &self,
        file: &AtomicFile,
        mut header: Header,
        finished: &Finished,
        end: &End,
    ) -> Result<(), Failure> {
        header.first = finished.first;
        let shown = finished.steps.len() as u64;
        if shown < end.total {
            let (first, total) = (header.first + 1, end.total);
            let steps = match shown {
                0 => format!("The run ended with step {total}, before step {first}"),
                _ => format!("Steps {first} to {} of {total}", header.first + shown),
            };
            let of_replica = if finished.report.replicas.is_empty() { "" } else { " of replica 0" };
            let note = format!("{steps}{of_replica}; plots and figures are of the whole run.");
            if let Some(notes) = header.setup.get_mut("notes").and_then(|notes| notes.as_array_mut()) {
                notes.push(note.into());
            }
        }
        let data =
            trace::page_data(&header, &finished.steps, end, &finished.plots).map_err(Failure::failed)?;
        file.write(kvasir_view::page(&header.title, &data).as_bytes())
    }

    fn print(&self, report: &Report, setup: Map<String, Value>, took: Duration) -> Result<ExitCode, Failure> {
        if self.json {
            let mut json = serde_json::to_value(report).map_err(Failure::failed)?;
            json["setup"] = setup.into();
            println!("{json}");
        } else {
            for (name, value) in report.numbers() {
                println!("{name:<26}{value}");
            }
            for (finish, n) in &report.ended {
                println!("ended: {finish:<19}{n}");
            }
            for (name, columns) in RoleTime::table(&report.time_of_replicas) {
                let columns: String = columns.iter().map(|column| format!("{column:<16}")).collect();
                println!("{name:<26}{}", columns.trim_end());
            }
            for (name, replica) in listed_replicas(&report.replicas) {
                println!("{name:<26}{}", replica.line());
            }
            println!("{:<26}{}, {} weights", "machine", report.machine.name, report.machine.weights);
            for (source, figures) in report.machine.sources() {
                println!("{source}: {figures}");
            }
            eprintln!("simulated in {:.1} s", took.as_secs_f64());
        }
        match &report.broke_off {
            Some(why) => Err(Failure::failed(why)),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}
