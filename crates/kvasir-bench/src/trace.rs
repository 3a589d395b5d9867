//! The step trace file format and the data object of the trace viewer page.
//!
//! A trace file is JSON lines: a [`Header`], then one [`StepTrace`] per line, and last an [`End`].
//!
//! Guarded by `tests/sim.rs`: a trace read back equals the one written and is consistent.

use kvasir_engine::{StepTrace, TraceSink};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// First line of a trace file: what was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version, `kvasir-trace/1`.
    pub format: String,
    /// Title of the run.
    pub title: String,
    /// Setup of the run, under the keys that the viewer page knows.
    pub setup: serde_json::Map<String, serde_json::Value>,
    /// Number of steps that precede the first recorded one.
    pub first: u64,
}

/// Last line of a trace file: totals known only after the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Total steps of the run, recorded or not.
    pub total: u64,
    /// Request names by tag.
    pub names: Vec<(u64, String)>,
}

/// The format version that this module writes and reads.
pub const FORMAT: &str = "kvasir-trace/1";

/// A [`TraceSink`] that writes JSON lines. After the first I/O error it writes nothing more.
#[derive(Clone)]
pub struct Lines(Arc<Mutex<Writing>>);

struct Writing {
    out: Box<dyn Write + Send>,
    failed: Option<io::Error>,
}

impl Lines {
    /// Starts a file by writing its header line.
    pub fn begin(out: Box<dyn Write + Send>, header: &Header) -> Self {
        let lines = Self(Arc::new(Mutex::new(Writing { out, failed: None })));
        lines.line(header);
        lines
    }

    /// Writes the last line and flushes. Returns the first I/O error of the whole file.
    pub fn end(&self, end: &End) -> io::Result<()> {
        self.line(end);
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match writing.failed.take() {
            Some(error) => Err(error),
            None => writing.out.flush(),
        }
    }

    fn line(&self, value: &impl Serialize) {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.failed.is_none() {
            let done = serde_json::to_writer(&mut writing.out, value).map_err(io::Error::from);
            writing.failed = done.and_then(|()| writing.out.write_all(b"\n")).err();
        }
    }
}

impl TraceSink for Lines {
    fn write(&mut self, step: &StepTrace) {
        self.line(step);
    }
}

/// Reads a trace file. Errors name the offending line.
pub fn read(input: &mut dyn BufRead) -> Result<(Header, Vec<StepTrace>, End), String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        End(End),
        Step(Box<StepTrace>),
    }
    let mut lines = input.lines().enumerate();
    let mut steps = Vec::new();
    let Some((_, first)) = lines.next() else { return Err("line 1: the file is empty".into()) };
    let first = first.map_err(|error| format!("line 1: {error}"))?;
    let header: Header = serde_json::from_str(&first).map_err(|error| format!("line 1: {error}"))?;
    if header.format != FORMAT {
        return Err(format!("line 1: format is `{}`, known is `{FORMAT}`", header.format));
    }
    for (i, line) in lines {
        let name = |error: String| format!("line {}: {error}", i + 1);
        let line = line.map_err(|error| name(error.to_string()))?;
        match serde_json::from_str(&line).map_err(|error| name(error.to_string()))? {
            Line::Step(step) => steps.push(*step),
            Line::End(end) => return Ok((header, steps, end)),
        }
    }
    Err("the file ends before its last line".into())
}

/// Serializes a trace and the plots of its run into the data object of the viewer page.
pub fn page_data(
    header: &Header,
    steps: &[StepTrace],
    end: &End,
    report: &serde_json::Value,
) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Data<'a> {
        #[serde(flatten)]
        header: &'a Header,
        #[serde(flatten)]
        end: &'a End,
        report: &'a serde_json::Value,
        steps: &'a [StepTrace],
    }
    serde_json::to_string(&Data { header, end, report, steps })
}

/// A [`TraceSink`] that collects the steps in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording(Arc<Mutex<Vec<StepTrace>>>);

impl Recording {
    pub(crate) fn take(&self) -> Vec<StepTrace> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TraceSink for Recording {
    fn write(&mut self, step: &StepTrace) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(step.clone());
    }
}
