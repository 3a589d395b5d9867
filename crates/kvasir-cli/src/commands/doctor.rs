//! `kvasir doctor`: checks machine, model and configuration, and prints advice.

use crate::doctor::{Subject, examine};
use crate::io::failure::Failure;
use crate::options::host::host;
use crate::options::model::{DraftArgs, KernelArgs, Which};
use kvasir_cpu::Isa;
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Says whether a server accepts an options file.
pub(crate) type FileCheck = fn(&Path) -> Result<(), Failure>;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    draft: DraftArgs,
    /// Address that a server would bind
    #[arg(long, default_value = "127.0.0.1", env = "KVASIR_HOST", value_parser = host)]
    host: IpAddr,
    /// Port that a server would bind
    #[arg(long, default_value_t = 8000, env = "KVASIR_PORT")]
    port: u16,
    /// Skip the speed measurements
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kernels: KernelArgs,
}

impl Args {
    /// Limit of the instruction set.
    pub(crate) fn instructions(&self) -> Option<Isa> {
        self.kernels.instructions
    }

    /// `check` says whether a server accepts the options file.
    pub(crate) fn run(self, config: Option<PathBuf>, check: FileCheck) -> Result<ExitCode, Failure> {
        let checked = |path: PathBuf| (check(&path).map_err(|why| why.to_string()), path);
        let report = examine(&Subject {
            model: self
                .which
                .open()
                .and_then(|opened| self.draft.apply(opened, None))
                .map_err(|why| why.to_string()),
            model_name: self.which.name(),
            config: config.map(checked).map(|(found, path)| (path, found)),
            address: SocketAddr::new(self.host, self.port),
            proc: Path::new("/proc"),
            cgroup: Path::new("/sys/fs/cgroup"),
            measure: !self.quick,
        });
        if self.json {
            println!("{}", serde_json::to_string(&report).map_err(Failure::failed)?)
        } else {
            print!("{report}")
        }
        Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
