//! The directory of a fleet's sockets: accessible to this user only, and removed when the fleet
//! ends.
//!
//! The front process holds a lock on a file in it. A directory whose lock is free was left by a
//! front that was killed; the next start removes it.

use std::{
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

/// Prefix of the names of directories in use.
const PREFIX: &str = "kvasir-fleet-";
/// Prefix of the names of directories that are being created.
const NEW_PREFIX: &str = ".kvasir-new-";
/// Minimum age at which a directory with `NEW_PREFIX` counts as abandoned.
const NEW_AGE: Duration = Duration::from_secs(60);
/// Name of the locked file.
const LOCK: &str = "lock";

/// A locked socket directory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct SocketDirectory {
    path: PathBuf,
    _lock: File,
}

impl SocketDirectory {
    /// Creates a directory, and removes those that killed fronts left.
    pub(crate) fn create() -> io::Result<Self> {
        let parent = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        Self::create_in(&parent.unwrap_or_else(env::temp_dir))
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        remove_abandoned(parent);
        for attempt in 0..100 {
            let name = format!("{}-{attempt}", process::id());
            // Renamed once it is locked, so that no other start removes it as abandoned.
            let new = parent.join(format!("{NEW_PREFIX}{name}"));
            match DirBuilder::new().mode(0o700).create(&new) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            let lock = File::create(new.join(LOCK))?;
            lock.lock()?;
            let path = parent.join(format!("{PREFIX}{name}"));
            if path.exists() {
                fs::remove_dir_all(&new)?;
                continue;
            }
            fs::rename(&new, &path)?;
            return Ok(Self { path, _lock: lock });
        }
        Err(io::Error::other(format!("no free name for a socket directory in `{}`", parent.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        // The next start removes what remains.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes directories of this user whose lock is free. A directory that is being created may lack
/// a lock or not hold it yet, so it is removed only after `NEW_AGE`.
fn remove_abandoned(parent: &Path) {
    let own = rustix::process::getuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let Ok(data) = entry.metadata() else { continue };
        let (file_name, is_own) = (entry.file_name(), data.is_dir() && data.uid() == own);
        let Some(name) = file_name.to_str().filter(|_| is_own) else { continue };
        let is_free = match File::open(entry.path().join(LOCK)) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound && name.starts_with(NEW_PREFIX),
        };
        let age = data.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        let is_named = name.starts_with(PREFIX) || name.starts_with(NEW_PREFIX) && age >= NEW_AGE;
        if is_free && is_named {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::paths::scratch;
    use std::{os::unix::fs::PermissionsExt, time::SystemTime};

    #[test]
    fn only_abandoned_directories_are_removed() {
        let scratch = scratch(&env::temp_dir().to_string_lossy(), "kvasir-sockets");
        let first = SocketDirectory::create_in(&scratch).unwrap();
        assert_eq!(fs::metadata(first.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let abandoned = scratch.join(format!("{PREFIX}1-0"));
        fs::create_dir(&abandoned).unwrap();
        File::create(abandoned.join(LOCK)).unwrap();
        fs::create_dir(scratch.join(format!("{PREFIX}without-lock"))).unwrap();
        let second = SocketDirectory::create_in(&scratch).unwrap();
        assert!(!abandoned.exists() && first.path().exists() && second.path() != first.path());
        assert!(scratch.join(format!("{PREFIX}without-lock")).exists());
        // A front that is killed before it has renamed its directory leaves it.
        let new = |name: &str, age: u64| {
            let path = scratch.join(format!("{NEW_PREFIX}{name}"));
            fs::create_dir(&path).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            File::open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let (old, fresh) = (new("2-0", 120), new("3-0", 0));
        let third = SocketDirectory::create_in(&scratch).unwrap();
        assert!(!old.exists() && fresh.exists() && third.path().exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }
}
