//! I/O helpers of the commands: failures and exit codes, progress, status lines, interruption, and
//! atomic file writes.

pub(crate) mod atomic_file;
pub(crate) mod failure;
pub(crate) mod interruption;
pub(crate) mod model_progress;
pub(crate) mod progress;
pub(crate) mod status_line;
