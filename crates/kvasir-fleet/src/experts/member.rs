//! [`ExpertGroupMember`]: one replica's access to the shared memory of its expert-parallel group.

use crate::experts::layout::ExchangeLayout;
use crate::experts::received_rows::ReceivedRows;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::memory::SharedMemory;
use crate::ranks::sync::{AtomicU32, Ordering};
use kvasir_engine::ReplicaState;
use std::{
    fs::File,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A member of an expert-parallel group: joins the steps of the group, and exchanges rows with it.
pub struct ExpertGroupMember {
    /// Endpoint of the thread that runs steps.
    pub(crate) endpoint: Endpoint,
    /// Endpoint of the watcher thread.
    pub(crate) watcher: Endpoint,
    pub(crate) layout: ExchangeLayout,
    /// Index of this replica.
    pub(crate) replica: usize,
    /// Number of the newest step that this replica has begun.
    pub(crate) step: AtomicU32,
    /// Number of exchanges that the newest step has begun.
    pub(crate) exchanges: AtomicU32,
    /// Number of barriers that this replica has reached.
    pub(crate) barriers: AtomicU32,
    /// The state that this replica publishes with its next step.
    pub(crate) own_state: Mutex<ReplicaState>,
    /// The states that the other replicas published with the newest step.
    pub(crate) other_states: Mutex<Vec<ReplicaState>>,
    /// Scratch of exchanges.
    pub(crate) received: Mutex<ReceivedRows>,
}

/// Arguments of [`ExpertGroupMember::open`].
pub struct ExpertGroupConfig {
    /// Inherited descriptor of the group's memory.
    pub descriptor: i32,
    /// Index of the replica.
    pub replica: usize,
    /// Number of replicas.
    pub replicas: usize,
    /// Maximum values per row that a MoE layer exchanges.
    pub width: usize,
    /// Maximum experts per row.
    pub top_k: usize,
}

/// Creates the shared memory of an expert-parallel group. Every process that is started afterwards
/// inherits the descriptor. The first replica that opens the memory sets its size.
#[cfg(target_os = "linux")]
pub(crate) fn create_experts_memory() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = File::from(memfd_create("kvasir-experts", MemfdFlags::ALLOW_SEALING)?);
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn create_experts_memory() -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "expert parallelism requires Linux"))
}

impl ExpertGroupMember {
    /// Opens the shared memory of the group. All replicas must pass the same sizes.
    pub fn open(config: &ExpertGroupConfig) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", config.descriptor);
        let file = File::options().read(true).write(true).open(path)?;
        let layout = ExchangeLayout::new(config.replicas, config.width, config.top_k);
        Self::map_file(&file, layout, config.replica)
    }

    /// Maps the shared memory, and sets its size if no replica has.
    pub(crate) fn map_file(file: &File, layout: ExchangeLayout, replica: usize) -> io::Result<Self> {
        let (members, bytes) = (layout.members(), layout.words() as u64 * 4);
        if file.metadata()?.len() == 0 {
            file.set_len(bytes)?;
        }
        let length = file.metadata()?.len();
        if length != bytes {
            return Err(io::Error::other(format!(
                "shared memory of the replicas has {length} bytes, expected {bytes}; restart `kvasir serve`"
            )));
        }
        let map = || SharedMemory::map(file, layout.words(), members.lines());
        Ok(Self {
            endpoint: Endpoint::new(map()?, members, replica),
            watcher: Endpoint::new(map()?, members, layout.replicas + replica),
            layout,
            replica,
            step: AtomicU32::new(0),
            exchanges: AtomicU32::new(0),
            barriers: AtomicU32::new(0),
            own_state: Mutex::default(),
            other_states: Mutex::default(),
            received: Mutex::default(),
        })
    }

    /// Indices of all replicas except this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.replica;
        (0..self.layout.replicas).filter(move |replica| *replica != own)
    }

    /// Whether another replica has begun a step that this one has not joined.
    pub(crate) fn is_behind(&self) -> bool {
        // Reads the shared counter instead of `self.step`: the watcher thread also calls this.
        let own = self.endpoint.load(self.layout.begun(self.replica));
        let ahead = |replica| self.endpoint.load(self.layout.begun(replica)).wrapping_sub(own) as i32 > 0;
        self.others().any(ahead)
    }

    /// Increments a counter and returns the new value. Only the thread that runs steps may call it.
    pub(crate) fn increment(counter: &AtomicU32) -> u32 {
        let next = counter.load(Ordering::Relaxed).wrapping_add(1);
        counter.store(next, Ordering::Relaxed);
        next
    }
}

/// Locks a mutex. Ignores poisoning: a panic leaves the values in a valid state.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
