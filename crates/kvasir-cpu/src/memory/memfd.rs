//! Files in memory that processes share (`memfd`), mapped in huge pages.
//!
//! 1. `create` makes a file that child processes inherit and that cannot shrink. An access within its
//!    length therefore never fails for lack of a page in the file.
//! 2. `open` reopens an inherited descriptor. Each opening owns its locks.
//! 3. `map` maps a part at an address that equals the file offset modulo a huge page.
//! 4. `allocate` commits a range before it is written: errors are returned here instead of as a signal
//!    at the first write.
//!
//! Locks (`F_OFD_SETLK`) cover one byte each. They exclude other processes, not threads of this one,
//! and the kernel releases them when their process ends. Linux only: elsewhere `create` and `open`
//! fail with `Unsupported`.

use crate::memory::buffer::HUGE_PAGE;
use memmap2::MmapMut;
use std::fs::File;
use std::io;

/// A mapped part of a file.
pub(crate) struct MappedPart {
    /// The mapping: address space in which the part lies.
    pub(crate) region: MmapMut,
    /// Offset of the part in `region`.
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

    /// Creates an empty file that child processes inherit by its number. It can grow, but not shrink.
    /// Fails if the size of files is limited: exceeding the limit would end the process.
    pub(crate) fn create(name: &std::ffi::CStr) -> io::Result<File> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is valid for the call.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        if !known || limit.rlim_cur != libc::RLIM_INFINITY {
            return Err(io::Error::other("the size of files is limited (`ulimit -f`)"));
        }
        // SAFETY: the name is a C string.
        let with = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
        let mut descriptor = with(libc::MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if descriptor < 0 {
            // Kernels before 6.3 do not have the flag.
            descriptor = with(libc::MFD_ALLOW_SEALING);
        }
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nothing else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        // SAFETY: `fcntl` takes integers here.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
    }

    /// Opens the file of an inherited descriptor anew. Refuses a file that can shrink.
    pub(crate) fn open(descriptor: RawFd) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))?;
        // SAFETY: `fcntl` takes integers here.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other("it is no sealed file in memory"));
        }
        Ok(file)
    }

    /// Locks the byte at `at` for this opening of the file; false if another one holds it.
    pub(crate) fn try_lock(file: &File, at: u64) -> io::Result<bool> {
        match set_lock(file, at, libc::F_WRLCK) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Releases the lock of the byte at `at`.
    pub(crate) fn unlock(file: &File, at: u64) {
        // Fails only if there is no such lock.
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

    /// Maps `len` bytes of the file from `offset`, a multiple of a huge page. The part may lie beyond
    /// the end of the file, which must have grown before it is accessed.
    pub(crate) fn map(file: &File, offset: u64, len: usize) -> io::Result<MappedPart> {
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes"));
        let mut region = reserve(len.checked_add(HUGE_PAGE).ok_or_else(too_large)?)?;
        let base = region.as_mut_ptr();
        let start = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: the range lies within `region`, which is new and which nothing refers to. `region`
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
        Ok(MappedPart { region, start })
    }

    /// Commits memory for `len` bytes of a mapped part, and for the rest of the huge pages around them;
    /// in huge pages if the system has any for it. The file must reach that far. Bytes keep their
    /// values.
    pub(crate) fn allocate(at: *const u8, len: usize) -> io::Result<()> {
        let first = at as usize / HUGE_PAGE * HUGE_PAGE;
        let end = (at as usize + len).next_multiple_of(HUGE_PAGE);
        for page in (first..end).step_by(HUGE_PAGE) {
            // A huge page replaces pages, not a hole, so one page is committed first.
            advise(page, 1, libc::MADV_POPULATE_READ)?;
            // Speed only: kernels before 6.1 cannot, and others may lack memory in one piece.
            let _ = advise(page, HUGE_PAGE, MADV_COLLAPSE);
        }
        advise(first, end - first, libc::MADV_POPULATE_WRITE)
    }

    fn advise(address: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: none of the three advices changes bytes or mappings, so a wrong range could only
        // return an error.
        if unsafe { libc::madvise(address as *mut libc::c_void, len, advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Kernels before 5.14 do not know the advice.
        if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{allocate, create, map, open, try_lock, unlock};

#[cfg(not(target_os = "linux"))]
mod unsupported {
    use super::*;

    fn unsupported() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "needs Linux")
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

    pub(crate) fn map(_: &File, _: u64, _: usize) -> io::Result<MappedPart> {
        Err(unsupported())
    }

    pub(crate) fn allocate(_: *const u8, _: usize) -> io::Result<()> {
        Err(unsupported())
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::{allocate, create, map, open, try_lock, unlock};
