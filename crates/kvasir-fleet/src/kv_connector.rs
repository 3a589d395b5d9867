//! `KvConnector`: K/V transfer of a worker, on its I/O thread. Writes the engine's exports to the
//! worker's segment, and reads the rows of imports from the segments of other workers.

use crate::message::{Exported, RecordLocation};
use crate::segment::{self, SegmentWriter};
use kvasir_engine::{KvExport, KvImport};
use kvasir_exec::KvLayout;
use std::fs::File;

/// Maximum number of imports that wait for the engine with their rows. Further ones reach it
/// without rows, and it refuses them.
const MAX_WAITING: u32 = 32;

/// Segments of a fleet, opened by one worker.
#[derive(Debug, Default)]
pub(crate) struct KvConnector {
    /// Layout of the engine's rows; `None` if it can neither export nor import.
    layout: Option<KvLayout>,
    /// Segments by the replica that writes to them.
    segments: Vec<Option<File>>,
    writer: Option<SegmentWriter>,
    /// Number of imports that the engine has not handled.
    waiting: u32,
}

impl KvConnector {
    pub(crate) fn new(layout: Option<KvLayout>) -> Self {
        Self { layout, ..Self::default() }
    }

    /// Opens the segments by their inherited descriptors. `replica` and `generation` are those of
    /// this worker, which writes to its own segment.
    pub(crate) fn open(&mut self, descriptors: &[Option<u32>], replica: u32, generation: u32) {
        let Some(layout) = self.layout.as_ref().map(segment::layout_id) else { return };
        let opened = descriptors.iter().map(|descriptor| descriptor.and_then(|at| segment::open(at).ok()));
        self.segments = opened.collect();
        let own = self.segments.get_mut(replica as usize).and_then(Option::take);
        self.writer = own.map(|file| SegmentWriter::new(file, layout, generation));
    }

    /// Writes an export to the worker's segment.
    pub(crate) fn export(&mut self, export: &KvExport) -> Exported {
        let KvExport { tag, start, tokens, ref rows, is_last } = *export;
        let writer = self.writer.as_mut().filter(|_| !rows.is_empty());
        let rows = writer.and_then(|writer| writer.write(rows));
        Exported { run: tag, start, tokens, rows, is_last }
    }

    /// Reads the rows of an import; none if they are lost or too many imports wait.
    pub(crate) fn import(&mut self, import: &mut KvImport, record: Option<RecordLocation>) {
        self.waiting += 1;
        let (Some(layout), Some(record)) = (&self.layout, record) else { return };
        let file = self.segments.get(record.segment as usize).and_then(Option::as_ref);
        let Some(file) = file.filter(|_| self.waiting <= MAX_WAITING) else { return };
        let tokens = import.tokens.len().saturating_sub(import.start as usize);
        let Some(bytes) = tokens.checked_mul(layout.slot_bytes) else { return };
        import.rows = segment::read(file, &record, segment::layout_id(layout), bytes).unwrap_or_default();
    }

    /// Records that the engine has handled imports.
    pub(crate) fn handled(&mut self, imports: u32) {
        self.waiting = self.waiting.saturating_sub(imports);
    }
}
