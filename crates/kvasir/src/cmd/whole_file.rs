use super::Failure;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file that appears under its name when it is complete, or not at all.
#[derive(Debug)]
pub(crate) struct WholeFile {
    path: PathBuf,
    draft: PathBuf,
    kept: bool,
}

impl WholeFile {
    /// Begins one beside where it will be, so that what cannot be written is known before the work is done.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let Some(name) = path.file_name() else {
            return Err(Failure::usage(format!("{}: not the name of a file", path.display())));
        };
        let mut draft = name.to_owned();
        draft.push(format!(".{}.part", std::process::id()));
        let file = Self { path: path.to_owned(), draft: path.with_file_name(draft), kept: false };
        if path.is_dir() {
            return Err(Failure::usage(format!("{}: is a directory", path.display())));
        }
        File::create(&file.draft).map_err(|error| Failure::write(path, &error))?;
        Ok(file)
    }

    /// Its final path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For writing piece by piece.
    pub(crate) fn writer(&self) -> Result<Box<dyn Write + Send>, Failure> {
        let file = File::create(&self.draft).map_err(|error| Failure::write(&self.path, &error))?;
        Ok(Box::new(BufWriter::new(file)))
    }

    /// Writes all of it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        fs::write(&self.draft, bytes).map_err(|error| Failure::write(&self.path, &error))
    }

    /// Writes a page of plots without steps.
    pub(crate) fn write_plots(&self, title: &str, setup: &Value, plots: &Value) -> Result<(), Failure> {
        let data = json!({"title": title, "setup": setup, "steps": [], "report": plots});
        self.write(kvasir_view::page(title, &data.to_string()).as_bytes())
    }

    /// Gives it its name.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        fs::rename(&self.draft, &self.path).map_err(|error| Failure::write(&self.path, &error))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.kept {
            // It may be gone already; there is nobody to tell.
            let _ = fs::remove_file(&self.draft);
        }
    }
}
