//! Shared-memory files (`memfd`), mapped in huge pages.
//!
//! 1. `create` makes a file that child processes inherit, sealed against shrinking. An access
//!    within its length therefore never raises `SIGBUS` for a missing page.
//! 2. `open` reopens an inherited descriptor, because each open file description owns its locks.
//! 3. `map` maps a range at an address congruent to its file offset modulo a huge page.
//! 4. `populate` commits a range before it is written. A shortage of memory is an error here; at
//!    the first write it would be a signal.
//!
//! Locks (`F_OFD_SETLK`) cover one byte each. They exclude other processes, not threads of this
//! one, and the kernel releases them when their process ends. Linux only: elsewhere `create` and
//! `open` fail with `Unsupported`.

use crate::memory::buffer::HUGE_PAGE;
use memmap2::MmapMut;
use std::fs::File;
use std::io;

/// A mapped range of a file.
pub(crate) struct MappedRange {
    /// The mapping, which includes alignment padding around the range.
    pub(crate) region: MmapMut,
    /// Offset of the range in `region`.
    pub(crate) start: usize,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use crate::memory::buffer::map as reserve;
    use std::fs::OpenOptions;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

    /// `MADV_COLLAPSE`, which some C libraries do not define.
    const MADV_COLLAPSE: libc::c_int = 25;
    /// `MFD_NOEXEC_SEAL`: the file is never executable.
    const MFD_NOEXEC_SEAL: libc::c_uint = 8;

    /// Creates an empty file whose descriptor child processes inherit. It can grow, but not shrink.
    /// Fails if `RLIMIT_FSIZE` is set: exceeding it would raise `SIGXFSZ`.
    pub(crate) fn create(name: &std::ffi::CStr) -> io::Result<File> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is valid for the call.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        if !known || limit.rlim_cur != libc::RLIM_INFINITY {
            return Err(io::Error::other("`ulimit -f` limits the size of files; set it to `unlimited`"));
        }
        // SAFETY: the name is a C string.
        let create_with = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
        let mut descriptor = create_with(libc::MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if descriptor < 0 {
            // Kernels before 6.3 do not have the flag.
            descriptor = create_with(libc::MFD_ALLOW_SEALING);
        }
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        // SAFETY: `fcntl` takes integers here.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
    }

    /// Opens the file of an inherited descriptor anew. Fails if the file is not sealed against
    /// shrinking.
    pub(crate) fn open(descriptor: RawFd) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))?;
        // SAFETY: `fcntl` takes integers here.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other("the descriptor is not a memfd that is sealed against shrinking"));
        }
        Ok(file)
    }

    /// Locks the byte at `at` for this open file description; false if another one holds the lock.
    pub(crate) fn try_lock(file: &File, at: u64) -> io::Result<bool> {
        match set_lock(file, at, libc::F_WRLCK) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Releases the lock of the byte at `at`.
    pub(crate) fn unlock(file: &File, at: u64) {
        // Cannot fail for a lock that is held.
        let _ = set_lock(file, at, libc::F_UNLCK);
    }

    fn set_lock(file: &File, at: u64, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: a C struct of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = at as libc::off_t;
        lock.l_len = 1;
        // SAFETY: the struct is valid for the call.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Maps `len` bytes of the file from `offset`, a multiple of the huge page size. The range may
    /// exceed the file's length, but the file must grow before the excess is accessed.
    pub(crate) fn map(file: &File, offset: u64, len: usize) -> io::Result<MappedRange> {
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes"));
        let mut region = reserve(len.checked_add(HUGE_PAGE).ok_or_else(too_large)?)?;
        let base = region.as_mut_ptr();
        let start = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: the range lies within `region`, which is new and unreferenced. Dropping `region`
        // unmaps it.
        let mapped = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let at = base.add(start).cast();
            libc::mmap(at, len, access, flags, file.as_raw_fd(), offset as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(MappedRange { region, start })
    }

    /// Commits memory for `len` bytes of a mapped range, rounded out to huge pages; in huge pages
    /// where the system provides them. The file must contain the rounded range. Bytes keep their
    /// values.
    pub(crate) fn populate(at: *const u8, len: usize) -> io::Result<()> {
        let first = at as usize / HUGE_PAGE * HUGE_PAGE;
        let end = (at as usize + len).next_multiple_of(HUGE_PAGE);
        for page in (first..end).step_by(HUGE_PAGE) {
            // `MADV_COLLAPSE` needs a committed page in its range, so one is committed first.
            advise(page, 1, libc::MADV_POPULATE_READ)?;
            // Best effort: kernels before 6.1 lack it, and it fails if memory is fragmented.
            let _ = advise(page, HUGE_PAGE, MADV_COLLAPSE);
        }
        advise(first, end - first, libc::MADV_POPULATE_WRITE)
    }

    fn advise(address: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: none of the three advices changes bytes or mappings. A wrong range only returns
        // an error.
        if unsafe { libc::madvise(address as *mut libc::c_void, len, advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Kernels before 5.14 do not know the advice.
        if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{create, map, open, populate, try_lock, unlock};

#[cfg(not(target_os = "linux"))]
mod unsupported {
    use super::*;

    fn unsupported() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "shared packed weights need Linux")
    }

    pub(crate) fn create(_: &std::ffi::CStr) -> io::Result<File> {
        Err(unsupported())
    }

    pub(crate) fn open(_: i32) -> io::Result<File> {
        Err(unsupported())
    }

    pub(crate) fn try_lock(_: &File, _: u64) -> io::Result<bool> {
        Err(unsupported())
    }

    pub(crate) fn unlock(_: &File, _: u64) {}

    pub(crate) fn map(_: &File, _: u64, _: usize) -> io::Result<MappedRange> {
        Err(unsupported())
    }

    pub(crate) fn populate(_: *const u8, _: usize) -> io::Result<()> {
        Err(unsupported())
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::{create, map, open, populate, try_lock, unlock};
