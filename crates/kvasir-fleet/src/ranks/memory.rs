//! [`SharedMemory`]: an anonymous memory file (`memfd`) that the ranks of a group map.
//!
//! Rank 0 creates it, and the other ranks inherit its file descriptor. Its size is sealed, so no
//! process can truncate it. It has no name, so the kernel frees it when the last rank has exited or
//! crashed.
//!
//! The first lines hold one atomic each; the rest is plain data. The protocols of `broadcast_ring`
//! and `contributions` ensure that no data is written while another rank accesses it.

use crate::ranks::layout::LINE_WORDS;
use crate::ranks::sync::{AtomicU32, Futex};
use memmap2::{MmapOptions, MmapRaw};
use std::{fs::File, io};

/// Magic number of the header.
const MAGIC: u32 = 0x4b76_5261;
/// Version of the layout, the records and the collectives.
const VERSION: u32 = 1;

/// One process's mapping of the shared memory.
pub(crate) struct SharedMemory {
    map: MmapRaw,
    /// Number of lines, which hold one atomic each.
    lines: usize,
    words: usize,
}

impl SharedMemory {
    /// Creates and maps `words` words, whose first `lines` lines hold atomics. Returns the file for
    /// the other ranks, too.
    #[cfg(target_os = "linux")]
    pub(crate) fn create(words: usize, lines: usize, ranks: usize) -> io::Result<(Self, File)> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let file = File::from(memfd_create("kvasir-ranks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(words as u64 * 4)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
        let memory = Self::map(&file, words, lines)?;
        for (word, value) in memory.header(ranks).into_iter().enumerate() {
            // SAFETY: no other process has the file yet.
            unsafe { memory.write(word, &[value]) };
        }
        Ok((memory, file))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn create(_words: usize, _lines: usize, _ranks: usize) -> io::Result<(Self, File)> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "ranks require Linux"))
    }

    /// Maps the file that rank 0 has created, and checks its size and header.
    pub(crate) fn open(file: &File, words: usize, lines: usize, ranks: usize) -> io::Result<Self> {
        let length = file.metadata()?.len();
        if length != words as u64 * 4 {
            return Err(io::Error::other(format!(
                "shared memory of the ranks has {length} bytes, expected {}",
                words * 4
            )));
        }
        let memory = Self::map(file, words, lines)?;
        let mut header = memory.header(ranks);
        // SAFETY: nothing writes the header after `create`.
        unsafe { memory.read(0, &mut header) };
        if header != memory.header(ranks) {
            return Err(io::Error::other(
                "shared memory of the ranks has another version or number of ranks; restart `kvasir serve`",
            ));
        }
        Ok(memory)
    }

    /// Maps a file of at least `words` words. Does not check its header.
    pub(crate) fn map(file: &File, words: usize, lines: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(words * 4).map_raw(file)?;
        Ok(Self { map, lines, words })
    }

    fn header(&self, ranks: usize) -> [u32; 4] {
        [MAGIC, VERSION, ranks as u32, self.words as u32]
    }

    /// The first word of a line.
    fn line(&self, line: usize) -> *const u32 {
        assert!(line < self.lines, "line {line} of {}", self.lines);
        // SAFETY: all lines are within the map.
        unsafe { self.map.as_ptr().cast::<u32>().add(line * LINE_WORDS) }
    }

    /// The atomic of a line.
    pub(crate) fn word(&self, line: usize) -> &AtomicU32 {
        // SAFETY: aligned and within the map, which lives as long as `self`; lines after the header
        // are accessed as atomics only.
        unsafe { &*self.line(line).cast() }
    }

    /// The futex of a line.
    pub(crate) fn futex(&self, line: usize) -> &Futex {
        // SAFETY: as in `word`; a `Futex` is an atomic in memory.
        unsafe { &*self.line(line).cast() }
    }

    /// The address of `count` words from word `at`.
    fn data(&self, at: usize, count: usize) -> *mut u32 {
        let ends = at.checked_add(count).is_some_and(|end| end <= self.words);
        assert!(ends, "words {at} + {count} of {}", self.words);
        // SAFETY: within the map.
        unsafe { self.map.as_mut_ptr().cast::<u32>().add(at) }
    }

    /// Copies words to word `at`.
    ///
    /// # Safety
    /// No other thread or process may access these words during the call.
    pub(crate) unsafe fn write(&self, at: usize, words: &[u32]) {
        let to = self.data(at, words.len());
        // SAFETY: within the map, which is not otherwise borrowed; see above.
        unsafe { to.copy_from_nonoverlapping(words.as_ptr(), words.len()) };
    }

    /// Copies words from word `at`.
    ///
    /// # Safety
    /// No other thread or process may write these words during the call.
    pub(crate) unsafe fn read(&self, at: usize, into: &mut [u32]) {
        let from = self.data(at, into.len());
        // SAFETY: within the map; see above.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Copies values to word `at`.
    ///
    /// # Safety
    /// That of [`write`](Self::write).
    pub(crate) unsafe fn write_f32(&self, at: usize, values: &[f32]) {
        let to = self.data(at, values.len()).cast::<f32>();
        // SAFETY: as in `write`.
        unsafe { to.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    /// Copies values from word `at`.
    ///
    /// # Safety
    /// That of [`read`](Self::read).
    pub(crate) unsafe fn read_f32(&self, at: usize, into: &mut [f32]) {
        let from = self.data(at, into.len()).cast::<f32>();
        // SAFETY: as in `read`.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Adds the values from word `at` to `into`.
    ///
    /// # Safety
    /// That of [`read`](Self::read).
    pub(crate) unsafe fn add_f32(&self, at: usize, into: &mut [f32]) {
        let from = self.data(at, into.len()).cast::<f32>();
        // SAFETY: within the map and aligned to words, every bit pattern is an f32, and no other
        // thread writes them.
        let values = unsafe { std::slice::from_raw_parts(from, into.len()) };
        into.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
}
