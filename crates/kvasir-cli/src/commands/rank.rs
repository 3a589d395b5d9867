//! `kvasir rank`: the process of one tensor-parallel rank other than 0 (`serve --tp`).
//!
//! Rank 0 starts it with the arguments of `serve`, so all ranks parse the same options.

use crate::commands::CommandLine;
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::fleet::{FleetArgs, RankControlMode};
use crate::options::model::ModelArgs;
use crate::options::sampling::SamplingArgs;
use crate::startup::ready_engine::shard;
use crate::startup::{build_model, identity, share_packed};
use kvasir::{DEFAULT_SLOTS, OpenedModel, Rank, Token};
use kvasir_fleet::{Affinity, RankCommand, RankConfig, RankProcess, StepHashes};
use std::{
    env,
    ffi::OsString,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Index of the rank, from 1
    #[arg(long)]
    rank: usize,
    /// Index of the rank's replica
    #[arg(long)]
    replica: usize,
    /// Inherited file descriptor of the packed weights
    #[arg(long)]
    packed_weights: Option<i32>,
    /// Arguments of `kvasir serve`, starting with the program name
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Returns the command that starts a rank of `replica`. `arguments` are those of `serve`; the rank
/// inherits the file descriptor `packed_weights`.
pub(crate) fn command(
    replica: u32,
    packed_weights: Option<i32>,
    arguments: Vec<OsString>,
) -> Result<RankCommand, Failure> {
    let program = env::current_exe().map_err(Failure::failed)?;
    let arguments = Box::new(move |rank: usize| {
        let rank = ["rank".into(), "--rank".into(), rank.to_string().into()];
        let replica = ["--replica".into(), replica.to_string().into()];
        let packed = packed_weights.map(|file| ["--packed-weights".into(), file.to_string().into()]);
        let own = rank.into_iter().chain(replica).chain(packed.into_iter().flatten());
        own.chain(["--".into()]).chain(arguments.iter().cloned()).collect()
    });
    Ok(RankCommand { program, arguments })
}

/// Pins this thread to the processors of a rank, if each thread of all `replicas` can have one.
/// `threads` are those of each rank of a replica.
pub(crate) fn pin(
    threads: &[usize],
    rank: usize,
    replica: usize,
    replicas: usize,
) -> Result<Option<Affinity>, Failure> {
    let of_replica: usize = threads.iter().sum();
    let first = replica * of_replica + threads[..rank].iter().sum::<usize>();
    Affinity::pin(first, threads[rank], replicas * of_replica).map_err(Failure::failed)
}

impl Args {
    /// Runs the steps of rank 0 until rank 0 exits. Always returns an error.
    pub(crate) fn run(self, line: &CommandLine) -> Result<ExitCode, Failure> {
        let usage =
            "`rank` needs the arguments of `kvasir serve` after `--`; run `kvasir serve --tp M` instead";
        let serve = line.begin_child(self.arguments, usage)?;
        if let Some(level) = serve.model().compute().instructions()? {
            level.limit();
        }
        let (model, options, sampling_args, fleet) = serve.for_worker();
        let opened = model.open()?;
        let identity = identity(&opened, &model, &options);
        let process = format!("rank {} of replica {}", self.rank, self.replica);
        let opened = share_packed(opened, self.packed_weights, &identity, &process);
        let config = RankConfig { rank: self.rank, ranks: fleet.ranks(), identity };
        let process = RankProcess::connect(config).map_err(Failure::failed)?;
        let start =
            RankStart { rank: self.rank, replica: self.replica, model, options, sampling_args, fleet };
        let failed = start.run(&process, opened).err();
        let failure = failed.unwrap_or_else(|| Failure::failed("rank 0 has ended"));
        process.fail(&failure.to_string());
        Err(failure)
    }
}

/// Parsed options of a rank.
struct RankStart {
    rank: usize,
    replica: usize,
    model: ModelArgs,
    options: Options,
    sampling_args: SamplingArgs,
    fleet: FleetArgs,
}

impl RankStart {
    /// Loads the rank's shard and runs the steps of rank 0.
    fn run(self, process: &RankProcess, opened: OpenedModel) -> Result<(), Failure> {
        let (ranks, engines) = (self.fleet.ranks(), self.fleet.replicas().unwrap_or(1));
        let opened = shard(opened, self.rank, ranks)?;
        let model = self.model.with_threads_for(engines);
        let threads = model.rank_threads(ranks);
        let _affinity = pin(&threads, self.rank, self.replica, engines as usize)?;
        let model = model.with_rank_threads(threads[self.rank]);
        let loaded = model.load_opened(opened)?;
        let by_requests = self.fleet.rank_control() == RankControlMode::Requests;
        let control = by_requests.then(|| Box::new(StepHashes::new(process.member())) as Box<_>);
        let loaded = loaded.among(Rank { ranks: process.member(), control });
        let sizes = process.wait_for_start().map_err(Failure::failed)?;
        // Rank 0 has checked that the capacity fits into memory.
        let config = kvasir::EngineConfig {
            kv_capacity: Some(sizes.slots),
            memory_utilization: None,
            overcommit: true,
            ..self.options.config()?
        };
        let mut resolved = loaded.resolve(&config, DEFAULT_SLOTS)?;
        // The sizes of rank 0, not those that fit this rank's memory: plans of rank 0 name slots of
        // these pools.
        resolved.cache.windows = sizes.windows;
        resolved.cache.states = sizes.states;
        let core = resolved.core()?;
        if !by_requests {
            let mut executor = loaded.executor_for(&core)?;
            process.ready().map_err(Failure::failed)?;
            return process.follow(&mut executor).map_err(Failure::failed);
        }
        let max_len = core.limits().max_model_len.min(core.cache().shape().capacity);
        let mut engine = loaded.engine(core, resolved.overlap)?;
        let (opened, sampling_args) = (&loaded.opened, &self.sampling_args);
        let chat =
            build_model(String::new(), opened, loaded.tells_hidden(), sampling_args, None, max_len)?.chat;
        drop(loaded);
        process.ready().map_err(Failure::failed)?;
        kvasir::warm_up(&mut engine)?;
        let build = Box::new(move |recipe: &str, prompt: &[Token], canceled: &Arc<AtomicBool>| {
            chat.follow_recipe(recipe, prompt, canceled).ok()
        });
        process.serve(&mut engine, build).map_err(Failure::failed)
    }
}
