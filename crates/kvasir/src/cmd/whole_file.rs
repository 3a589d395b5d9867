use super::Failure;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// The place that a path leads to, however it is written: through links, so that not the link is replaced.
pub(crate) fn place(path: &Path) -> PathBuf {
    let beside = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    };
    fs::canonicalize(path).ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

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
        let place = place(path);
        let Some(name) = place.file_name() else {
            return Err(Failure::usage(format!("{}: not the name of a file", path.display())));
        };
        let mut draft = name.to_owned();
        draft.push(format!(".{}.part", std::process::id()));
        match fs::metadata(&place) {
            Ok(there) if there.is_dir() => {
                return Err(Failure::usage(format!("{}: is a directory", path.display())));
            }
            Ok(there) if !there.is_file() => {
                return Err(Failure::usage(format!("{}: is no file that could be replaced", path.display())));
            }
            _ => {}
        }
        let file = Self { draft: place.with_file_name(draft), path: place, kept: false };
        File::create(&file.draft).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
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
