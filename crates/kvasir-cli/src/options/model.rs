//! Model and backend options shared by subcommands: path or hub name, backend, precision, threads,
//! K/V type.

use crate::doctor::forecast::{Forecast, limits_of};
use crate::io::failure::Failure;
use crate::options::rules::rule;
use kvasir::{
    Acceptance, BackendKind, DRAFT_METHODS, EngineConfig, KvType, LoadedModel, ModelFiles, OpenedModel,
    Speculation,
};
use kvasir_cpu::{Isa, MachineLimits, ThreadPool};
use kvasir_sim::Preset;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Which model.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Which {
    /// A GGUF file, a directory in the Hugging Face layout, a hub name (`OWNER/NAME[@REVISION][:TAG]`) or a short one
    /// (`llama3.2:1b`); the built-in model unless given
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl Which {
    pub(crate) fn open(&self) -> Result<OpenedModel, Failure> {
        Ok(self.model.as_deref().map_or_else(OpenedModel::built_in, OpenedModel::find)?)
    }

    /// The argument, if it names no model.
    pub(crate) fn unknown(&self) -> Option<String> {
        let given = self.model.as_ref().filter(|name| !ModelFiles::is_named(name))?;
        Some(given.to_string_lossy().into_owned())
    }

    /// Default model name: that of its file or folder, or the short name.
    pub(crate) fn name(&self) -> String {
        let Some(given) = &self.model else { return kvasir::BUILT_IN.into() };
        let name = |part: Option<&OsStr>| {
            part.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
        };
        match given.canonicalize() {
            Ok(path) => name(path.file_stem()),
            // A dot in a hub name does not begin a file extension.
            Err(_) if given.extension().is_none_or(|end| end != "gguf") => name(given.file_name()),
            Err(_) => name(given.file_stem()),
        }
    }
}

/// Which model, and what computes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ComputeArgs {
    #[command(flatten)]
    which: Which,
    /// Backend
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_BACKEND")]
    backend: Backend,
    /// `exact`: f32 arithmetic on the weights as stored; `auto`: the fastest arithmetic that gives each request the same
    /// tokens in any batch
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_PRECISION")]
    precision: Precision,
    /// Threads of the cpu backend [default: the machine's parallelism]
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Data type of the KV cache: f32, f16, bf16, fp8, q8_0, q4_0, q8a or q4a [default: bf16; f32 with `exact` and on the plain backend]
    #[arg(long, env = "KVASIR_KV_DTYPE", value_name = "TYPE", value_parser = kv_type)]
    kv_dtype: Option<KvType>,
    #[command(flatten)]
    kernels: KernelArgs,
}

/// Which kernels of the cpu backend run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KernelArgs {
    /// Limit the instruction set of the cpu backend: portable, avx2, avx-vnni, avx512-vnni, avx512-bf16 or amx, on Arm neon [default: the machine's best]
    #[arg(long, env = "KVASIR_INSTRUCTIONS", value_name = "LEVEL")]
    pub(crate) instructions: Option<Isa>,
}

/// Which model, what computes, and how it decodes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// How drafts of --spec mtp, eagle3 and draft are accepted when sampling: `coupled` gives the tokens of decoding
    /// without drafts, `rejection` their distribution (chains only: a tree is verified as with `coupled`)
    #[arg(long, value_enum, env = "KVASIR_ACCEPT", requires = "spec", value_name = "RULE")]
    accept: Option<Accept>,
    /// Batch sizes that the plain backend declares, such as 1,2,4,8: decode steps are padded with dummy rows to the next,
    /// as for a device of static shapes [default: none]
    #[arg(long, env = "KVASIR_BATCH_SIZES", value_name = "SIZES", value_delimiter = ',')]
    batch_sizes: Vec<u32>,
    /// Speed of the sim backend: instant, fixed:5ms, or machine and model shape, such as h200:qwen3-14b
    #[arg(long, env = "KVASIR_SIM_PRESET", value_name = "PRESET")]
    sim_preset: Option<String>,
}

/// How drafts are made.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DraftArgs {
    #[arg(long, env = "KVASIR_SPEC", value_name = "METHOD", help = spec_help() + " [default: none]")]
    spec: Option<Speculation>,
}

/// Help of `--spec`: all methods with their parameters.
pub(crate) fn spec_help() -> String {
    let methods: Vec<_> =
        DRAFT_METHODS.iter().map(|m| format!("{}{} ({})", m.name, m.syntax, m.summary)).collect();
    format!(
        "Speculative decoding: {}. DIR and MODEL may be hub names; `kvasir sim` takes eagle3 without DIR, and a \
         shape as MODEL. Without K or depth, the engine chooses the number of drafts",
        methods.join(", ")
    )
}

impl DraftArgs {
    /// Which drafter, if any.
    pub(crate) fn speculation(&self) -> Option<&Speculation> {
        self.spec.as_ref()
    }

    /// Opens the draft model of `opened`, if one is wanted; `accept` replaces the method's rule of acceptance.
    pub(crate) fn apply(
        &self,
        opened: OpenedModel,
        accept: Option<Acceptance>,
    ) -> Result<OpenedModel, Failure> {
        let Some(spec) = &self.spec else { return Ok(opened) };
        let acceptance = accept.unwrap_or(spec.acceptance);
        Ok(opened.speculate(&Speculation { acceptance, ..spec.clone() })?)
    }
}

/// Parses a K/V data type.
pub(crate) fn kv_type(name: &str) -> Result<KvType, String> {
    let names = || KvType::ALL.map(|kind| kind.to_string()).join(", ");
    KvType::from_name(name).ok_or_else(|| format!("{name} is none of {}", names()))
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// The fastest available
    Auto,
    /// Optimized CPU kernels
    Cpu,
    /// Reference backend in f32 with explicit masks: slow
    Plain,
    /// Simulated device that outputs arbitrary tokens, for load tests
    Sim,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Accept {
    Coupled,
    Rejection,
}

impl From<Accept> for Acceptance {
    fn from(accept: Accept) -> Self {
        match accept {
            Accept::Coupled => Self::Coupled,
            Accept::Rejection => Self::Rejection,
        }
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Precision {
    Auto,
    Exact,
}

impl ComputeArgs {
    /// Whether the CPU kernels compute.
    pub(crate) fn is_on_cpu(&self) -> bool {
        matches!(self.backend, Backend::Auto | Backend::Cpu)
    }

    /// Whether the simulated device stands in for the model.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.backend, Backend::Sim)
    }

    /// The limit of the instruction set; refused for a backend without kernels for one.
    pub(crate) fn instructions(&self) -> Result<Option<Isa>, Failure> {
        let level = self.kernels.instructions;
        rule(level.is_none() || self.is_on_cpu(), || {
            "--instructions needs the cpu backend: the others have no kernels to choose".into()
        })?;
        Ok(level)
    }

    /// Opens the model and prepares it for the backend, without speculative decoding.
    pub(crate) fn load(&self) -> Result<LoadedModel, Failure> {
        self.load_opened(self.which.open()?, Preset::parse("instant"))
    }

    /// Prepares an opened model for the backend. `preset` is the simulated device.
    fn load_opened(
        &self,
        opened: OpenedModel,
        preset: Result<Preset, String>,
    ) -> Result<LoadedModel, Failure> {
        self.check_backend()?;
        let backend = match self.backend {
            Backend::Auto => BackendKind::Auto,
            Backend::Cpu => BackendKind::Cpu,
            Backend::Plain => BackendKind::Plain,
            Backend::Sim => BackendKind::Sim(Box::new(
                preset.map_err(|why| Failure::usage(format!("--sim-preset: {why}")))?,
            )),
        };
        let loaded = opened.load(backend, self.precision(), self.threads())?;
        Ok(match self.kv_dtype {
            Some(kv) => loaded.with_kv(kv)?,
            None => loaded,
        })
    }

    fn precision(&self) -> kvasir::Precision {
        match self.precision {
            Precision::Auto => kvasir::Precision::Auto,
            Precision::Exact => kvasir::Precision::F32,
        }
    }

    fn threads(&self) -> Option<usize> {
        self.threads.map(|n| n as usize)
    }

    /// Refuses options without effect on the chosen backend.
    fn check_backend(&self) -> Result<(), Failure> {
        let (on_cpu, simulates) = (self.is_on_cpu(), self.is_simulated());
        rule(on_cpu || self.threads.is_none(), || {
            "--threads needs the cpu backend: the others have one thread".into()
        })?;
        rule(!simulates || self.kv_dtype.is_none(), || {
            "--kv-dtype cannot be combined with --backend sim: it stores no K and V".into()
        })?;
        rule(!simulates || matches!(self.precision, Precision::Auto), || {
            "--precision exact cannot be combined with --backend sim: it computes nothing".into()
        })
    }
}

impl ModelArgs {
    pub(crate) fn load(&self) -> Result<LoadedModel, Failure> {
        self.load_opened(self.open()?)
    }

    /// Opens the files of the model and of its draft model; reads headers only.
    pub(crate) fn open(&self) -> Result<OpenedModel, Failure> {
        self.speculate(self.compute.which.open()?)
    }

    /// Opens the draft model of an opened model, if one is wanted.
    pub(crate) fn speculate(&self, opened: OpenedModel) -> Result<OpenedModel, Failure> {
        self.draft.apply(opened, self.accept.map(Acceptance::from))
    }

    /// Sets `--threads`, unless given, to an equal part of the machine's processors for each of
    /// `engines` engines on the CPU.
    pub(crate) fn with_threads_for(mut self, engines: u32) -> Self {
        if self.compute.is_on_cpu() && self.compute.threads.is_none() {
            let processors = ThreadPool::of_machine().len() as u32;
            self.compute.threads = Some((processors / engines.max(1)).max(1));
        }
        self
    }

    /// Threads of each of `ranks` ranks: `--threads` in parts that differ by at most one, and are at
    /// least one.
    pub(crate) fn rank_threads(&self, ranks: usize) -> Vec<usize> {
        let threads = self.thread_count();
        (0..ranks).map(|rank| (threads / ranks + usize::from(rank < threads % ranks)).max(1)).collect()
    }

    /// With the threads of one rank.
    pub(crate) fn with_rank_threads(mut self, threads: usize) -> Self {
        self.compute.threads = self.compute.threads.map(|_| threads as u32);
        self
    }

    /// Number of compute threads: `--threads`, or 1 if it is not set.
    pub(crate) fn thread_count(&self) -> usize {
        self.compute.threads().unwrap_or(1)
    }

    /// With the drafts of `suffix`, unless `--spec` names others.
    pub(crate) fn or_suffix_drafts(mut self) -> Self {
        self.draft.spec = self.draft.spec.or_else(|| "suffix".parse().ok());
        self
    }

    /// Prepares an opened model for the backend.
    pub(crate) fn load_opened(&self, opened: OpenedModel) -> Result<LoadedModel, Failure> {
        if let (Some(preset), false) = (&self.sim_preset, self.compute.is_simulated()) {
            return Err(Failure::usage(format!("--sim-preset {preset} needs --backend sim")));
        }
        let preset = Preset::parse(self.sim_preset.as_deref().unwrap_or("instant"));
        let loaded = self.compute.load_opened(opened, preset)?;
        if self.batch_sizes.is_empty() {
            return Ok(loaded);
        }
        Ok(loaded.with_batch_sizes(self.batch_sizes.clone())?)
    }

    /// Predictions before loading, for an engine with this configuration; `None` for the simulated
    /// device. Measures the arithmetic of the machine, which takes tens of milliseconds.
    pub(crate) fn forecast(&self, opened: &OpenedModel, config: &EngineConfig) -> Option<Forecast> {
        let compute = &self.compute;
        let (kv, peaks) = match compute.backend {
            Backend::Sim => return None,
            // Arithmetic limits do not predict the speed of the reference loops.
            Backend::Plain => (KvType::F32, None),
            Backend::Auto | Backend::Cpu => {
                let threads = compute.threads().map_or_else(ThreadPool::of_machine, ThreadPool::new);
                let limits = MachineLimits::of_arithmetic(&threads);
                let (kv, peaks) = limits_of(opened, compute.precision(), limits);
                (kv, Some(peaks))
            }
        };
        let kv = compute.kv_dtype.unwrap_or(kv);
        Some(Forecast::of(opened, kv, kvasir::available_memory(), config, peaks.as_ref()))
    }

    /// The same options for another model.
    pub(crate) fn with_path(&self, path: &Path) -> Self {
        let which = Which { model: Some(path.to_owned()) };
        Self { compute: ComputeArgs { which, ..self.compute.clone() }, ..self.clone() }
    }

    /// The same options for the built-in model.
    pub(crate) fn with_built_in(self) -> Self {
        let which = Which { model: None };
        Self { compute: ComputeArgs { which, ..self.compute }, ..self }
    }

    pub(crate) fn which(&self) -> &Which {
        &self.compute.which
    }

    pub(crate) fn name(&self) -> String {
        self.compute.which.name()
    }

    pub(crate) fn compute(&self) -> &ComputeArgs {
        &self.compute
    }
}
