use super::Failure;
use kvasir::{BackendKind, Loaded, Opened};
use std::path::PathBuf;

/// Which model, and what computes.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// A directory in the Hugging Face layout, or a GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// What computes
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_BACKEND")]
    backend: Backend,
    /// `exact`: f32 arithmetic on the weights as stored; `auto`: the fastest that gives every request the same tokens
    /// whatever else runs
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_PRECISION")]
    precision: Precision,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Backend {
    Auto,
    Plain,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Precision {
    Auto,
    Exact,
}

impl ModelArgs {
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let backend = match self.backend {
            Backend::Auto => BackendKind::Auto,
            Backend::Plain => BackendKind::Plain,
        };
        match self.precision {
            // The plain backend has one arithmetic, and it is exact.
            Precision::Auto | Precision::Exact => Ok(Opened::open(&self.model)?.load(backend)?),
        }
    }

    /// What the model is called where nobody named it: as its file or folder.
    pub(crate) fn name(&self) -> String {
        let path = self.model.canonicalize().unwrap_or_else(|_| self.model.clone());
        path.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }
}
