use crate::replay::{Case, CaseError, Outcome};

fn skipped(reason: &str) -> Result<Outcome, CaseError> {
    Ok(Outcome::Skipped { reason: reason.to_owned() })
}

/// `minisgl.batch_indices`.
pub(super) fn batch_indices(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table; rows name token-pool rows and plans name slots; test core_life::rows_say_queries_and_context",
    )
}

/// `minisgl.detokenize`, `minisgl.printable`.
pub(super) fn text(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table of the peer's detokenizer; streamed text comes with the server")
}

/// `minisgl.div_even`, `minisgl.sharding`.
pub(super) fn ranks(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table of tensor parallelism, which comes with the fleet")
}

/// `minisgl.graph_padding`, `minisgl.graph_sizes`.
pub(super) fn graphs(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table of captured graphs, which come with the accelerator")
}

/// `minisgl.is_greedy`, `minisgl.sampling_args`.
pub(super) fn sampling(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table of the peer's sampler arguments; ours are per row and greedy by Sampling::is_greedy")
}

/// `minisgl.workload`.
pub(super) fn workload(_: &Case) -> Result<Outcome, CaseError> {
    skipped("a table of the offline benchmark's prompts and lengths; it comes with the benchmark")
}
