use crate::{Error, Result};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file that appears under its name when it is complete, or not at all.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    draft: PathBuf,
    kept: bool,
}

impl WholeFile {
    /// The place that a path leads to, however it is written: through links, so that not the link is replaced.
    pub fn place(path: &Path) -> PathBuf {
        let beside = || {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        };
        fs::canonicalize(path).ok().or_else(beside).unwrap_or_else(|| path.to_owned())
    }

    /// Begins one beside where it will be, so that what cannot be written is known before the work is done.
    pub fn create(path: &Path) -> Result<Self> {
        let fail = |why: &str| Err(Error::at(path.display(), why));
        let place = Self::place(path);
        let Some(name) = place.file_name() else { return fail("not the name of a file") };
        let mut draft = name.to_owned();
        draft.push(format!(".{}.part", std::process::id()));
        match fs::metadata(&place) {
            Ok(there) if there.is_dir() => return fail("is a directory"),
            Ok(there) if !there.is_file() => return fail("is no file that could be replaced"),
            Err(_) if place.is_symlink() => return fail("is a link that leads nowhere"),
            _ => {}
        }
        let file = Self { draft: place.with_file_name(draft), path: place, kept: false };
        File::create(&file.draft).map_err(|error| Error::at(path.display(), error))?;
        Ok(file)
    }

    /// Its final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For writing piece by piece.
    pub fn writer(&self) -> Result<BufWriter<File>> {
        let file = File::create(&self.draft).map_err(|error| self.error(error))?;
        Ok(BufWriter::with_capacity(1 << 20, file))
    }

    /// Writes all of it.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self.writer()?;
        file.write_all(bytes).and_then(|()| file.flush()).map_err(|error| self.error(error))
    }

    /// Gives it its name.
    pub fn keep(mut self) -> Result<()> {
        fs::rename(&self.draft, &self.path).map_err(|error| self.error(error))?;
        self.kept = true;
        Ok(())
    }

    fn error(&self, error: std::io::Error) -> Error {
        Error::at(self.path.display(), error)
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
