//! Drafters without a model: what they propose for requests that run in a core.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::OutputRow;
use kvasir_kv::{Cells, Span, Token};
use kvasir_testkit::Random;

/// A core and a drafter whose steps yield given tokens.
struct Run<D> {
    core: Core,
    drafter: D,
}

impl<D: Drafter> Run<D> {
    fn new(drafter: D) -> Self {
        let limits = Limits { max_num_batched_tokens: 1 << 20, max_model_len: 1 << 20, ..Limits::default() };
        let policy = Box::new(Chunked::new(1 << 20, Mixing::On { target: None }));
        let cache = Box::new(Cells::new(1 << 18, 64, None).unwrap());
        Self { core: Core::new(limits, Order::Fcfs, policy, cache), drafter }
    }

    fn add(&mut self, prompt: &[Token], params: Params) -> RequestId {
        let params = Params { ignore_eos: true, ..params };
        self.core.add(Request { tag: 0, prompt: prompt.to_vec(), params }, 0).unwrap()
    }

    /// Runs one step in which every request yields `token`; the proposals for those that go on.
    fn step(&mut self, token: Token) -> Vec<Vec<Token>> {
        let mut step = self.core.schedule(0).unwrap();
        self.core.take_binds().for_each(drop);
        for at in 0..step.batch.rows.len() {
            step.output.tokens.push(token);
            step.output.rows.push(OutputRow { tokens: Span::new(at, 1) });
        }
        self.core.postprocess(&step, &Ok(()), 0);
        self.drafter.begin_step();
        let mut proposals = Vec::new();
        for row in &step.batch.rows {
            if let Some(sequence) = self.core.sequence(RequestId(row.request)) {
                let mut proposal = Proposal::default();
                self.drafter.propose(sequence, &mut proposal);
                proposals.push(proposal.tokens);
            }
        }
        let core = &self.core;
        self.drafter.retain(&|id| core.sequence(id).is_some());
        self.core.recycle(step);
        self.core.outbox().clear();
        proposals
    }

    /// Runs a request with these outputs to its end.
    fn finish(&mut self, prompt: &[Token], outputs: &[Token], params: Params) {
        self.add(prompt, Params { max_tokens: outputs.len() as u32, ..params });
        for token in outputs {
            self.step(*token);
        }
    }
}

fn of_key(key: u64) -> Params {
    Params { max_tokens: 100, key, ..Params::default() }
}

#[test]
fn a_long_history_is_read_over_several_steps() {
    let mut random = Random::new(3);
    let mut prompt: Vec<Token> = (0..20_000).map(|_| 10_000 + random.below(1 << 20) as Token).collect();
    prompt[50..60].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    fn first_drafts(mut run: Run<impl Drafter>, prompt: &[Token]) -> (usize, Vec<Token>) {
        run.add(prompt, of_key(0));
        for step in 1..40 {
            let proposal = run.step((step - 1) % 4 + 1).remove(0);
            if !proposal.is_empty() {
                return (step as usize, proposal);
            }
        }
        (0, Vec::new())
    }
    // 20,000 tokens take ten steps; the output is in the middle of the passage by then.
    let (step, drafts) = first_drafts(Run::new(SuffixDrafter::new(3)), &prompt);
    assert!((10..=12).contains(&step), "{step}");
    assert_eq!(drafts[0] as usize, step % 4 + 1, "{drafts:?}");
    let (step, drafts) = first_drafts(Run::new(NgramDrafter::new(3, 3)), &prompt);
    assert!((10..=12).contains(&step) && drafts[0] as usize == step % 4 + 1, "{step} {drafts:?}");
}

#[test]
fn all_requests_together_read_a_bounded_number_of_tokens_per_step() {
    let mut run = Run::new(SuffixDrafter::new(3));
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let prompt: Vec<Token> = (0..1000).map(|_| random.below(5) as Token + 1).collect();
        run.add(&prompt, of_key(seed));
    }
    let drafted: Vec<usize> =
        (0..3).map(|_| run.step(1).iter().filter(|proposal| !proposal.is_empty()).count()).collect();
    assert_eq!(drafted, [2, 4, 4], "two prompts fit the first step");
}

#[test]
fn outputs_of_a_key_are_proposed_to_its_requests_alone() {
    let mut run = Run::new(SuffixDrafter::new(3));
    run.finish(&[90, 91], &[11, 12, 13, 14, 15, 16, 17], of_key(1));
    for (key, expected) in [(1, vec![14, 15, 16]), (2, vec![])] {
        let id = run.add(&[92, 93], of_key(key));
        run.step(11);
        run.step(12);
        assert_eq!(run.step(13), [expected], "key {key}");
        run.core.abort(id, 0);
    }
    let salted = Params { salt: 7, ..of_key(1) };
    run.add(&[92, 93], salted);
    run.step(11);
    run.step(12);
    assert_eq!(run.step(13).concat().len(), 0, "another salt");
}

#[test]
fn a_match_among_shared_outputs_that_ends_leaves_the_own_one() {
    let mut run = Run::new(SuffixDrafter::new(2));
    // The longer match, of three tokens, is at the end of an earlier output.
    run.finish(&[90, 91], &[10, 11, 12, 13], of_key(0));
    run.add(&[12, 13, 44, 45], of_key(0));
    run.step(11);
    run.step(12);
    assert_eq!(run.step(13), [[44, 45]]);
}

#[test]
fn a_prediction_is_proposed_from_the_first_output_on() {
    let mut run = Run::new(SuffixDrafter::new(3));
    let prediction = vec![21, 22, 23, 24, 25, 26];
    run.add(&[5, 6, 7], Params { prediction, ..of_key(0) });
    run.step(21);
    assert_eq!(run.step(22), [[23, 24, 25]]);
}
