//! `kvasir bench broadcast`: latency of the step broadcast from rank 0 to another rank (`serve
//! --tp`).

use crate::io::failure::Failure;
use kvasir_fleet::BroadcastBench;
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sequences in the decode step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    rows: u32,
    /// Tokens per sequence
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    context: u32,
    /// Number of measured broadcasts
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reps: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let Self { rows, context, reps, json } = self;
        let bench = BroadcastBench { rows, context, repetitions: reps as usize };
        let (mut times, bytes) = bench.run().map_err(Failure::failed)?;
        times.sort_unstable();
        let micros = |percentile: usize| times[(times.len() - 1) * percentile / 100] as f64 / 1e3;
        let (median, p99) = (micros(50), micros(99));
        if json {
            let setup = json!({"rows": rows, "context": context, "reps": reps, "bytes": bytes});
            println!("{}", json!({"setup": setup, "median_us": median, "p99_us": p99}));
        } else {
            println!(
                "median {median:.1} us, p99 {p99:.1} us over {reps} broadcasts of a {bytes}-byte step: \
                 {rows} sequences of {context} tokens"
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
