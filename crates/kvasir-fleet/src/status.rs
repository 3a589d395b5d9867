//! The handle of a fleet: reads the status of its replicas, subscribes to their steps, and sends
//! the operator's commands.

use crate::order::FrontCommand;
use crate::step_watch::ReplicaSteps;
use kvasir_engine::{ReplicaStatus, Replicas, Routing, StepSource};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Handle to monitor, drain and restart the replicas of a fleet.
#[derive(Clone, Debug)]
pub struct FleetHandle {
    pub(crate) replicas: Arc<Mutex<Vec<ReplicaStatus>>>,
    pub(crate) commands: UnboundedSender<FrontCommand>,
    pub(crate) routing: Routing,
    pub(crate) next_subscriber: Arc<AtomicU64>,
}

impl FleetHandle {
    fn lock(&self) -> MutexGuard<'_, Vec<ReplicaStatus>> {
        // Holders of the lock replace or clone the whole list, so a panic leaves it consistent.
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, replica: usize, command: FrontCommand) -> bool {
        replica < self.lock().len() && self.commands.send(command).is_ok()
    }

    pub(crate) fn publish(&self, status: Vec<ReplicaStatus>) {
        *self.lock() = status;
    }
}

impl Replicas for FleetHandle {
    fn status(&self) -> Vec<ReplicaStatus> {
        self.lock().clone()
    }

    fn routing(&self) -> Routing {
        self.routing
    }

    fn subscribe_steps(&self, replica: usize, key: Option<u64>) -> Option<Box<dyn StepSource>> {
        let subscriber = self.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let (send, events) = unbounded_channel();
        if !self.send(replica, FrontCommand::Subscribe { subscriber, replica, key, events: send }) {
            return None;
        }
        Some(Box::new(ReplicaSteps { subscriber, events, commands: self.commands.clone(), taken: 0 }))
    }

    fn drain(&self, replica: usize) -> bool {
        self.send(replica, FrontCommand::Drain(replica))
    }

    fn restart(&self, replica: usize) -> bool {
        self.send(replica, FrontCommand::Restart(replica))
    }
}
