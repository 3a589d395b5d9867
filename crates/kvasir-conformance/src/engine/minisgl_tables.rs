//! Replays the table kinds of `minisgl`; most are covered by unit tests and skipped with a reason.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, number};
use crate::outcome::Outcome;
use kvasir_bench::workload::offline_lists;
use serde_json::json;

fn skipped(reason: &str) -> Result<Outcome, CaseError> {
    Ok(Outcome::Skipped { reason: reason.to_owned() })
}

/// `minisgl.batch_indices`.
pub(crate) fn batch_indices(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table; rows name token-pool rows and plans name slots; test core_life::rows_have_query_and_context_lengths",
    )
}

/// `minisgl.detokenize`, `minisgl.printable`.
pub(crate) fn text(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table of the peer's detokenizer; ours never takes text back; test streamed_text_is_never_retracted",
    )
}

/// `minisgl.div_even`, `minisgl.sharding`.
pub(crate) fn ranks(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table of the peer's shards; ours follow from the program; tests two_ranks_each_read_half_of_a_dense_model and experts_are_divided_and_scarce_kv_heads_are_replicated",
    )
}

/// `minisgl.graph_padding`, `minisgl.graph_sizes`.
pub(crate) fn graphs(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table of captured graphs, which come with the accelerator; schedules are padded as recorded; test minisgl_and_nano",
    )
}

/// `minisgl.is_greedy`, `minisgl.sampling_args`.
pub(crate) fn sampling(_: &Case) -> Result<Outcome, CaseError> {
    skipped(
        "a table of the peer's sampler arguments; ours are per row; test every_recorded_chain_is_reproduced",
    )
}

/// `minisgl.workload`: prompt lengths and tokens drawn by the offline benchmark.
pub(crate) fn workload(case: &Case) -> Result<Outcome, CaseError> {
    let (given, expected) = (case.field("given")?, case.field("expected")?);
    let parameters = [&given["seed"], &given["input"], &given["output"], &given["token"]];
    if parameters != [&json!(0), &json!([100, 1024]), &json!([100, 1024]), &json!([0, 10_000])] {
        return skipped("another benchmark than the one that is built; test the_lists_are_the_recorded_ones");
    }
    let lists = offline_lists(number(given, "num_seqs", 256).map_err(about(case))?.min(65_536).into());
    let inputs: Vec<usize> = lists.iter().map(|(prompt, _)| prompt.len()).collect();
    let outputs: Vec<u32> = lists.iter().map(|(_, outputs)| *outputs).collect();
    let length = |key: &str| expected[key].as_array().map_or(0, Vec::len);
    let head = lists.first().map(|(prompt, _)| &prompt[..length("first_prompt_head").min(prompt.len())]);
    let tail =
        lists.last().map(|(prompt, _)| &prompt[prompt.len().saturating_sub(length("last_prompt_tail"))..]);
    let got = json!({
        "total_input": inputs.iter().sum::<usize>(),
        "total_output": outputs.iter().map(|&n| u64::from(n)).sum::<u64>(),
        "input_lens": inputs,
        "output_lens": outputs,
        "first_prompt_head": head,
        "last_prompt_tail": tail,
    });
    // SHA-256 digests are not computed here; a unit test compares all tokens.
    let mut expected = expected.clone();
    if let Some(map) = expected.as_object_mut() {
        map.retain(|key, _| !key.starts_with("sha256"));
    }
    Ok(compare("table", &expected, &got).err().map_or(Outcome::Passed, Outcome::Failed))
}
