//! `kvasir rank`: one rank of an engine of `serve --tp`, in a process of its own. The engine's process
//! passes the server's arguments on, so all parse the same options.

use crate::commands::{Command, CommandLine};
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::fleet::{FleetArgs, RankControl};
use crate::options::model::ModelArgs;
use crate::options::sampling::SamplingArgs;
use crate::startup::{build_model, cut, identity, share_packed};
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
    /// Number of the rank, from 1
    #[arg(long)]
    rank: usize,
    /// Index of the replica that it belongs to
    #[arg(long)]
    replica: usize,
    /// Inherited descriptor of the file of packed weights
    #[arg(long)]
    packed_weights: Option<i32>,
    /// Arguments of the server, its name first
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// The command that starts a rank of a replica of a `serve` with these arguments. The rank inherits the
/// descriptor of the file of packed weights, if there is one.
pub(crate) fn command(
    replica: u32,
    packed_weights: Option<i32>,
    arguments: Vec<OsString>,
) -> Result<RankCommand, Failure> {
    let program = env::current_exe().map_err(Failure::failed)?;
    let arguments = Box::new(move |rank: usize| {
        let numbers = ["rank".into(), "--rank".into(), rank.to_string().into()];
        let replica = ["--replica".into(), replica.to_string().into()];
        let packed = packed_weights.map(|file| ["--packed-weights".into(), file.to_string().into()]);
        let own = numbers.into_iter().chain(replica).chain(packed.into_iter().flatten());
        own.chain(["--".into()]).chain(arguments.iter().cloned()).collect()
    });
    Ok(RankCommand { program, arguments })
}

impl Args {
    /// Runs the steps of rank 0 until that ends.
    pub(crate) fn run(self, line: &CommandLine) -> Result<ExitCode, Failure> {
        let Command::Serve(serve) = (line.parse)(self.arguments)? else {
            return Err(Failure::usage(
                "`rank` needs the arguments of `kvasir serve` after `--`; use `kvasir serve --tp M`",
            ));
        };
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

/// What a rank starts with.
struct RankStart {
    rank: usize,
    replica: usize,
    model: ModelArgs,
    options: Options,
    sampling_args: SamplingArgs,
    fleet: FleetArgs,
}

impl RankStart {
    /// Loads the part of the rank, and follows rank 0.
    fn run(self, process: &RankProcess, opened: OpenedModel) -> Result<(), Failure> {
        let (ranks, engines) = (self.fleet.ranks(), self.fleet.replicas().unwrap_or(1));
        let model = self.model.with_threads_for(engines).with_part_of_threads(self.rank, ranks);
        let place = self.replica * ranks + self.rank;
        let _affinity =
            Affinity::pin(place, engines as usize * ranks, model.thread_count()).map_err(Failure::failed)?;
        let loaded = model.load_opened(cut(opened, self.rank, ranks)?)?;
        let by_requests = self.fleet.rank_control() == RankControl::Requests;
        let control = by_requests.then(|| Box::new(StepHashes::new(process.member())) as Box<_>);
        let loaded = loaded.among(Rank { ranks: process.member(), control });
        let slots = process.wait_for_start().map_err(Failure::failed)?;
        // Rank 0 has checked the capacity against the memory.
        let config =
            kvasir::EngineConfig { kv_capacity: Some(slots), overcommit: true, ..self.options.config()? };
        let resolved = loaded.resolve(&config, DEFAULT_SLOTS)?;
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
