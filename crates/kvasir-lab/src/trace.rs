//! Trace files and the data of the page.
//!
//! A trace file is JSON lines: a [`Header`], then one [`StepTrace`] per line, and last an [`End`].

use kvasir_engine::{StepTrace, TraceSink};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// What was recorded, as the first line of a file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// `kvasir-trace/1`.
    pub format: String,
    /// What was run, for people.
    pub title: String,
    /// How: the keys that the page knows.
    pub setup: serde_json::Map<String, serde_json::Value>,
    /// Steps before the first of the file.
    pub first: u64,
}

/// What is known when a run is over, as the last line of a file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Steps in the run.
    pub total: u64,
    /// Names by tag.
    pub names: Vec<(u64, String)>,
}

/// The version that is written and read.
pub const FORMAT: &str = "kvasir-trace/1";

/// A [`TraceSink`] that writes lines. The first error ends it and is kept.
#[derive(Clone)]
pub struct Lines(Arc<Mutex<Writing>>);

struct Writing {
    out: Box<dyn Write + Send>,
    failed: Option<io::Error>,
}

impl Lines {
    /// Begins a file.
    pub fn begin(out: Box<dyn Write + Send>, header: &Header) -> Self {
        let lines = Self(Arc::new(Mutex::new(Writing { out, failed: None })));
        lines.line(header);
        lines
    }

    /// Ends it, and says whether everything was written.
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

/// Reads a trace file. The error names the line.
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

/// The data object of the page: a trace, and plots over the whole run.
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

/// A [`TraceSink`] that keeps the steps.
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
