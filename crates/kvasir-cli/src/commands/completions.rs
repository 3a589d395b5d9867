//! `kvasir completions` and `kvasir manual`: files for shells and for `man`, made from the command
//! line's definition.

use crate::help;
use crate::io::failure::Failure;
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell whose completion script is printed
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct Manual {
    /// Directory for the pages (`kvasir.1`, `kvasir-serve.1`, …); created if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Completions {
    pub(crate) fn run(self, mut definition: Command) -> Result<ExitCode, Failure> {
        // The generator panics where it cannot write, as behind a closed pipe.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut definition, "kvasir", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}

impl Manual {
    pub(crate) fn run(self, definition: Command) -> Result<ExitCode, Failure> {
        let failed = |e| Failure::failed(format!("{}: {e}", self.directory.display()));
        fs::create_dir_all(&self.directory).map_err(failed)?;
        clap_mangen::generate_to(help::arranged(definition), &self.directory).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}
