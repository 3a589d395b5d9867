use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// Bytes of a request from which on reading it is long work.
pub(crate) const LONG: usize = 64 << 10;

/// Runs long work where it keeps nobody else waiting: other clients' tasks go to another thread meanwhile.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        // Where there is one thread, or none of the runtime's, there is nobody to hand anything to.
        _ => work(),
    }
}
