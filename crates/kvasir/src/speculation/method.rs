//! [`DraftMethod`]: the registration of one way to propose tokens.

use crate::draft_model::OpenedDraft;
use crate::error::Error;
use crate::speculation::parameters::DraftParameters;
use kvasir_engine::Drafter;
use kvasir_formats::Checkpoint;
use kvasir_program::Model;
use kvasir_sim::Shape;
use std::fmt;

/// A way to propose tokens. [`DRAFT_METHODS`](super::DRAFT_METHODS) lists all; `--spec`, its help
/// and its errors follow from that table.
#[non_exhaustive]
pub struct DraftMethod {
    /// Name in `--spec`.
    pub name: &'static str,
    /// What may follow the name, as help prints it.
    pub syntax: &'static str,
    /// What is proposed, in one line.
    pub summary: &'static str,
    /// Reads the text behind `name:`; an empty text is the name alone.
    pub(super) parse: fn(&str) -> Result<DraftParameters, String>,
    pub(super) proposer: Proposer,
}

impl fmt::Debug for DraftMethod {
    /// Only the name: addresses of functions differ between processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Where proposals are made.
pub(super) enum Proposer {
    /// On the host, between steps.
    Host(fn(&DraftParameters) -> Box<dyn Drafter>),
    /// By a draft model behind the target, in the executor.
    Model {
        /// Opens its files.
        open: fn(DraftTarget<'_>, &DraftParameters) -> Result<OpenedDraft, Error>,
        /// Its shape behind a target of a shape, for the simulator.
        shape: fn(Shape, &DraftParameters) -> Result<Shape, String>,
    },
}

/// The target model that a draft model is opened for. An EAGLE-3 head adds to its program.
pub(crate) struct DraftTarget<'a> {
    pub(crate) checkpoint: &'a mut Checkpoint,
    pub(crate) model: &'a mut Model,
    /// Whether this is the built-in model, which has draft layers of its own.
    pub(crate) is_built_in: bool,
}

impl PartialEq for DraftMethod {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for DraftMethod {}
