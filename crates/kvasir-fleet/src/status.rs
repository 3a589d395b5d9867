//! The handle of a fleet: reads the status of its replicas, and sends the operator's commands.

use kvasir_engine::{ReplicaStatus, Replicas};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// A command of the operator for one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Drain(usize),
    Restart(usize),
}

/// Handle to monitor, drain and restart the replicas of a fleet.
#[derive(Clone, Debug)]
pub struct FleetHandle {
    pub(crate) replicas: Arc<Mutex<Vec<ReplicaStatus>>>,
    pub(crate) orders: UnboundedSender<Order>,
}

impl FleetHandle {
    fn lock(&self) -> MutexGuard<'_, Vec<ReplicaStatus>> {
        // Holders of the lock replace or clone the whole list, so a panic leaves it consistent.
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, replica: usize, order: Order) -> bool {
        replica < self.lock().len() && self.orders.send(order).is_ok()
    }

    pub(crate) fn publish(&self, status: Vec<ReplicaStatus>) {
        *self.lock() = status;
    }
}

impl Replicas for FleetHandle {
    fn status(&self) -> Vec<ReplicaStatus> {
        self.lock().clone()
    }

    fn drain(&self, replica: usize) -> bool {
        self.order(replica, Order::Drain(replica))
    }

    fn restart(&self, replica: usize) -> bool {
        self.order(replica, Order::Restart(replica))
    }
}
