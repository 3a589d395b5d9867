//! What an operator sees of replicas that are processes of their own, and may order.

use serde::Serialize;

/// Phase of a replica's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaPhase {
    /// Its process loads the model.
    #[default]
    Starting,
    /// It takes requests.
    Ready,
    /// It gets no request, by order of the operator.
    Drained,
    /// Its process has ended; another one is started soon.
    Down,
}

/// A replica, as an operator sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaStatus {
    /// Its index.
    pub replica: usize,
    /// Its phase.
    pub phase: ReplicaPhase,
    /// Id of its process, if one runs.
    pub process: Option<u32>,
    /// Requests that run or wait on it.
    pub requests: u64,
    /// Prompt tokens of these.
    pub tokens: u64,
    /// Processes that were started after the first.
    pub restarts: u32,
    /// Messages of its processes that were dropped: malformed, too large, or repeated.
    pub dropped_messages: u64,
    /// How its last process ended, if one did.
    pub last_exit: Option<String>,
}

/// Replicas that can be watched, drained and restarted while they serve.
pub trait Replicas: Send + Sync {
    /// All replicas.
    fn status(&self) -> Vec<ReplicaStatus>;
    /// Takes all requests away from a replica; it gets no others until it is restarted. False if there is
    /// no such replica, or all have ended.
    fn drain(&self, replica: usize) -> bool;
    /// Takes all requests away from a replica, and starts its process anew. False if there is no such
    /// replica, or all have ended.
    fn restart(&self, replica: usize) -> bool;
}
