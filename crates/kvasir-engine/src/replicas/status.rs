//! Operator's interface to replicas in separate processes: their status, drain and restart.

use crate::replicas::role::Role;
use crate::replicas::route::Route;
use crate::trace::step_source::StepSource;
use serde::Serialize;

/// Phase of a replica's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaPhase {
    /// Its process loads the model.
    #[default]
    Starting,
    /// It accepts requests.
    Ready,
    /// The operator has drained it; it gets no requests.
    Drained,
    /// Its process has ended; another is started after a delay.
    Down,
}

/// Status of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaStatus {
    /// Its index.
    pub replica: usize,
    /// Its phase.
    pub phase: ReplicaPhase,
    /// Id of its process, if one is running.
    pub process: Option<u32>,
    /// Outstanding requests on it.
    pub requests: u64,
    /// Prompt tokens of these requests.
    pub tokens: u64,
    /// Processes of the replica that have ended or failed to start.
    pub restarts: u32,
    /// Processes of the replica that were killed because they had open requests and completed no
    /// step within the step timeout.
    pub hangs: u32,
    /// Results of its processes that were dropped: malformed, too large, repeated, or of an earlier
    /// process.
    pub dropped_messages: u64,
    /// How its last process ended, if one did.
    pub last_exit: Option<String>,
    /// The phases that it runs.
    pub role: Role,
    /// Counters of its K/V transfers.
    pub kv_transfers: TransferCounts,
}

/// Counters of K/V transfers of a replica, over all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransferCounts {
    /// Blocks sent.
    pub sent_blocks: u64,
    /// Bytes of K/V sent.
    pub sent_bytes: u64,
    /// Blocks of its requests that were not sent: the buffer was full, or no replica was available
    /// to decode.
    pub unsent_blocks: u64,
    /// Blocks received and stored.
    pub received_blocks: u64,
    /// Blocks received and refused: overwritten or damaged in transit, without the blocks before
    /// them, or because the pool was in use.
    pub refused_blocks: u64,
}

/// How requests are routed to replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Routing {
    /// Routing policy.
    pub route: Route,
    /// Whether the replicas record KV events. Without them, [`Route::Prefix`] does not know the
    /// contents of their caches, and routes by session and load.
    #[serde(rename = "kv_events")]
    pub has_kv_events: bool,
}

/// Replicas that can be monitored, drained and restarted while they serve.
pub trait Replicas: Send + Sync {
    /// Status of all replicas.
    fn status(&self) -> Vec<ReplicaStatus>;
    /// How requests are routed.
    fn routing(&self) -> Routing;
    /// Subscribes to the live steps of a replica: with all requests, or only those of client `key`.
    /// The stream survives restarts of the replica's process. `None` if there is no such replica,
    /// or the fleet no longer serves.
    fn subscribe_steps(&self, replica: usize, key: Option<u64>) -> Option<Box<dyn StepSource>>;
    /// Moves the requests of a replica to others and routes none to it until it is restarted. False
    /// if there is no such replica, or the fleet no longer serves.
    fn drain(&self, replica: usize) -> bool;
    /// Moves the requests of a replica to others and restarts its process. False if there is no
    /// such replica, or the fleet no longer serves.
    fn restart(&self, replica: usize) -> bool;
}
