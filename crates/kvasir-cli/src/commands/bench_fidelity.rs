//! `kvasir bench fidelity`: the error of the default arithmetic against exact arithmetic.

use crate::io::failure::Failure;
use crate::io::progress;
use crate::options::model::{KernelArgs, kv_type};
use kvasir::{OpenedModel, Token};
use kvasir_bench::bench::fidelity::{FidelityBench, FidelityReport, TEXT};
use kvasir_cpu::{Isa, KvType};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    /// A GGUF file, a directory in the Hugging Face layout, a hub name (`OWNER/NAME[@REVISION][:TAG]`), or
    /// `kvasir-mini`, the built-in model
    model: PathBuf,
    /// Text file [default: an English text of about 900 tokens]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Tokens of the text to compare, at most
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    tokens: u32,
    /// Data type of the KV cache: f32, f16, bf16, fp8, q8_0, q4_0, q8a or q4a
    #[arg(long, env = "KVASIR_KV_DTYPE", value_name = "TYPE", value_parser = kv_type)]
    kv_dtype: Option<KvType>,
    /// Threads [default: the machine's parallelism]
    #[arg(long, env = "KVASIR_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Also compare the output of each layer
    #[arg(long)]
    layers: bool,
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

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let opened = OpenedModel::find(&self.model)?;
        let bench = FidelityBench {
            text: self.text(&opened)?,
            kv: self.kv_dtype,
            threads: self.threads.map(|n| n as usize),
            layers: self.layers,
        };
        let bar = progress::tokens(bench.text.len() as u64);
        let report = bench.run(&opened.checkpoint, |done| bar.set_position(done as u64));
        bar.finish_and_clear();
        let report = report.map_err(Failure::failed)?;
        if self.json {
            println!("{}", serde_json::to_string(&report).map_err(Failure::failed)?);
        } else {
            print(&report);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The first tokens of the text.
    fn text(&self, model: &OpenedModel) -> Result<Vec<Token>, Failure> {
        let own = self.file.as_deref().map(|path| Failure::read_option("--file", path)).transpose()?;
        let text = own.as_deref().unwrap_or(TEXT);
        let tokenizer = model.tokenizer()?;
        let tokenizer =
            tokenizer.ok_or_else(|| Failure::failed("the model has no tokenizer, which reads the text"))?;
        let mut ids = tokenizer.encode(text, true).map_err(Failure::failed)?;
        ids.truncate(self.tokens as usize);
        if ids.len() < 2 {
            return Err(Failure::usage("the text has fewer than two tokens"));
        }
        Ok(ids)
    }
}

fn print(report: &FidelityReport) {
    let errors = &report.divergence;
    println!(
        "default arithmetic ({}, K and V as {}) against exact arithmetic, {} tokens",
        report.isa, report.kv_dtype, report.tokens
    );
    let change = (errors.perplexity / errors.perplexity_exact - 1.0) * 100.0;
    println!(
        "perplexity       {:.3}, exact {:.3} ({change:+.2} %)",
        errors.perplexity, errors.perplexity_exact
    );
    println!("KL divergence    {:.5} nats, mean", errors.mean_kl);
    println!(
        "log-probability  {:.4} mean error of the five likeliest tokens, {:.3} at most",
        errors.mean_error, errors.max_error
    );
    println!("likeliest token  {} of {} agree", errors.agreeing, errors.positions);
    for layer in &report.layers {
        println!("layer {:<3}        {:.3e} relative error of its output", layer.layer, layer.relative);
    }
}
