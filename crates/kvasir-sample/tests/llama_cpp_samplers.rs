//! Compares the sampler chain with llama.cpp: same candidate ids and probabilities on fixed logits,
//! as recorded by `tools/record_llama_cpp_samplers.cpp`.

#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_sample::{
    Breakers, Context, Dry, Mirostat, MirostatState, MirostatVersion, Sampler, SamplerChain, Sampling, draw,
    draw_from, processors,
};
use serde_json::Value as Json;
use std::collections::BTreeSet;

fn suite() -> Json {
    serde_json::from_str(include_str!("data/llama_cpp_samplers.json")).unwrap()
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn ids(json: &Json) -> Vec<u32> {
    numbers(json).iter().map(|id| *id as u32).collect()
}

/// The chain of a recorded case. If a sampler occurs twice, the last occurrence sets its
/// parameters.
fn chain_of(case: &Json) -> (SamplerChain, Sampling) {
    let mut chain = SamplerChain { order: Vec::new(), ..SamplerChain::default() };
    let mut sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    for stage in case["chain"].as_array().unwrap() {
        let sampler = Sampler::named(stage[0].as_str().unwrap()).unwrap();
        let number = |i: usize| stage[i].as_f64().unwrap() as f32;
        chain.order.push(sampler);
        match sampler {
            Sampler::Penalties => {
                chain.penalty_last_n = Some(number(1) as u32);
                sampling.repetition_penalty = number(2);
                (sampling.frequency_penalty, sampling.presence_penalty) = (number(3), number(4));
            }
            Sampler::Dry => {
                let all: Vec<Vec<u32>> = stage[5].as_array().unwrap().iter().map(ids).collect();
                let heads = all.iter().zip(0..).map(|(breaker, tail)| (breaker[0], tail)).collect();
                let tails = all.iter().map(|breaker| breaker[1..].to_vec()).collect();
                chain.dry = Some(Dry {
                    multiplier: number(1),
                    base: number(2),
                    allowed_length: number(3) as u32,
                    last_n: number(4) as u32,
                    breakers: Breakers::new(heads, tails),
                });
            }
            Sampler::TopNSigma => chain.top_n_sigma = number(1),
            Sampler::TopK => sampling.top_k = number(1) as u32,
            Sampler::TypicalP => (chain.typical_p, chain.min_keep) = (number(1), number(2) as u32),
            Sampler::TopP => (sampling.top_p, chain.min_keep) = (number(1), number(2) as u32),
            Sampler::MinP => (sampling.min_p, chain.min_keep) = (number(1), number(2) as u32),
            Sampler::Xtc => {
                (chain.xtc_probability, chain.xtc_threshold) = (1.0, number(1));
                chain.min_keep = number(2) as u32;
            }
            Sampler::Temperature => {
                sampling.temperature = number(1);
                (chain.dynatemp_range, chain.dynatemp_exponent) = (number(2), number(3));
            }
        }
    }
    (chain, sampling)
}

/// Ids that were not removed, with their probabilities.
fn left(logits: &[f32]) -> Vec<(u32, f32)> {
    let all = (0..).zip(processors::probabilities(logits));
    all.filter(|(id, _)| logits[*id as usize] > f32::NEG_INFINITY).collect()
}

fn assert_left(logits: &[f32], recorded: &Json, what: &Json) {
    let left = left(logits);
    assert_eq!(left.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids(&recorded["ids"]), "{what}");
    for ((id, p), recorded) in left.iter().zip(numbers(&recorded["probs"])) {
        assert!((p - recorded).abs() <= 2e-5 * recorded.max(1e-2), "{what} {id}: {p} {recorded}");
    }
}

#[test]
fn every_recorded_chain_leaves_the_same_candidates() {
    let suite = suite();
    let history = ids(&suite["history"]);
    let (prompt, output) = history.split_at(11);
    let cases = suite["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 138);
    let mut kinds = BTreeSet::new();
    for case in cases {
        let (chain, sampling) = chain_of(case);
        kinds.extend(chain.order.iter().map(|sampler| sampler.name()));
        let mut logits = numbers(&suite["vectors"][case["vector"].as_str().unwrap()]);
        let context = Context { prompt, output, chain: Some(&chain), ..Context::default() };
        chain.process(&mut logits, &sampling, &context);
        assert_left(&logits, case, &case["chain"]);
        // The drawn token is one of the recorded candidates.
        let drawn =
            draw(&mut numbers(&suite["vectors"][case["vector"].as_str().unwrap()]), &sampling, &context);
        assert!(ids(&case["ids"]).contains(&drawn), "{}", case["chain"]);
    }
    assert_eq!(kinds.len(), Sampler::llama_cpp_order().len());
}

#[test]
fn mirostat_follows_llama_cpp_over_tokens() {
    let suite = suite();
    let runs = suite["mirostat"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    for run in runs {
        let version = if run["version"] == 1 { MirostatVersion::V1 } else { MirostatVersion::V2 };
        let number = |key: &str| run[key].as_f64().unwrap() as f32;
        let mirostat = Mirostat { version, tau: number("tau"), eta: number("eta") };
        let mut mu = mirostat.first_mu();
        for step in run["steps"].as_array().unwrap() {
            let mut logits = numbers(&suite["vectors"][step["vector"].as_str().unwrap()]);
            mirostat.truncate(&mut logits, mu);
            assert_left(&logits, step, &run["version"]);
            mu = mirostat.next_mu(&logits, step["selected"].as_u64().unwrap() as u32, mu);
        }
    }
}

#[test]
fn mirostat_repeats_steps_and_continues_after_a_preemption() {
    let vector = numbers(&suite()["vectors"]["peaked"]);
    let mirostat = Mirostat { tau: 1.5, eta: 0.6, ..Mirostat::default() };
    let chain = SamplerChain { mirostat: Some(mirostat), ..SamplerChain::default() };
    let sampling = Sampling { temperature: 1.5, seed: 9, ..Sampling::default() };
    let state = MirostatState::default();
    let run = |state: &MirostatState, output: &[u32]| {
        let position = output.len() as u32;
        let context = Context { output, position, chain: Some(&chain), ..Context::default() };
        draw_from(&vector, &sampling, &Context { mirostat: Some(state), ..context }, &mut Vec::new())
    };
    let mut output = Vec::new();
    for _ in 0..24 {
        let drawn = run(&state, &output);
        assert_eq!(drawn, run(&state, &output), "the same step again");
        output.push(drawn);
    }
    // Steps that run again from an earlier place, as after a preemption, draw the same tokens.
    for from in [20, 3, 0] {
        for at in from..output.len() {
            assert_eq!(run(&state, &output[..at]), output[at]);
        }
    }
    let stateless: Vec<u32> = (0..24).map(|at| run(&MirostatState::default(), &output[..at])).collect();
    assert_ne!(stateless, output, "the state matters");
}

#[test]
fn xtc_excludes_with_its_probability() {
    let chain = SamplerChain { xtc_probability: 0.25, xtc_threshold: 0.1, ..SamplerChain::default() };
    let sampling = Sampling { temperature: 1.0, seed: 4, ..Sampling::default() };
    let excluded = (0..4000).filter(|position| {
        let mut logits = [3.0, 2.0, 0.0, -1.0];
        let context = Context { position: *position, chain: Some(&chain), ..Context::default() };
        chain.process(&mut logits, &sampling, &context);
        logits[0] == f32::NEG_INFINITY
    });
    let share = excluded.count() as f64 / 4000.0;
    assert!((share - 0.25).abs() < 0.03, "{share}");
}

#[test]
fn samplers_have_the_names_and_letters_of_llama_cpp() {
    for (name, sampler) in [
        ("top_k", Sampler::TopK),
        ("top-k", Sampler::TopK),
        ("TOPK", Sampler::TopK),
        ("typ_p", Sampler::TypicalP),
        ("typical_p", Sampler::TypicalP),
        ("nucleus", Sampler::TopP),
        ("temp", Sampler::Temperature),
        ("top_n_sigma", Sampler::TopNSigma),
    ] {
        assert_eq!(Sampler::named(name), Some(sampler), "{name}");
    }
    assert_eq!(Sampler::named("infill"), None);
    let letters: Option<Vec<Sampler>> = "edskypmxt".chars().map(Sampler::of_letter).collect();
    assert_eq!(letters, Some(Sampler::llama_cpp_order()));
    assert_eq!(Sampler::of_letter('i'), None);
    assert_eq!(Sampler::temperature_first()[2], Sampler::Temperature);
}

#[test]
fn default_chain_draws_the_same_tokens_as_no_chain() {
    let vector = numbers(&suite()["vectors"]["flat"]);
    let chain = SamplerChain::default();
    for sampling in [
        Sampling::default(),
        Sampling { temperature: 0.7, seed: 5, top_k: 20, top_p: 0.9, min_p: 0.05, ..Sampling::default() },
        Sampling {
            temperature: 2.5,
            seed: 6,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            ..Sampling::default()
        },
    ] {
        for position in 0..200 {
            let context = Context { prompt: &[1, 2], output: &[7, 9, 7], position, ..Context::default() };
            let chained = Context { chain: Some(&chain), ..context };
            let with = draw_from(&vector, &sampling, &chained, &mut Vec::new());
            assert_eq!(with, draw_from(&vector, &sampling, &context, &mut Vec::new()));
        }
    }
}
