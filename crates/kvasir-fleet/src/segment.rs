//! Segments: shared memory through which workers send K/V rows, one per worker of the prefill role.
//!
//! The front creates each as a memfd that its workers inherit, so none outlives the processes. They
//! are read and written with `pread` and `pwrite`, not mapped: a reader checks its own copy, which
//! no other process can change.
//!
//! A segment is a ring of records, header then rows, with a single writer. The writer does not wait
//! for readers, so a record may be overwritten before it is read. The reader detects overwritten
//! and damaged records by number and checksum, and its engine computes their tokens.

use crate::message::RecordLocation;
use kvasir_exec::KvLayout;
use std::{fs::File, io, os::unix::fs::FileExt};
use xxhash_rust::xxh64::xxh64;

/// Size of a segment. Memory is committed as it is written.
const SEGMENT_BYTES: u64 = 128 << 20;
/// Size of a record's header: layout and number.
const HEADER_BYTES: usize = 16;

/// Creates a segment. Every process that is started afterwards inherits its descriptor.
#[cfg(target_os = "linux")]
pub(crate) fn create() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let file = File::from(memfd_create("kvasir-kv", MemfdFlags::empty())?);
    file.set_len(SEGMENT_BYTES)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn create() -> io::Result<File> {
    Err(io::Error::other("roles of replicas need memfds, which only Linux has"))
}

/// Opens a segment by its inherited descriptor.
pub(crate) fn open(descriptor: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))
}

/// Hash of a layout.
pub(crate) fn layout_id(layout: &KvLayout) -> u64 {
    xxh64(layout.format.as_bytes(), layout.slot_bytes as u64)
}

fn header(layout: u64, number: u64) -> [u8; HEADER_BYTES] {
    (u128::from(layout) | u128::from(number) << 64).to_le_bytes()
}

/// The writer of a segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    file: File,
    layout: u64,
    /// Number of the newest record. Its high half is the process generation, so no two processes
    /// use the same number.
    number: u64,
    /// Offset of the next record.
    next: u64,
}

impl SegmentWriter {
    /// A writer of the replica's process number `generation`.
    pub(crate) fn new(file: File, layout: u64, generation: u32) -> Self {
        Self { file, layout, number: u64::from(generation) << 32, next: 0 }
    }

    /// Writes a record. `None` if it is larger than the segment or the system is out of memory. The
    /// caller must set `segment` of the location.
    pub(crate) fn write(&mut self, rows: &[u8]) -> Option<RecordLocation> {
        let (bytes, size) = (rows.len() as u64, (HEADER_BYTES + rows.len()) as u64);
        if size > SEGMENT_BYTES {
            return None;
        }
        let offset = if self.next + size > SEGMENT_BYTES { 0 } else { self.next };
        self.number += 1;
        self.file.write_all_at(&header(self.layout, self.number), offset).ok()?;
        self.file.write_all_at(rows, offset + HEADER_BYTES as u64).ok()?;
        self.next = offset + size;
        Some(RecordLocation { segment: 0, offset, bytes, number: self.number, checksum: xxh64(rows, 0) })
    }
}

/// Reads the rows of a record of this layout and size; `None` if it was overwritten or damaged.
pub(crate) fn read(file: &File, record: &RecordLocation, layout: u64, bytes: usize) -> Option<Vec<u8>> {
    if record.bytes != bytes as u64 {
        return None;
    }
    let mut read = [0; HEADER_BYTES];
    file.read_exact_at(&mut read, record.offset).ok()?;
    if read != header(layout, record.number) {
        return None;
    }
    let mut rows = vec![0; bytes];
    file.read_exact_at(&mut rows, record.offset.checked_add(HEADER_BYTES as u64)?).ok()?;
    (xxh64(&rows, 0) == record.checksum).then_some(rows)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use kvasir_testkit::Random;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let segment = create().unwrap();
        let reader = open(segment.as_raw_fd() as u32).unwrap();
        let mut writer = SegmentWriter::new(segment.try_clone().unwrap(), 7, 3);
        let mut random = Random::new(1);
        let mut blocks = Vec::new();
        let (mut lost, mut damaged) = (0, 0);
        for i in 0..400 {
            let rows = vec![i as u8; random.between(0, 2 << 20) as usize];
            let block = writer.write(&rows).unwrap();
            blocks.push((block, rows));
            let (block, rows) = &blocks[random.below(blocks.len() as u64) as usize];
            match read(&reader, block, 7, rows.len()) {
                Some(read) => assert_eq!(&read, rows),
                None => lost += 1,
            }
            let (block, rows) = &blocks[blocks.len() - 1];
            assert_eq!(read(&reader, block, 7, rows.len()).as_ref(), Some(rows));
            assert_eq!(read(&reader, block, 8, rows.len()), None, "another layout");
            assert_eq!(read(&reader, block, 7, rows.len() + 1), None, "another size");
            if !rows.is_empty() && random.chance(20) {
                let at = block.offset + HEADER_BYTES as u64 + random.below(rows.len() as u64);
                segment.write_all_at(&[!(i as u8)], at).unwrap();
                assert_eq!(read(&reader, block, 7, rows.len()), None, "damaged");
                blocks.pop();
                damaged += 1;
            }
        }
        assert!(lost > 20 && damaged > 20, "{lost}, {damaged}");
        assert_eq!(writer.write(&vec![0; SEGMENT_BYTES as usize]), None);
        for offset in [SEGMENT_BYTES, u64::MAX - 4, u64::MAX] {
            let block = RecordLocation { offset, bytes: 8, ..RecordLocation::default() };
            assert_eq!(read(&reader, &block, 7, 8), None);
        }
    }
}
