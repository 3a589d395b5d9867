//! Atomic file creation: write to a temporary file, then rename.

use crate::error::{Error, Result};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file that appears under its final name only when complete.
///
/// States: created as `NAME.PID.part`, written, then renamed by `commit`. Dropping it before deletes
/// the temporary file.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Resolves symbolic links, so that the target and not the link is replaced.
    pub fn resolve(path: &Path) -> PathBuf {
        let beside = || {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        };
        fs::canonicalize(path).ok().or_else(beside).unwrap_or_else(|| path.to_owned())
    }

    /// Creates the temporary file beside the target, so that an unwritable target fails before the
    /// work is done.
    pub fn create(path: &Path) -> Result<Self> {
        let fail = |why: &str| Err(Error::at(path.display(), why));
        let target = Self::resolve(path);
        let Some(name) = target.file_name() else { return fail("is not a file name") };
        let mut temporary = name.to_owned();
        temporary.push(format!(".{}.part", std::process::id()));
        match fs::metadata(&target) {
            Ok(there) if there.is_dir() => return fail("is a directory"),
            Ok(there) if !there.is_file() => return fail("is not a regular file"),
            Err(_) if target.is_symlink() => return fail("is a dangling symbolic link"),
            _ => {}
        }
        let file = Self { temporary: target.with_file_name(temporary), path: target, committed: false };
        File::create(&file.temporary).map_err(|error| Error::at(path.display(), error))?;
        Ok(file)
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A buffered writer on the temporary file, truncated first.
    pub fn writer(&self) -> Result<BufWriter<File>> {
        let file = File::create(&self.temporary).map_err(|error| self.error(error))?;
        Ok(BufWriter::with_capacity(1 << 20, file))
    }

    /// Writes the whole contents.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self.writer()?;
        file.write_all(bytes).and_then(|()| file.flush()).map_err(|error| self.error(error))
    }

    /// Renames the temporary file to its final name.
    pub fn commit(mut self) -> Result<()> {
        fs::rename(&self.temporary, &self.path).map_err(|error| self.error(error))?;
        self.committed = true;
        Ok(())
    }

    fn error(&self, error: std::io::Error) -> Error {
        Error::at(self.path.display(), error)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // The file may be gone already; errors on drop cannot be reported.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
