//! Scratch folders for tests that write files.

#![allow(clippy::unwrap_used)] // a helper of tests

use std::{fs, path::PathBuf};

/// Creates an empty folder of this name.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}
