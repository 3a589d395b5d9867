//! `kvasir worker`: one engine of `serve --dp`, in a process of its own. `serve` passes its own
//! arguments to the worker, so both parse the same options.

use crate::commands::{CommandLine, rank};
use crate::io::failure::Failure;
use crate::options::fleet::RankControlMode;
use crate::options::sampling::SamplingArgs;
use crate::startup::ready_engine::{EngineFacts, Leader, Peers, ReadyEngine};
use crate::startup::{WorkerCommandFactory, build_model, identity, record_kv_events, share_packed};
use kvasir::{LoadedModel, OpenedModel};
use kvasir_chat::ChatModel;
use kvasir_engine::{Role, Route, StepSource};
use kvasir_fleet::{
    CommandLog, ExpertGroupConfig, ExpertGroupMember, Facts, GroupConfig, Identity, RankCommand, RankGroup,
    WorkerCommand, WorkerConfig, WorkerStart, run_worker,
};
use kvasir_program::DispatchShape;
use kvasir_serve::{StepFeed, Visibility, metrics::EngineMetrics};
use std::{
    env,
    ffi::OsString,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{self, ExitCode},
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

/// Time between the loss of a rank and the exit of its engine, to deliver computed tokens.
const LOST_RANK_GRACE: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the server's sockets
    #[arg(long)]
    directory: PathBuf,
    /// Index of the replica
    #[arg(long)]
    replica: u32,
    /// Number of earlier worker processes of this replica
    #[arg(long)]
    generation: u32,
    /// Inherited descriptor of the packed file
    #[arg(long)]
    packed_weights: Option<i32>,
    /// Inherited descriptor of the shared memory of expert-parallel replicas
    #[arg(long)]
    experts_memory: Option<i32>,
    /// Arguments of the server, its name first
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// The command that starts a worker of a `serve` with these arguments.
pub(crate) fn command(arguments: Vec<OsString>) -> Result<WorkerCommandFactory, Failure> {
    let program = env::current_exe().map_err(Failure::failed)?;
    Ok(Box::new(|packed_file| WorkerCommand {
        program,
        arguments: Box::new(move |start| {
            let WorkerStart { directory, replica, generation, experts_memory } = *start;
            let address = ["worker".into(), "--directory".into(), directory.into(), "--replica".into()];
            let numbers = [replica.to_string().into(), "--generation".into(), generation.to_string().into()];
            // The closure keeps the file open, so each worker inherits its descriptor.
            let packed = packed_file.as_ref().map(|file| ("--packed-weights", file.as_raw_fd()));
            let experts = experts_memory.map(|file| ("--experts-memory", file));
            let files = packed.into_iter().chain(experts);
            let files = files.flat_map(|(option, file)| [option.into(), file.to_string().into()]);
            let address = address.into_iter().chain(numbers).chain(files).chain(["--".into()]);
            address.chain(arguments.iter().cloned()).collect()
        }),
    }))
}

/// Starts all ranks of an engine but rank 0. The process exits after one of them has exited,
/// because an idle engine would not notice the loss.
fn start_ranks(
    replica: u32,
    command: RankCommand,
    ranks: usize,
    identity: Identity,
) -> Result<RankGroup, Failure> {
    let on_lost = Arc::new(move |line: &str| {
        eprintln!("kvasir: replica {replica}: {line}");
        thread::sleep(LOST_RANK_GRACE);
        process::exit(1);
    });
    RankGroup::start(GroupConfig { ranks, command, identity, on_lost }).map_err(Failure::failed)
}

/// Reduces a model to the experts of `replica`, one of `engines`, and opens the shared memory in
/// which the replicas exchange rows.
fn join_expert_group(
    opened: OpenedModel,
    descriptor: i32,
    replica: u32,
    engines: u32,
) -> Result<(OpenedModel, Arc<ExpertGroupMember>), Failure> {
    let (replica, replicas) = (replica as usize, engines as usize);
    // The front has checked that the experts can be divided.
    let opened = opened.for_replica(replica, replicas)?;
    let shape = opened.model.target.dispatch_shape();
    let DispatchShape { width, top_k } =
        shape.ok_or_else(|| Failure::failed("the model has no experts to divide among the engines"))?;
    let member = ExpertGroupMember::open(&ExpertGroupConfig { descriptor, replica, replicas, width, top_k });
    Ok((opened, Arc::new(member.map_err(Failure::failed)?)))
}

impl Args {
    /// Runs the requests of the server process until that ends the worker.
    pub(crate) fn run(self, line: &CommandLine) -> Result<ExitCode, Failure> {
        let usage = "`worker` needs the arguments of `kvasir serve` after `--`; use `kvasir serve --dp N`";
        let serve = line.begin_child(self.arguments.clone(), usage)?;
        if let Some(level) = serve.model().compute().instructions()? {
            level.limit();
        }
        let publishes = serve.publishes_kv_events();
        let (model, options, sampling_args, fleet) = serve.for_worker();
        let engines = fleet.replicas().unwrap_or(1);
        let opened = model.open()?;
        let identity = identity(&opened, &model, &options);
        let process = format!("replica {}", self.replica);
        let opened = share_packed(opened, self.packed_weights, &identity, &process);
        let (opened, member) = match self.experts_memory {
            Some(descriptor) => {
                let (opened, member) = join_expert_group(opened, descriptor, self.replica, engines)?;
                (opened, Some(member))
            }
            None => (opened, None),
        };
        let ranks = fleet.ranks();
        let mut group = match ranks {
            1 => None,
            _ => {
                let command = rank::command(self.replica, self.packed_weights, self.arguments)?;
                Some(start_ranks(self.replica, command, ranks, identity.clone())?)
            }
        };
        let model = model.with_threads_for(engines);
        let threads = model.rank_threads(ranks);
        let affinity = match ranks {
            1 => None,
            _ => rank::pin(&threads, 0, self.replica as usize, engines as usize)?,
        };
        let model = model.with_rank_threads(threads[0]);
        let config = kvasir::EngineConfig {
            engines: engines * ranks as u32,
            transfers_kv: fleet.transfers_kv(),
            ..options.config()?
        };
        let by_requests = fleet.rank_control() == RankControlMode::Requests;
        let peers = match (group.as_mut(), &member) {
            (Some(group), _) => Peers::Ranks(Leader { group, by_requests }),
            (None, Some(member)) => Peers::Experts(Arc::clone(member)),
            (None, None) => Peers::None,
        };
        let ready = ReadyEngine::new(&model, opened, &config, true, peers)?;
        let commands = group.as_ref().filter(|_| by_requests).map(|group| CommandLog::new(group.member()));
        let ReadyEngine { engine, loaded, facts, setup } = ready;
        let facts = EngineFacts { setup, ..facts };
        let EngineFacts { slots, max_len, .. } = facts;
        let chat = LazyChat { loaded, sampling_args, max_len, model: OnceLock::new() };
        let metrics = Arc::new(EngineMetrics::default());
        let (feed, steps) = StepFeed::new();
        let mut engine = engine.observe(metrics.observer()).observe(steps);
        if let Some(member) = &member {
            engine = engine.in_lockstep(member.lockstep(), fleet.coalescing(facts.max_num_batched_tokens));
        }
        let has_kv_events = if publishes {
            record_kv_events(&mut engine, "--kv-events").map(|()| true)?
        } else if fleet.route() == Route::Prefix {
            let recorded = record_kv_events(&mut engine, "--route prefix").map(|()| true);
            recorded
                .or_else(|failure| if fleet.requires_prefix_cache() { Err(failure) } else { Ok(false) })?
        } else {
            false
        };
        if fleet.transfers_kv() {
            let layout = engine.kv_layout();
            layout.map_err(|why| Failure::usage(format!("--role {}: {why}", Role::Prefill)))?;
        }
        let more = serde_json::to_string(&facts).map_err(Failure::failed)?;
        let shape = engine.core().cache().shape();
        let (block_size, has_states) = (shape.block_size, shape.states.is_some());
        let cut_obstacle = engine.core().cut_obstacle().map(|why| why.to_string());
        let config = WorkerConfig {
            directory: self.directory,
            replica: self.replica,
            generation: self.generation,
            identity,
            commands,
            member,
            affinity,
            facts: Facts { slots, block_size, max_len, has_kv_events, has_states, cut_obstacle, more },
            build: Box::new(move |recipe, prompt, canceled| {
                chat.get()?.follow_recipe(recipe, prompt, canceled).ok()
            }),
            counters: Box::new(move || (metrics.steps(), metrics.snapshot())),
            subscribe: Box::new(move |key| {
                let sees = key.map_or(Visibility::All, Visibility::Key);
                feed.subscribe(sees).ok().map(|steps| Box::new(steps) as Box<dyn StepSource>)
            }),
        };
        run_worker(config, &mut engine).map_err(Failure::failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Tokenizer and chat template of a worker, loaded for its first constraint. Other requests arrive
/// as token ids, and a tokenizer may need more memory than all other private data of a worker.
struct LazyChat {
    loaded: LoadedModel,
    sampling_args: SamplingArgs,
    max_len: u32,
    model: OnceLock<Option<ChatModel>>,
}

impl LazyChat {
    /// Loads on the first call. `None` if loading fails, which is unexpected: the server has loaded
    /// the same files.
    fn get(&self) -> Option<&ChatModel> {
        let load = || {
            let (opened, hidden) = (&self.loaded.opened, self.loaded.tells_hidden());
            build_model(String::new(), opened, hidden, &self.sampling_args, None, self.max_len)
        };
        let model = self.model.get_or_init(|| match load() {
            Ok(model) => Some(model.chat),
            Err(failure) => {
                eprintln!("kvasir: the worker cannot load the tokenizer: {failure}");
                None
            }
        });
        model.as_ref()
    }
}
