//! The offline throughput benchmark of nano-vLLM and Mini-SGLang, token for token.

use crate::workload::text::Answer;
use crate::workload::twister::Twister;
use crate::workload::{At, Job, Prompt, Workload};
use kvasir_engine::Summary;
use kvasir_kv::Token;

/// 256 prompts of 100 to 1,024 random ids, all queued at the start, with answers of 100 to 1,024
/// tokens.
///
/// Draws from Python's Mersenne Twister in the original order, so results are comparable.
#[derive(Debug)]
pub struct Offline {
    jobs: std::vec::IntoIter<(Vec<Token>, u32)>,
    total: u64,
    given: u64,
}

/// Prompts and answer lengths, in the benchmark's draw order.
///
/// Each prompt draws its length and then its ids; the answer lengths are drawn after all prompts.
pub fn lists(n: u64) -> Vec<(Vec<Token>, u32)> {
    let mut random = Twister::new(0);
    let prompts: Vec<Vec<Token>> = (0..n)
        .map(|_| {
            let length = random.randint(100, 1024);
            (0..length).map(|_| random.randint(0, 10_000)).collect()
        })
        .collect();
    prompts.into_iter().map(|prompt| (prompt, random.randint(100, 1024))).collect()
}

impl Offline {
    /// Creates the workload with `requests` prompts; the original has 256.
    pub fn new(requests: u64) -> Self {
        Self { jobs: lists(requests).into_iter(), total: requests, given: 0 }
    }
}

impl Workload for Offline {
    fn title(&self) -> String {
        format!("the offline benchmark: {} requests at once", self.total)
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn next(&mut self) -> Option<Job> {
        let (prompt, outputs) = self.jobs.next()?;
        let tag = self.given;
        self.given += 1;
        Some(Job::new(At::Time(0), Prompt::Tokens(prompt), Answer::new(tag, 0), outputs, tag))
    }

    fn ended(&mut self, _: &Summary, _: u64, _: &mut Vec<Job>) {}
}

#[cfg(test)]
mod tests {
    use crate::workload::offline::lists;

    #[test]
    fn the_lists_are_the_recorded_ones() {
        let lists = lists(256);
        let inputs: Vec<usize> = lists.iter().map(|(prompt, _)| prompt.len()).collect();
        assert_eq!(inputs[..8], [964, 724, 484, 508, 316, 798, 439, 916]);
        assert_eq!(inputs.iter().sum::<usize>(), 142_827);
        let outputs: Vec<u32> = lists.iter().map(|(_, outputs)| *outputs).collect();
        assert_eq!(outputs[..8], [845, 312, 607, 843, 500, 882, 178, 577]);
        assert_eq!(outputs.iter().sum::<u32>(), 133_966);
        assert_eq!(lists[0].0[..8], [6311, 6890, 663, 4242, 8376, 7961, 6634, 4969]);
        let last = &lists[255].0;
        assert_eq!(last[last.len() - 8..], [1517, 3584, 2869, 7768, 1157, 6642, 9046, 1958]);
        // Checksum over all tokens: xxh64 of little-endian i32. It was taken once, when the
        // recorded SHA-256 (0f90dc98..b0c0e9) had been verified with another tool.
        let bytes: Vec<u8> =
            lists.iter().flat_map(|(prompt, _)| prompt).flat_map(|t| t.to_le_bytes()).collect();
        assert_eq!(xxhash_rust::xxh64::xxh64(&bytes, 0), HASH);
    }

    const HASH: u64 = 4_607_228_744_268_116_746;
}
