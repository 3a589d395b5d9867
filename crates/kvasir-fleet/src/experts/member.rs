//! [`ReplicaMember`]: one replica's access to the shared memory of its group.

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

/// One replica of a group that shares its experts.
pub struct ReplicaMember {
    pub(crate) endpoint: Endpoint,
    pub(crate) watcher: Endpoint,
    pub(crate) layout: ExchangeLayout,
    pub(crate) replica: usize,
    /// Number of the newest step that this replica has begun.
    pub(crate) step: AtomicU32,
    /// Exchanges of the step so far.
    pub(crate) exchanges: AtomicU32,
    /// Completed phases of exchanges.
    pub(crate) phases: AtomicU32,
    /// This replica's state, published with its next step.
    pub(crate) own_state: Mutex<ReplicaState>,
    /// The states of the other replicas at the last step.
    pub(crate) states: Mutex<Vec<ReplicaState>>,
    /// Rows of an exchange. Scratch.
    pub(crate) received: Mutex<ReceivedRows>,
}

/// Configuration of one replica of a group.
pub struct ReplicaConfig {
    /// Inherited descriptor of the group's memory.
    pub descriptor: i32,
    /// Index of the replica.
    pub replica: usize,
    /// Number of replicas.
    pub replicas: usize,
    /// Maximum values per row that a mixture exchanges.
    pub width: usize,
    /// Maximum experts per row.
    pub chosen: usize,
}

/// Creates the memory of a group. Every process that is started afterwards inherits its descriptor.
/// The first replica that opens it sets its size.
#[cfg(target_os = "linux")]
pub(crate) fn create_memory() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = File::from(memfd_create("kvasir-experts", MemfdFlags::ALLOW_SEALING)?);
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn create_memory() -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "sharing experts among replicas requires Linux"))
}

impl ReplicaMember {
    /// Opens the memory of the group. All replicas must pass the same sizes.
    pub fn open(config: &ReplicaConfig) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", config.descriptor);
        let file = File::options().read(true).write(true).open(path)?;
        let layout = ExchangeLayout::of(config.replicas, config.width, config.chosen);
        Self::of_file(&file, layout, config.replica)
    }

    pub(crate) fn of_file(file: &File, layout: ExchangeLayout, replica: usize) -> io::Result<Self> {
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
            phases: AtomicU32::new(0),
            own_state: Mutex::default(),
            states: Mutex::default(),
            received: Mutex::default(),
        })
    }

    /// All replicas but this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.replica;
        (0..self.layout.replicas).filter(move |replica| *replica != own)
    }

    /// Whether another replica has begun a step that this one has not joined.
    pub(crate) fn is_behind(&self) -> bool {
        // The counter in memory: the watcher calls this, too.
        let own = self.endpoint.load(self.layout.begun(self.replica));
        let ahead = |replica| self.endpoint.load(self.layout.begun(replica)).wrapping_sub(own) as i32 > 0;
        self.others().any(ahead)
    }

    /// Increments a counter of the thread that runs steps, and returns the new value.
    pub(crate) fn next(counter: &AtomicU32) -> u32 {
        let next = counter.load(Ordering::Relaxed).wrapping_add(1);
        counter.store(next, Ordering::Relaxed);
        next
    }
}

/// Locks a mutex. Its values are replaced as a whole, so a panic leaves them consistent.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
