//! `kvasir doctor`: checks machine, model and configuration, and prints advice.

use super::{Failure, model::Which};
use crate::{
    config,
    doctor::{Patient, examine},
};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Address that a server would listen on
    #[arg(long, default_value = "127.0.0.1", env = "KVASIR_HOST")]
    host: IpAddr,
    /// Port that a server would listen on
    #[arg(long, default_value_t = 8000, env = "KVASIR_PORT")]
    port: u16,
    /// Leave out what takes time: no speeds are measured
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self, config: Option<PathBuf>) -> Result<ExitCode, Failure> {
        let checked = |path: PathBuf| (config::check(&path).map_err(|why| why.to_string()), path);
        let report = examine(&Patient {
            model: self.which.open().map_err(|why| why.to_string()),
            model_name: self.which.name(),
            config: config.map(checked).map(|(found, path)| (path, found)),
            address: SocketAddr::new(self.host, self.port),
            proc: Path::new("/proc"),
            measure: !self.quick,
        });
        match self.json {
            true => println!("{}", serde_json::to_string(&report).map_err(Failure::failed)?),
            false => print!("{report}"),
        }
        Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
