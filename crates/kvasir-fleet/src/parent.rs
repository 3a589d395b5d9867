//! Ties the life of a process to that of its parent.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::io;

/// Makes the system kill this process when the thread that has started it ends, also while this
/// process is suspended or loads a model, and cannot see that its socket is closed. Each parent starts processes on
/// a thread that lives as long as they should.
#[cfg(target_os = "linux")]
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
