//! [`FrozenPool`]: the K and V and the recurrent states of a shared prefix.

use crate::memory::kv_pool::Pool;
use crate::memory::state_pool::StatePool;
use std::sync::Arc;

/// The pools of an executor that runs no more steps. Nothing writes them any more, so any number of
/// executors may read them at the same time.
#[derive(Clone)]
pub struct FrozenPool {
    pub(crate) kv: Arc<Pool>,
    /// `None` for a model without recurrent layers.
    pub(crate) states: Option<Arc<StatePool>>,
}

/// A prefix without recurrent states.
impl From<Arc<Pool>> for FrozenPool {
    fn from(kv: Arc<Pool>) -> Self {
        Self { kv, states: None }
    }
}
