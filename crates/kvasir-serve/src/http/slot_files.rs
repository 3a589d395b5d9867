//! The directory of saved slots (`--slot-save-path`): checks file names, opens and verifies files,
//! and writes files atomically.
//!
//! A file name cannot refer to another directory, and links are not followed.
//! `kvasir_engine::KvFile` defines the format.

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

/// Maximum files per directory, and so per API key with a name.
const MAX_FILES: usize = 1024;
/// Maximum bytes of a file name.
const MAX_NAME_BYTES: usize = 200;

/// The directory of saved slots, and what a file must have been written with.
#[derive(Clone, Debug)]
pub struct SlotFiles {
    directory: PathBuf,
    /// Hash of the version, the arithmetic, and the names, types, shapes and the beginnings of the
    /// model's tensors.
    pub(super) kv_fingerprint: u64,
    pub(super) exports: KvExports,
    /// Held while a slot is saved or restored, because exports have one subscriber.
    pub(super) transfer_lock: Arc<Mutex<()>>,
}

impl SlotFiles {
    /// Files in `directory`. A file is restored only if its K/V fingerprint is `kv_fingerprint`.
    pub fn new(directory: PathBuf, kv_fingerprint: u64, exports: KvExports) -> Self {
        Self { directory, kv_fingerprint, exports, transfer_lock: Arc::default() }
    }

    /// The path of a file. `key_name` is the name of the caller's API key, which has its own
    /// subdirectory; a key without a name is accepted only if there is no other key
    /// (`is_only_key`).
    pub(super) fn path(
        &self,
        key_name: Option<&str>,
        is_only_key: bool,
        filename: &str,
    ) -> Result<PathBuf, ApiError> {
        check_name(filename).map_err(|why| ApiError::param("filename", format!("`filename` {why}")))?;
        let mut folder = self.directory.clone();
        if let Some(name) = key_name {
            check_name(name)
                .map_err(|why| ApiError::forbidden(format!("the name of this key, `{name}`, {why}")))?;
            folder.push(name);
        } else if !is_only_key {
            let why = "of several API keys, only those with a name (`NAME: KEY` in --api-key-file) may save and restore slots";
            return Err(ApiError::forbidden(why));
        }
        Ok(folder.join(filename))
    }
}

/// The error for a file that cannot be restored.
pub(super) fn restore_error(error: KvFileError) -> ApiError {
    match error {
        KvFileError::Io(error) => ApiError::failed(format!("the file cannot be read: {error}")),
        error => ApiError::param("filename", format!("the file cannot be restored: {error}")),
    }
}

/// Checks that a text is a plain file name. Accepts the names that llama.cpp's server accepts, up
/// to [`MAX_NAME_BYTES`]. The error completes a sentence about the name.
fn check_name(name: &str) -> Result<(), String> {
    let is_forbidden = |letter: char| letter.is_control() || "/\\:*?\"<>|".contains(letter);
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(format!("must have 1 to {MAX_NAME_BYTES} bytes"));
    }
    if name.contains(is_forbidden) || name.starts_with(['.', ' ']) || name.ends_with(['.', ' ']) {
        return Err("must be a plain file name: without / \\ : * ? \" < > | and control characters, and \
                    without a dot or a space at its ends"
            .into());
    }
    Ok(())
}

/// Opens a file, checks that it fits the pool and verifies all its checksums.
pub(super) fn open_verified(
    path: &Path,
    kv_fingerprint: u64,
    exports: &KvExports,
) -> Result<KvFile<File>, ApiError> {
    // A link may point outside of the directory, and a pipe may block forever.
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(ApiError::param("filename", "`filename` is not a regular file")),
        Err(_) => return Err(ApiError::not_found("filename", "there is no such file")),
    }
    let file = File::open(path).map_err(|error| restore_error(error.into()))?;
    let mut file = KvFile::open(file).map_err(restore_error)?;
    file.check_compatible(kv_fingerprint, &exports.layout, exports.block_size).map_err(restore_error)?;
    file.verify_checksums().map_err(restore_error)?;
    Ok(file)
}

/// Writes the file of a slot. The file appears under its name only when it is complete.
pub(super) struct SlotFileWriter {
    writer: KvFileWriter<BufWriter<File>>,
    file: AtomicFile,
}

impl SlotFileWriter {
    /// Writes the header. Creates the directory if needed.
    pub(super) fn create(path: &Path, header: &KvFileHeader) -> Result<Self, ApiError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(cannot_write)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => {
                return Err(ApiError::param("filename", "`filename` is not a regular file"));
            }
            Ok(_) => {}
            Err(_) if fs::read_dir(folder).map_err(cannot_write)?.count() >= MAX_FILES => {
                let why = format!("the directory has {MAX_FILES} files: overwrite one, or delete some");
                return Err(ApiError::param("filename", why));
            }
            Err(_) => {}
        }
        let file = AtomicFile::create(path).map_err(cannot_write)?;
        let writer = file.writer().map_err(cannot_write)?;
        Ok(Self { writer: KvFileWriter::new(writer, header).map_err(cannot_write)?, file })
    }

    /// Appends rows.
    pub(super) fn write(mut self, rows: &[u8]) -> Result<Self, ApiError> {
        self.writer.write(rows).map_err(cannot_write)?;
        Ok(self)
    }

    /// Renames the file to its name. Returns its length in bytes.
    pub(super) fn finish(self) -> Result<u64, ApiError> {
        let bytes = self.writer.finish().map_err(cannot_write)?;
        self.file.commit().map_err(cannot_write)?;
        Ok(bytes)
    }
}

/// The error of a failed write, without the path, which clients must not learn.
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
    fn file_names_stay_in_their_directory() {
        for name in ["slot1.bin", "a b", "ä.kv", "-x", "a..b"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(MAX_NAME_BYTES + 1);
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
