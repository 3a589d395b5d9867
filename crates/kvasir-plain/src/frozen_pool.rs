//! [`FrozenPool`]: the K and V and the recurrent states of a shared prefix.

use crate::pool::Pool;
use crate::state_pool::StatePool;

/// The pools of an executor that runs no more steps, for other executors to read.
pub struct FrozenPool {
    pub(crate) kv: Pool,
    pub(crate) states: StatePool,
}
