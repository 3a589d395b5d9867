use super::Failure;
use kvasir::{Inspection, Opened};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory in the Hugging Face layout, or a GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let inspection = Inspection::of(&Opened::open(&self.model)?);
        match self.json {
            true => println!("{}", serde_json::to_string(&inspection).map_err(Failure::failed)?),
            false => print!("{inspection}"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
