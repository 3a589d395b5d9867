//! `kvasir bench offline`: throughput of an offline batch of prompts through the engine.

use crate::io::atomic_file::AtomicFile;
use crate::io::failure::Failure;
use crate::io::progress;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::resolve::setup_of;
use kvasir_bench::{offline, workload::Offline};
use kvasir_kv::Token;
use serde_json::json;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Requests of Mini-SGLang's offline workload: 256 prompts and answers of 100 to 1,024 tokens
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: u64,
    #[command(flatten)]
    options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the report as an HTML page
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
}

impl Args {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        &self.model
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let config = self.options.config()?;
        let loaded = self.model.load()?;
        let resolved = config.resolve(&loaded.facts(None))?;
        let core = resolved.core()?;
        let setup = setup_of(&loaded, &resolved, &core);
        let engine = loaded.engine(core, resolved.overlap)?;
        let page = self.html.as_deref().map(AtomicFile::create).transpose()?;
        let mut workload = Offline::new(self.requests);
        let bar = progress::bar(self.requests);
        let vocab = loaded.program().vocab as Token;
        let report = offline::run(engine, &mut workload, vocab, |ended| bar.set_position(ended));
        bar.finish_and_clear();
        let report = report.map_err(Failure::failed)?;
        if let Some(page) = page {
            page.write_plots(&report.workload, &json!(setup), &report.plots)?;
            page.commit()?;
        }
        if self.json {
            let mut json = serde_json::to_value(&report).map_err(Failure::failed)?;
            json["setup"] = setup.into();
            println!("{json}");
        } else {
            for (name, value) in report.numbers() {
                println!("{name:<28}{value}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
