//! Atomic output files: a file appears under its name once complete, or not at all.

use crate::io::failure::Failure;
use serde_json::{Value, json};
use std::{io::Write, path::Path};

/// A [`kvasir_formats::AtomicFile`] with command line errors.
#[derive(Debug)]
pub(crate) struct AtomicFile(kvasir_formats::AtomicFile);

impl AtomicFile {
    /// Creates a temporary file next to the target, so an unwritable target is detected before the
    /// work.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        kvasir_formats::AtomicFile::create(path).map(Self).map_err(Failure::usage)
    }

    /// The target path.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A streaming writer.
    pub(crate) fn writer(&self) -> Result<Box<dyn Write + Send>, Failure> {
        Ok(Box::new(self.0.writer().map_err(Failure::failed)?))
    }

    /// Writes the whole content.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write(bytes).map_err(Failure::failed)
    }

    /// Writes an HTML page of plots without steps.
    pub(crate) fn write_plots(&self, title: &str, setup: &Value, plots: &Value) -> Result<(), Failure> {
        let data = json!({"title": title, "setup": setup, "steps": [], "report": plots});
        self.write(kvasir_view::page(title, &data.to_string()).as_bytes())
    }

    /// Renames it to the target path.
    pub(crate) fn commit(self) -> Result<(), Failure> {
        self.0.commit().map_err(Failure::failed)
    }
}
