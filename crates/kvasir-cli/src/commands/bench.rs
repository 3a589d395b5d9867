//! `kvasir bench`: measures prefill (`pp`), decode (`tg`) and batched decode speed against the
//! machine's roofline.

use crate::commands::{bench_broadcast, bench_fidelity, bench_offline, bench_serve};
use crate::io::failure::Failure;
use crate::options::model::ModelArgs;
use crate::options::resolve::setup_of;
use crate::options::rules::rule;
use crate::options::{Options, SequenceOptions};
use kvasir::{CacheKind, LoadedModel, OpenedModel, Resolved, Token};
use kvasir_bench::bench::speculation::{self, SpeculationBench};
use kvasir_bench::bench::{self, Measured, Target, Work};
use kvasir_bench::shapes::{SHAPES, shape};
use kvasir_cpu::Isa;
use kvasir_formats::DType;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Measure prefill of one prompt
    #[command(allow_negative_numbers = true)]
    Pp {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        options: SequenceOptions,
        /// Tokens of the prompt
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        tokens: u32,
    },
    /// Measure decoding of one sequence behind a context
    #[command(allow_negative_numbers = true)]
    Tg {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        options: SequenceOptions,
        /// Tokens to generate
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        tokens: u32,
        /// Context length in tokens
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
        depth: u32,
    },
    /// Measure decoding of several sequences in one batch
    #[command(allow_negative_numbers = true)]
    Batch {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        options: Options,
        /// Sequences
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
        streams: u32,
        /// Length of a prefix that all sequences share; it is prefilled once, before the time starts
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
        shared: u32,
        /// Prompt tokens of each sequence, after the shared prefix
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        prompt: u32,
        /// Tokens that each sequence generates
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        tokens: u32,
    },
    /// Compare speculative decoding (--spec) with plain decoding, both forced to the same given output
    #[command(allow_negative_numbers = true)]
    Spec {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        options: Options,
        /// What is written: `rewrite` repeats the prompt with three edits, `continue` continues the file, `random` is random tokens
        #[arg(long, value_enum, default_value = "rewrite")]
        task: Task,
        /// Text file; it is read with the built-in model's tokenizer, whatever the model
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        /// Tokens of the prompt and of the output
        #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(16..=100_000))]
        tokens: u32,
        /// Sequences that decode together
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
        streams: u32,
    },
    /// Measure the error of the default arithmetic against exact arithmetic, on a text
    Fidelity(bench_fidelity::Args),
    /// Measure the throughput of an offline batch of prompts
    Offline(Box<bench_offline::Args>),
    /// Measure the latency of a step from rank 0 to another rank (tensor parallelism)
    Broadcast(bench_broadcast::Args),
    /// Load-test a server of OpenAI's streaming API: TTFT, TPOT, goodput
    Serve(Box<bench_serve::Args>),
}

/// Stolen CPU time from which it is reported, as a fraction.
const NOTABLE: f64 = 0.01;

#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    model: ModelArgs,
    /// Shape of a known model, with random weights
    #[arg(long, value_name = "NAME", requires = "dtype", conflicts_with = "model")]
    shape: Option<String>,
    /// Data type of the random weights
    #[arg(long, value_name = "TYPE", requires = "shape", conflicts_with = "model")]
    dtype: Option<String>,
    /// Measured repetitions, after one warm-up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Common {
    fn load(&self) -> Result<LoadedModel, Failure> {
        let (Some(name), Some(dtype)) = (&self.shape, &self.dtype) else { return self.model.load() };
        let refused = || Failure::usage(format!("--shape: {name} is none of {}", SHAPES.join(", ")));
        let config = shape(name).ok_or_else(refused)?;
        let dtype =
            DType::from_name(dtype).ok_or_else(|| Failure::usage(format!("--dtype: no type {dtype}")))?;
        self.model.load_opened(self.model.speculate(OpenedModel::random(&config, dtype)?)?)
    }

    /// Measures `work` on an engine of this configuration, and prints the result.
    fn measure(&self, model: &LoadedModel, resolved: &Resolved, work: Work) -> Result<ExitCode, Failure> {
        let cpu = model.cpu_model();
        rule(!(resolved.overlap && cpu.is_some()), || {
            "--overlap on cannot be combined with bench on the cpu backend: the machine's limits are measured between steps".into()
        })?;
        let core = resolved.core()?;
        let mut setup = setup_of(model, resolved, &core);
        setup.insert("work".into(), json!(work));
        let engine = model.engine(core, resolved.overlap)?;
        let vocab = model.program().vocab as u32;
        let target = Target { cpu, kv: model.kv(), token_bytes: model.slot_bytes(), vocab };
        let measured = bench::bench(engine, &target, work, self.reps as usize).map_err(Failure::failed)?;
        self.print(&measured, setup, |measured| {
            for (form, bytes) in target.cpu.iter().flat_map(|model| model.forms()) {
                println!("weights as {form}: {:.1} MB", bytes as f64 / 1e6);
            }
            print_measured(measured);
        })
    }

    /// Prints a report as one JSON object with the configuration, or as lines.
    fn print<T: Serialize>(
        &self,
        report: &T,
        setup: Map<String, Value>,
        lines: impl FnOnce(&T),
    ) -> Result<ExitCode, Failure> {
        if self.json {
            let mut json = serde_json::to_value(report).map_err(Failure::failed)?;
            json["setup"] = setup.into();
            println!("{json}");
        } else {
            lines(report);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_measured(measured: &Measured) {
    match &measured.roofline {
        Some(roofline) => println!(
            "{:.1} tok/s (median of {} repetitions), {:.0} % of the {:.1} tok/s that {} allows\n\
             measured limits of this machine ({}, {} threads): memory {:.1} GB/s, 16-bit integer {:.2} T \
             operations/s, bf16 {:.2} T operations/s",
            measured.median,
            measured.samples.len(),
            roofline.share * 100.0,
            roofline.limit,
            roofline.bound,
            roofline.level,
            roofline.threads,
            roofline.bandwidth / 1e9,
            roofline.peaks.integer / 1e12,
            roofline.peaks.bf16 / 1e12,
        ),
        None => println!("{:.1} tok/s (median of {} repetitions)", measured.median, measured.samples.len()),
    }
    if let Some(drafts) = &measured.speculation {
        println!("{} of {} drafts accepted", drafts.totals().0, drafts.tokens);
    }
    if let Some(stolen) = measured.most_stolen().filter(|share| *share >= NOTABLE) {
        println!("others on this hardware took up to {:.0} % of the processors' time", stolen * 100.0);
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Task {
    Rewrite,
    Continue,
    Random,
}

impl From<Task> for speculation::Task {
    fn from(task: Task) -> Self {
        match task {
            Task::Rewrite => Self::Rewrite,
            Task::Continue => Self::Continue,
            Task::Random => Self::Random,
        }
    }
}

/// The tokens of a file.
fn text(file: &Path) -> Result<Vec<Token>, Failure> {
    let text = Failure::read_option("--file", file)?;
    let tokenizer = OpenedModel::built_in()?.tokenizer()?;
    let tokenizer = tokenizer.ok_or_else(|| Failure::failed("the built-in model has no tokenizer"))?;
    tokenizer.encode(&text, false).map_err(Failure::failed)
}

impl Args {
    /// The limit of the instruction set, checked against the backend.
    pub(crate) fn instructions(&self) -> Result<Option<Isa>, Failure> {
        match &self.what {
            What::Pp { common, .. }
            | What::Tg { common, .. }
            | What::Batch { common, .. }
            | What::Spec { common, .. } => common.model.compute().instructions(),
            What::Offline(args) => args.model().compute().instructions(),
            What::Fidelity(args) => Ok(args.instructions()),
            What::Broadcast(_) | What::Serve(_) => Ok(None),
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            What::Pp { common, options, tokens } => one_stream(&common, &options, Work::Prompt { tokens }),
            What::Tg { common, options, tokens, depth } => {
                one_stream(&common, &options, Work::Generation { tokens, depth })
            }
            What::Batch { common, options, streams, shared, prompt, tokens } => {
                several_streams(&common, &options, Work::Streams { streams, shared, prompt, tokens })
            }
            What::Spec { common, options, task, file, tokens, streams } => {
                let bench = SpeculationBench {
                    task: task.into(),
                    text: text(&file)?,
                    tokens: tokens as usize,
                    streams: streams as usize,
                    reps: common.reps as usize,
                };
                let common = Common { model: common.model.or_suffix_drafts(), ..common };
                with_and_without_drafts(&common, &options, &bench)
            }
            What::Fidelity(args) => args.run(),
            What::Offline(args) => args.run(),
            What::Broadcast(args) => args.run(),
            What::Serve(args) => args.run(),
        }
    }
}

fn one_stream(common: &Common, options: &SequenceOptions, work: Work) -> Result<ExitCode, Failure> {
    let model = common.load()?;
    work.check(model.max_model_len()).map_err(Failure::usage)?;
    let resolved = options.resolve(&model, work.longest() as usize)?;
    common.measure(&model, &resolved, work)
}

fn several_streams(common: &Common, options: &Options, work: Work) -> Result<ExitCode, Failure> {
    let model = common.load()?;
    work.check(model.max_model_len()).map_err(Failure::usage)?;
    let Work::Streams { streams, shared, .. } = work else {
        return one_stream(common, options.sequence(), work);
    };
    // Each stream may leave its last blocks partly filled, and holds its drafts.
    let each = (work.longest() - shared + model.draft_slots()).next_multiple_of(256) + 256;
    let slots = shared.next_multiple_of(256) + streams * each;
    let resolved = resolve_streams(&model, options, streams, slots, shared > 0)?;
    rule(shared == 0 || resolved.limits.prefix_cache, || {
        format!("--shared {shared} needs a prefix cache: --cache paged or radix, without --prefix-cache off")
    })?;
    common.measure(&model, &resolved, work)
}

fn with_and_without_drafts(
    common: &Common,
    options: &Options,
    bench: &SpeculationBench,
) -> Result<ExitCode, Failure> {
    let model = common.load()?;
    let resolved = resolve_streams(&model, options, bench.streams as u32, bench.slots(), false)?;
    let core = resolved.core()?;
    let mut setup = setup_of(&model, &resolved, &core);
    let work = json!({"task": bench.task, "tokens": bench.tokens, "streams": bench.streams});
    setup.insert("work".into(), work);
    let plain = model.plain_engine(core, resolved.overlap)?;
    let drafting = model.engine(resolved.core()?, resolved.overlap)?;
    let report = bench.run(plain, drafting, model.program().vocab).map_err(Failure::failed)?;
    common.print(&report, setup, |report| {
        let speed = |samples: &[f64]| samples.iter().map(|x| format!("{x:.1}")).collect::<Vec<_>>().join(" ");
        println!("without drafts {} tok/s, one per repetition", speed(&report.without));
        println!("with drafts    {} tok/s", speed(&report.with));
        println!(
            "{:.2} times as fast with drafts (ratio of the medians); {} of {} drafts accepted, {:.2} tokens per step",
            report.ratio, report.accepted, report.drafted, report.tokens_per_step
        );
    })
}

/// Resolves the configuration of an engine for `streams` sequences that take `slots` slots together.
fn resolve_streams(
    model: &LoadedModel,
    options: &Options,
    streams: u32,
    slots: u32,
    shares_prefixes: bool,
) -> Result<Resolved, Failure> {
    let mut config = options.config()?;
    config.max_num_seqs.get_or_insert(streams);
    if !shares_prefixes && config.cache.is_none_or(CacheKind::is_block_based) {
        config.prefix_cache.get_or_insert(false);
    }
    Ok(model.resolve(&config, slots)?)
}
