//! Rejection sampling: what it accepts, and that it keeps the target's distribution.

use crate::{Setup, engine, spec};
use kvasir::{Acceptance, BackendKind, CacheKind, OpenedModel, Params, Prompt, Sampling, Speculation};
use kvasir_testkit::paths;

#[test]
fn rejection_sampling_accepts_all_drafts_of_an_equal_model() {
    let case = paths::model("qwen3");
    let same_model: Speculation = spec(&format!("draft:{},depth=3", case.display()));
    let same_model = Speculation { acceptance: Acceptance::Rejection, ..same_model };
    for backend in [BackendKind::Cpu, BackendKind::Plain] {
        let setup = Setup { backend, ..Setup::cpu(CacheKind::Radix) };
        let mut kvasir = setup.engine(OpenedModel::open(&case).unwrap(), Some(&same_model));
        let params = |seed, temperature| Params {
            max_tokens: 40,
            ignore_eos: true,
            sampling: Sampling { temperature, seed, ..Sampling::default() },
            ..Params::default()
        };
        let prompt = || Prompt::Ids(vec![5, 6, 7, 8]);
        let requests = (0..6).map(|seed| (prompt(), params(seed, 0.9)));
        for answer in kvasir.generate_many(requests).unwrap() {
            assert!(answer.drafted >= 27 && answer.accepted + 1 >= answer.drafted, "{answer:?}");
        }
        // Greedy decoding gives the same tokens under every acceptance rule.
        let greedy = kvasir.generate_many([(prompt(), params(0, 0.0))]).unwrap();
        let plain =
            engine(&case, None, CacheKind::Radix).generate_many([(prompt(), params(0, 0.0))]).unwrap();
        assert_eq!(greedy[0].ids, plain[0].ids);
    }
}

#[test]
fn rejection_sampling_keeps_the_distribution() {
    const REQUESTS: u64 = 4000;
    let case = paths::model("qwen3");
    let counts = |spec: Option<&Speculation>, seeds: u64| {
        let mut kvasir = engine(&case, spec, CacheKind::Radix);
        let requests = (0..REQUESTS).map(|seed| {
            let sampling = Sampling { temperature: 1.0, top_k: 6, seed: seeds + seed, ..Sampling::default() };
            let params = Params { max_tokens: 4, ignore_eos: true, sampling, ..Params::default() };
            (Prompt::Ids(vec![5, 6, 7, 8, 9, 10, 11, 12]), params)
        });
        let mut counts = std::collections::HashMap::new();
        let (mut drafted, mut accepted) = (0, 0);
        for answer in kvasir.generate_many(requests).unwrap() {
            *counts.entry((answer.ids[1], answer.ids[2])).or_insert(0.0) += 1.0;
            drafted += answer.drafted;
            accepted += answer.accepted;
        }
        (counts, drafted, accepted)
    };
    // The draft model is the target, but its drafts are sampled without the target's top-k, so some
    // are rejected.
    let same_model = spec(&format!("draft:{},depth=3", case.display()));
    let same_model = Speculation { acceptance: Acceptance::Rejection, ..same_model };
    let (plain, ..) = counts(None, 1 << 20);
    let (drafts, drafted, accepted) = counts(Some(&same_model), 1 << 40);
    assert!(
        accepted * 20 > drafted && accepted * 20 < drafted * 19,
        "drafts must be accepted and rejected: {accepted} of {drafted} were accepted"
    );
    // Chi-squared test of two samples of token pairs. Pairs that are rare in both count as one, so
    // the degrees of freedom are the number of other pairs.
    let (mut chi_squared, mut degrees, mut rare) = (0.0, 0.0, (0.0, 0.0));
    let mut pairs: Vec<_> = plain.keys().chain(drafts.keys()).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let term = |a: f64, b: f64| if a + b > 0.0 { (a - b).powi(2) / (a + b) } else { 0.0 };
    for pair in pairs {
        let at = |counts: &std::collections::HashMap<_, f64>| counts.get(pair).copied().unwrap_or(0.0);
        let (a, b) = (at(&plain), at(&drafts));
        if a + b < 20.0 {
            rare = (rare.0 + a, rare.1 + b);
        } else {
            chi_squared += term(a, b);
            degrees += 1.0;
        }
    }
    chi_squared += term(rare.0, rare.1);
    // Wilson-Hilferty approximation of the quantile at a significance of 1e-4.
    let (a, z): (f64, f64) = (2.0 / (9.0 * degrees), 3.72);
    let limit = degrees * (1.0 - a + z * a.sqrt()).powi(3);
    assert!(chi_squared < limit, "{chi_squared} of {limit} with {degrees} degrees of freedom");
}
