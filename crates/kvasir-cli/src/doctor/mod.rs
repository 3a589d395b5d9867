//! `kvasir doctor`: diagnoses machine, model, configuration and environment, with advice per
//! finding.

pub(crate) mod check;
pub(crate) mod environment;
pub(crate) mod forecast;
pub(crate) mod machine;
pub(crate) mod model;

use crate::doctor::check::{Check, Report};

use kvasir::{OpenedModel, available_memory_in};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Inputs of the diagnosis.
pub(crate) struct Subject<'a> {
    /// The model, or its error.
    pub(crate) model: Result<OpenedModel, String>,
    /// Name of the model.
    pub(crate) model_name: String,
    /// The options file with its check result.
    pub(crate) config: Option<(PathBuf, Result<(), String>)>,
    /// Address that a server would bind.
    pub(crate) address: SocketAddr,
    /// Path of procfs.
    pub(crate) proc: &'a Path,
    /// Mount of the control groups.
    pub(crate) cgroup: &'a Path,
    /// Whether to measure speeds, which takes seconds and 1 GB of memory.
    pub(crate) measure: bool,
}

/// Runs all checks.
pub(crate) fn examine(subject: &Subject<'_>) -> Report {
    let memory = available_memory_in(subject.proc, subject.cgroup);
    let space = machine::address_space(subject.proc);
    // Memory beyond the address space limit cannot be used.
    let room = memory.map(|free| free.min(space.unwrap_or(free)));
    let speeds = if subject.measure { machine::speeds(room) } else { None };
    let mut checks =
        vec![machine::processor(), machine::threads(), machine::overlap(), machine::memory(memory)];
    checks.extend(space.map(machine::addresses));
    checks.extend(speeds.as_ref().map(machine::Speeds::check));
    checks.extend(machine::open_files(subject.proc));
    let peaks = speeds.as_ref().and_then(machine::Speeds::peaks);
    match &subject.model {
        Ok(opened) => checks.extend(model::checks(opened, &subject.model_name, room, peaks)),
        Err(why) => {
            checks.push(Check::fail("model", why.clone()).advise(
                "give a whole GGUF file (fetch one that was cut short again), a directory in the Hugging Face layout or a hub name",
            ))
        }
    }
    checks
        .extend(subject.config.as_ref().map(|(path, found)| crate::doctor::environment::config(path, found)));
    checks.push(crate::doctor::environment::port(subject.address));
    checks.push(crate::doctor::environment::hub_cache());
    Report { checks }
}
