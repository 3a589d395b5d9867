//! `kvasir bench`: measures prefill (`pp`), decode (`tg`) and batched decode speed against the
//! machine's roofline.

use crate::commands::{bench_fidelity, bench_offline, bench_serve};
use crate::io::failure::Failure;
use crate::options::model::{ModelArgs, kv_type, spec_help};
use kvasir::{BackendKind, ModelFiles, OpenedModel, Speculation, Token};
use kvasir_bench::bench::speculation::{self, SpeculationBench, SpeculationReport};
use kvasir_bench::bench::{self, Subject, Work};
use kvasir_cpu::{CpuModel, KvType, Precision};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

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
        /// Tokens of the prompt
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        tokens: u32,
    },
    /// Measure decoding of one sequence behind a context
    #[command(allow_negative_numbers = true)]
    Tg {
        #[command(flatten)]
        common: Common,
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
    /// Measure speculative decoding beside plain decoding, on an output that is given
    #[command(allow_negative_numbers = true)]
    Spec {
        #[command(flatten)]
        common: Common,
        #[arg(long, value_name = "METHOD", default_value = "suffix", help = spec_help())]
        spec: Speculation,
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
    /// Load-test a server of OpenAI's streaming API: TTFT, TPOT, goodput
    Serve(Box<bench_serve::Args>),
}

/// Stolen CPU time from which it is reported, as a fraction.
const NOTABLE: f64 = 0.01;

#[derive(clap::Args)]
struct Common {
    /// A GGUF file, a directory in the Hugging Face layout, a hub name (`OWNER/NAME[@REVISION][:TAG]`), or
    /// `kvasir-mini`, the built-in model
    #[arg(required_unless_present = "shape", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// Shape of a known model, with random weights
    #[arg(long, value_name = "NAME", requires = "dtype")]
    shape: Option<String>,
    /// Data type of the random weights
    #[arg(long, value_name = "TYPE", requires = "shape", conflicts_with = "model")]
    dtype: Option<String>,
    /// `exact`: f32 arithmetic; `auto`: the fastest arithmetic that is batch-invariant
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_PRECISION")]
    precision: Speed,
    /// Data type of the KV cache: f32, f16, bf16, fp8, q8_0, q4_0, q8a or q4a
    #[arg(long, env = "KVASIR_KV_DTYPE", value_name = "TYPE", value_parser = kv_type)]
    kv_dtype: Option<KvType>,
    /// Threads [default: the machine's parallelism]
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Measured repetitions, after one warm-up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
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
    let text = Failure::read(file)?;
    let tokenizer = OpenedModel::built_in()?.tokenizer()?;
    let tokenizer = tokenizer.ok_or_else(|| Failure::failed("the built-in model has no tokenizer"))?;
    tokenizer.encode(&text, false).map_err(Failure::failed)
}

/// Runs `bench` without and with the drafts of `spec`. A draft model takes part of its target, so
/// `target` is then loaded a second time with it.
fn compare_drafts(
    bench: &SpeculationBench,
    spec: &Speculation,
    common: &Common,
    target: &Arc<CpuModel>,
    kv: KvType,
) -> Result<SpeculationReport, Failure> {
    let vocab = target.program().vocab;
    let plain = bench.engine(target, kv).map_err(Failure::failed)?;
    if let Some(drafter) = spec.drafter() {
        let drafting = bench.engine(target, kv).map_err(Failure::failed)?;
        let drafting = drafting.draft(drafter).map_err(Failure::failed)?;
        let drafting = drafting.draft_width(spec.parameters.width);
        return bench.run(vocab, plain, drafting).map_err(Failure::failed);
    }
    let Some(model) = &common.model else {
        return Err(Failure::usage(format!("--spec {spec} needs a MODEL: --shape has no draft model")));
    };
    let opened = OpenedModel::find(model)?.speculate(spec)?;
    let threads = common.threads.map(|n| n as usize);
    let loaded = opened.load(BackendKind::Cpu, common.precision.into(), threads)?.with_kv(kv)?;
    let drafting = loaded.engine(bench.core().map_err(kvasir::Error::from)?, false)?;
    bench.run(vocab, plain, drafting).map_err(Failure::failed)
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Speed {
    Exact,
    Auto,
}

impl From<Speed> for Precision {
    fn from(speed: Speed) -> Self {
        match speed {
            Speed::Exact => Self::F32,
            Speed::Auto => Self::Auto,
        }
    }
}

impl Args {
    /// Model and backend options of a benchmark that takes them; the others run on the cpu backend.
    pub(crate) fn model(&self) -> Option<&ModelArgs> {
        match &self.what {
            What::Offline(args) => Some(args.model()),
            _ => None,
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut speculative = None;
        let (common, work) = match self.what {
            What::Spec { common, spec, task, file, tokens, streams } => {
                let bench = SpeculationBench {
                    task: task.into(),
                    text: text(&file)?,
                    tokens: tokens as usize,
                    streams: streams as usize,
                    reps: common.reps as usize,
                };
                speculative = Some((bench, spec));
                (common, Work::Generation { tokens, depth: 0 })
            }
            What::Pp { common, tokens } => (common, Work::Prompt { tokens }),
            What::Tg { common, tokens, depth } => (common, Work::Generation { tokens, depth }),
            What::Batch { common, streams, shared, prompt, tokens } => {
                (common, Work::Streams { streams, shared, prompt, tokens })
            }
            What::Fidelity(args) => return args.run(),
            What::Offline(args) => return args.run(),
            What::Serve(args) => return args.run(),
        };
        let precision = common.precision.into();
        let subject = match (&common.model, &common.shape, &common.dtype) {
            (Some(model), ..) => Subject::Checkpoint(Box::new(ModelFiles::locate(model)?.checkpoint()?)),
            (None, Some(shape), Some(dtype)) => Subject::Shape(shape, dtype),
            _ => return Err(Failure::usage("bench needs a MODEL or --shape with --dtype")),
        };
        let model = bench::load(subject, precision, common.threads.map(|n| n as usize));
        let model = model.map_err(|why| match common.model {
            Some(_) => Failure::failed(why),
            None => Failure::usage(why),
        })?;
        let kv = common.kv_dtype.unwrap_or_else(|| model.natural_kv());
        if let Some((bench, spec)) = speculative {
            let report = compare_drafts(&bench, &spec, &common, &model, kv)?;
            if common.json {
                println!("{}", serde_json::to_string(&report).map_err(Failure::usage)?);
            } else {
                let speed =
                    |samples: &[f64]| samples.iter().map(|x| format!("{x:.1}")).collect::<Vec<_>>().join(" ");
                println!("without drafts {} tok/s", speed(&report.without));
                println!("with drafts    {} tok/s", speed(&report.with));
                println!(
                    "ratio {:.2}; {} of {} drafts accepted, {:.2} tokens per step",
                    report.ratio, report.accepted, report.drafted, report.tokens_per_step
                );
            }
            return Ok(ExitCode::SUCCESS);
        }
        let measured = bench::bench(&model, kv, work, common.reps as usize).map_err(Failure::usage)?;
        if common.json {
            println!("{}", serde_json::to_string(&measured).map_err(Failure::usage)?);
        } else {
            for (form, bytes) in model.forms() {
                println!("{form}: {:.1} MB", bytes as f64 / 1e6);
            }
            println!(
                "{:.1} tok/s, {:.0} % of the {:.1} that {} allows ({} with {} threads: {:.1} GB/s, integer {:.2} T, bf16 {:.2} T)",
                measured.median,
                measured.share * 100.0,
                measured.limit,
                measured.bound,
                measured.level,
                measured.threads,
                measured.bandwidth / 1e9,
                measured.peaks.integer / 1e12,
                measured.peaks.bf16 / 1e12,
            );
            if let Some(stolen) = measured.most_stolen().filter(|share| *share >= NOTABLE) {
                println!(
                    "others on this hardware took up to {:.0} % of the processors' time",
                    stolen * 100.0
                );
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
