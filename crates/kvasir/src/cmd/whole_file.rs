use super::Failure;
use serde_json::{Value, json};
use std::{io::Write, path::Path};

/// A [`kvasir_formats::WholeFile`] that the user named.
#[derive(Debug)]
pub(crate) struct WholeFile(kvasir_formats::WholeFile);

impl WholeFile {
    /// Begins one beside where it will be, so that what cannot be written is known before the work is done.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        kvasir_formats::WholeFile::create(path).map(Self).map_err(Failure::usage)
    }

    /// Its final path.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// For writing piece by piece.
    pub(crate) fn writer(&self) -> Result<Box<dyn Write + Send>, Failure> {
        Ok(Box::new(self.0.writer().map_err(Failure::failed)?))
    }

    /// Writes all of it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write(bytes).map_err(Failure::failed)
    }

    /// Writes a page of plots without steps.
    pub(crate) fn write_plots(&self, title: &str, setup: &Value, plots: &Value) -> Result<(), Failure> {
        let data = json!({"title": title, "setup": setup, "steps": [], "report": plots});
        self.write(kvasir_view::page(title, &data.to_string()).as_bytes())
    }

    /// Gives it its name.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        self.0.keep().map_err(Failure::failed)
    }
}
