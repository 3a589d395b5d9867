//! What commands share with the world outside: failures and exit codes, progress, status lines, interruption, and files that are complete or absent.

pub(crate) mod atomic_file;
pub(crate) mod failure;
pub(crate) mod interruption;
pub(crate) mod model_progress;
pub(crate) mod progress;
pub(crate) mod status_line;
