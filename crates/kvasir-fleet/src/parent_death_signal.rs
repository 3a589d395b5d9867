//! Kills a child process when its parent ends: Linux's parent-death signal (`PR_SET_PDEATHSIG`).

use std::io;

/// Makes the kernel kill this process when the thread that has started it ends. A process that is
/// suspended or loads a model does not notice that its socket is closed. The signal follows the
/// thread, not the process: a parent must start processes on a thread that outlives them.
#[cfg(target_os = "linux")]
pub fn set_parent_death_signal() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Does nothing: only Linux has the signal. The process ends when it reads that its socket is
/// closed.
#[cfg(not(target_os = "linux"))]
pub fn set_parent_death_signal() -> io::Result<()> {
    Ok(())
}
