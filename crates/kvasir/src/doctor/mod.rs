//! What this machine offers, what is missing, and what to do about it.

mod check;
mod machine;
mod model;
mod place;

pub(crate) use check::{Check, Report};

use kvasir::Opened;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// What is looked at.
pub(crate) struct Patient<'a> {
    /// The model, or why it cannot be opened.
    pub(crate) model: Result<Opened, String>,
    /// What it is called.
    pub(crate) model_name: String,
    /// A file of options, and what is wrong with it if something is.
    pub(crate) config: Option<(PathBuf, Result<(), String>)>,
    /// Where a server would listen.
    pub(crate) address: SocketAddr,
    /// Where the system tells of itself.
    pub(crate) proc: &'a Path,
    /// Whether speeds are measured, which takes a few seconds and a gigabyte.
    pub(crate) measure: bool,
}

/// Looks at everything, one after the other.
pub(crate) fn examine(patient: &Patient<'_>) -> Report {
    let memory = machine::free_memory(patient.proc);
    let space = machine::address_space(patient.proc);
    // What may not be mapped is not there.
    let room = memory.map(|free| free.min(space.unwrap_or(free)));
    let speeds = if patient.measure { machine::speeds(room) } else { None };
    let mut checks = vec![machine::processor(), machine::threads(), machine::memory(memory)];
    checks.extend(space.map(machine::addresses));
    checks.extend(speeds.as_ref().map(machine::Speeds::check));
    checks.extend(machine::open_files(patient.proc));
    let bandwidth = speeds.as_ref().and_then(machine::Speeds::bandwidth);
    match &patient.model {
        Ok(opened) => checks.extend(model::checks(opened, &patient.model_name, room, bandwidth)),
        Err(why) => {
            checks.push(Check::fail("model", why.clone()).advise(
                "give a whole GGUF file (fetch one that was cut short again), a directory in the Hugging Face layout or a hub name",
            ))
        }
    }
    checks.extend(patient.config.as_ref().map(|(path, found)| place::config(path, found)));
    checks.push(place::port(patient.address));
    checks.push(place::hub_cache());
    Report { checks }
}
