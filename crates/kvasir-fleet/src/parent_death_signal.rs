//! Kills a child process when its parent ends: Linux's parent-death signal (`PR_SET_PDEATHSIG`).
//!
//! If the parent ends before the child requests the signal, the kernel never sends it. The parent
//! therefore passes its process id in the environment variable [`PARENT_VARIABLE`]. After the
//! request the child compares it with the id of its current parent.

use std::{
    ffi::OsStr,
    io,
    process::{self, Command},
};

/// Environment variable with the process id of the parent.
const PARENT_VARIABLE: &str = "KVASIR_PARENT_PROCESS";

/// Returns a command for a child process that calls [`set_parent_death_signal`].
pub(crate) fn child_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env(PARENT_VARIABLE, process::id().to_string());
    command
}

/// Makes the kernel kill this process when the thread that has started it ends. A process that is
/// suspended or loads a model does not notice that its socket is closed. The signal follows the
/// thread, not the process: a parent must start processes on a thread that outlives them.
///
/// # Errors
/// The parent has ended already.
#[cfg(target_os = "linux")]
pub fn set_parent_death_signal() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    use std::{env, os::unix::process::parent_id};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match env::var_os(PARENT_VARIABLE) {
        Some(parent) if *parent != *parent_id().to_string() => {
            Err(io::Error::other("the parent process has ended"))
        }
        _ => Ok(()),
    }
}

/// Does nothing: only Linux has the signal. The process ends when it reads that its socket is
/// closed.
#[cfg(not(target_os = "linux"))]
pub fn set_parent_death_signal() -> io::Result<()> {
    Ok(())
}
