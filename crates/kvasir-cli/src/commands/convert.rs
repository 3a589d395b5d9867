//! `kvasir convert`: quantizes or repacks a checkpoint into a GGUF file.

use crate::io::atomic_file::AtomicFile;
use crate::io::failure::Failure;
use crate::io::interruption::Interruption;
use crate::io::progress;
use kvasir::ModelFiles;
use kvasir_formats::{Rules, convert_to};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, a directory in the Hugging Face layout, a hub name (`OWNER/NAME[@REVISION][:TAG]`), or `kvasir-mini`, the
    /// built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Quantization type: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k to q6_k, mxfp4, or the mixes q4_k_m
    /// and q5_k_m
    #[arg(long, value_name = "TYPE")]
    dtype: String,
    /// Quantization type of matrices whose GGUF names match a pattern (`*`: any characters); the first match applies
    #[arg(long, value_name = "PATTERN=TYPE")]
    rule: Vec<String>,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let rules = Rules::parse(&self.dtype, &self.rule).map_err(Failure::usage)?;
        let files = ModelFiles::locate(&self.model)?;
        let same = |path: &Path| path.canonicalize().ok().zip(self.out.canonicalize().ok());
        if let ModelFiles::At(model) = &files
            && same(model).is_some_and(|(model, out)| model == out)
        {
            return Err(Failure::usage(format!(
                "{}: is the model itself; give OUT another name",
                self.out.display()
            )));
        }
        let model = files.checkpoint()?;
        let file = AtomicFile::create(&self.out)?;
        let interruption = Interruption::watch();
        let bar = progress::percent();
        let report = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
            !interruption.has_come()
        };
        let done = convert_to(&model, interruption.stopping(file.writer()?), &rules, &report);
        bar.finish_and_clear();
        if interruption.has_come() {
            return Err(Failure::failed("interrupted; no file was written"));
        }
        let done = done.map_err(Failure::failed)?;
        file.commit()?;
        for (dtype, (tensors, bytes)) in &done.by_type {
            println!("{dtype:8} {tensors:6} tensors {:12.1} MB", *bytes as f64 / 1e6);
        }
        Ok(ExitCode::SUCCESS)
    }
}
