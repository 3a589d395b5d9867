//! `kvasir rank`: one rank of an engine of `serve --tp`, in a process of its own. The engine's process
//! passes the server's arguments on, so all parse the same options.

use crate::commands::{Command, CommandLine};
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::fleet::FleetArgs;
use crate::options::model::ModelArgs;
use crate::startup::{cut, identity};
use kvasir::{DEFAULT_SLOTS, OpenedModel, Rank};
use kvasir_fleet::{Affinity, RankCommand, RankConfig, RankProcess};
use std::{env, ffi::OsString, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of the rank, from 1
    #[arg(long)]
    rank: usize,
    /// Index of the replica that it belongs to
    #[arg(long)]
    replica: usize,
    /// Arguments of the server, its name first
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// The command that starts a rank of a replica of a `serve` with these arguments.
pub(crate) fn command(replica: u32, arguments: Vec<OsString>) -> Result<RankCommand, Failure> {
    let program = env::current_exe().map_err(Failure::failed)?;
    let arguments = Box::new(move |rank: usize| {
        let numbers = ["rank".into(), "--rank".into(), rank.to_string().into()];
        let replica = ["--replica".into(), replica.to_string().into(), "--".into()];
        numbers.into_iter().chain(replica).chain(arguments.iter().cloned()).collect()
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
        let (model, options, _, fleet) = serve.for_worker();
        let opened = model.open()?;
        let identity = identity(&opened, &model, &options);
        let config = RankConfig { rank: self.rank, ranks: fleet.ranks(), identity };
        let process = RankProcess::connect(config).map_err(Failure::failed)?;
        let place = Place { rank: self.rank, replica: self.replica };
        let failed = place.run(&process, &model, opened, &options, &fleet).err();
        let failure = failed.unwrap_or_else(|| Failure::failed("rank 0 has ended"));
        process.fail(&failure.to_string());
        Err(failure)
    }
}

/// A rank and its replica.
struct Place {
    rank: usize,
    replica: usize,
}

impl Place {
    /// Loads the part of the rank, and follows rank 0.
    fn run(
        &self,
        process: &RankProcess,
        model: &ModelArgs,
        opened: OpenedModel,
        options: &Options,
        fleet: &FleetArgs,
    ) -> Result<(), Failure> {
        let (ranks, engines) = (fleet.ranks(), fleet.replicas().unwrap_or(1));
        let model = model.clone().with_threads_for(engines).with_part_of_threads(self.rank, ranks);
        let place = self.replica * ranks + self.rank;
        let _affinity =
            Affinity::pin(place, engines as usize * ranks, model.thread_count()).map_err(Failure::failed)?;
        let loaded = model.load_opened(cut(opened, self.rank, ranks)?)?;
        let loaded = loaded.among(Rank { ranks: process.member(), control: None });
        let slots = process.wait_for_start().map_err(Failure::failed)?;
        // Rank 0 has checked the capacity against the memory.
        let config = kvasir::EngineConfig { kv_capacity: Some(slots), overcommit: true, ..options.config()? };
        let core = loaded.resolve(&config, DEFAULT_SLOTS)?.core()?;
        let mut executor = loaded.executor_for(&core)?;
        process.follow(&mut executor).map_err(Failure::failed)
    }
}
