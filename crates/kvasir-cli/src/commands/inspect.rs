//! `kvasir inspect`: prints a model's architecture, program, K/V facts and memory plan.

use crate::io::failure::Failure;
use crate::options::model::Which;
use kvasir::Inspection;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let inspection = Inspection::of(&self.which.open()?);
        if self.json {
            println!("{}", serde_json::to_string(&inspection).map_err(Failure::failed)?)
        } else {
            print!("{inspection}")
        }
        Ok(ExitCode::SUCCESS)
    }
}
