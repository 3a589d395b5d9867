//! The directory of saved slots (`--slot-save-path`): file names, and files that are read and
//! written as a whole.
//!
//! File names are names within the directory: none names another folder, and links are not
//! followed. The format is `kvasir_engine::KvFile`'s.

use crate::error::ApiError;
use crate::host::kv_exports::KvExports;
use kvasir_engine::{KvFile, KvFileError, KvFileHeader, KvFileWriter};
use kvasir_formats::AtomicFile;
use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::Mutex;

/// Maximum files in a folder.
const MAX_FILES: usize = 1024;
/// Maximum bytes of a file name.
const MAX_NAME: usize = 200;
/// Where slots are saved, and what their files hold.
#[derive(Clone, Debug)]
pub struct SlotFiles {
    directory: PathBuf,
    /// A hash of what decides the numbers of K and V.
    pub(super) model: u64,
    pub(super) exports: KvExports,
    /// Held while a slot is saved or restored: exports have one receiver.
    pub(super) turn: Arc<Mutex<()>>,
}

impl SlotFiles {
    /// Files in `directory`. `model` is a hash of what decides the numbers of K and V.
    pub fn new(directory: PathBuf, model: u64, exports: KvExports) -> Self {
        Self { directory, model, exports, turn: Arc::default() }
    }

    /// The path of a file of a key with this name; `is_only`: there is no other key. Keys with a name
    /// have a folder each.
    pub(super) fn path(
        &self,
        key_name: Option<&str>,
        is_only: bool,
        filename: &str,
    ) -> Result<PathBuf, ApiError> {
        check_name(filename).map_err(|why| ApiError::param("filename", format!("`filename` {why}")))?;
        let mut folder = self.directory.clone();
        if let Some(name) = key_name {
            check_name(name)
                .map_err(|why| ApiError::forbidden(format!("the name of this key, `{name}`, {why}")))?;
            folder.push(name);
        } else if !is_only {
            let why = "of several API keys, only those with a name (`NAME: KEY` in --api-key-file) may save and restore slots";
            return Err(ApiError::forbidden(why));
        }
        Ok(folder.join(filename))
    }
}

/// The error for a file that cannot be restored.
pub(super) fn unusable(error: KvFileError) -> ApiError {
    match error {
        KvFileError::Io(error) => ApiError::failed(format!("the file cannot be read: {error}")),
        error => ApiError::param("filename", format!("the file cannot be restored: {error}")),
    }
}

/// Why a text is no plain file name; the names that llama.cpp's server accepts, and shorter.
fn check_name(name: &str) -> Result<(), String> {
    let is_bad = |letter: char| letter.is_control() || "/\\:*?\"<>|".contains(letter);
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("must have 1 to {MAX_NAME} bytes"));
    }
    if name.contains(is_bad) || name.starts_with(['.', ' ']) || name.ends_with(['.', ' ']) {
        return Err("must be a plain file name: without / \\ : * ? \" < > | and control characters, and \
                    without a dot or a space at its ends"
            .into());
    }
    Ok(())
}

/// Opens a file and verifies it as a whole.
pub(super) fn open(path: &Path, model: u64, exports: &KvExports) -> Result<KvFile<File>, ApiError> {
    // A link may lead out of the directory, and a pipe never ends.
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(ApiError::param("filename", "`filename` is no regular file")),
        Err(_) => return Err(ApiError::not_found("filename", "there is no such file")),
    }
    let file = File::open(path).map_err(|error| unusable(error.into()))?;
    let mut file = KvFile::open(file).map_err(unusable)?;
    file.check(model, &exports.layout, exports.block_size).map_err(unusable)?;
    file.verify().map_err(unusable)?;
    Ok(file)
}

/// A file that is being written.
pub(super) struct Output {
    writer: KvFileWriter<BufWriter<File>>,
    file: AtomicFile,
}

impl Output {
    pub(super) fn create(path: &Path, header: &KvFileHeader) -> Result<Self, ApiError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(cannot_write)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => {
                return Err(ApiError::param("filename", "`filename` is no regular file"));
            }
            Ok(_) => {}
            Err(_) if fs::read_dir(folder).map_err(cannot_write)?.count() >= MAX_FILES => {
                let why = format!("{MAX_FILES} slots are saved: use one of their names, or delete files");
                return Err(ApiError::param("filename", why));
            }
            Err(_) => {}
        }
        let file = AtomicFile::create(path).map_err(cannot_write)?;
        let writer = file.writer().map_err(cannot_write)?;
        Ok(Self { writer: KvFileWriter::new(writer, header).map_err(cannot_write)?, file })
    }

    pub(super) fn write(mut self, rows: &[u8]) -> Result<Self, ApiError> {
        self.writer.write(rows).map_err(cannot_write)?;
        Ok(self)
    }

    pub(super) fn finish(self) -> Result<u64, ApiError> {
        let bytes = self.writer.finish().map_err(cannot_write)?;
        self.file.commit().map_err(cannot_write)?;
        Ok(bytes)
    }
}

/// Errors of paths would tell clients where the directory is.
fn cannot_write(error: impl std::error::Error + 'static) -> ApiError {
    let mut cause: &(dyn std::error::Error + 'static) = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<std::io::Error>() {
        Some(error) => ApiError::failed(format!("the file cannot be written: {error}")),
        None => ApiError::failed("the file cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stay_in_their_folder() {
        for name in ["slot1.bin", "a b", "ä.kv", "-x", "a..b"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(MAX_NAME + 1);
        let hostile = [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "c:x",
            "a\0b",
            "a\n",
            ".hidden",
            "x.",
            " x",
            "x ",
            "a*",
            "\u{85}x",
            &long,
        ];
        for name in hostile {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
