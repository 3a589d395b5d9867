//! A request that moves between engines has the tokens of a request that runs alone: after any
//! number of outputs, with any cache, policy, drafter and overlap of either engine.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::Token;
use kvasir_sim::Toy;
use kvasir_testkit::{
    Random,
    complete::complete,
    engines::{CACHE_KINDS, cache, limits, policy},
};

fn engine(random: &mut Random, context: u32) -> Engine<Toy> {
    let kind = random.pick(&CACHE_KINDS);
    let (cache, limits) = (cache(random, kind, 1024), limits(random, context));
    let policy = policy(random);
    let engine = Engine::new(Core::new(limits, Order::Fcfs, policy, cache), Toy::new(), || 7);
    let engine = engine.overlap(random.chance(50));
    if random.chance(40) { engine.draft(Box::new(SuffixDrafter::new(4))).unwrap() } else { engine }
}

#[test]
fn a_request_continues_in_another_engine() {
    let (mut moved, mut shifted) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let context = random.between(30, 200);
        let len = random.between(1, context - 1);
        let prompt: Vec<Token> = (0..len).map(|_| 100 + random.below(9) as Token).collect();
        let params = Params {
            max_tokens: random.between(1, 150),
            ignore_eos: random.chance(70),
            eos: vec![103],
            stop_sequences: vec![vec![101, 102]],
            context_shift: random.chance(40).then_some(3),
            ..Params::default()
        };
        let request = Request { tag: 9, prompt, params };
        let whole = complete(&mut engine(&mut Random::new(seed + 1000), context), request.clone());
        shifted += u32::from(whole.summary.dropped > 0);

        let (mut outputs, timings) = (Vec::new(), Timings { arrived: 3, ..Timings::default() });
        let summary = loop {
            let resumption = Resumption { outputs: outputs.clone(), timings, ..Resumption::default() };
            let params = Params { resumption: Some(resumption.into()), ..request.params.clone() };
            let mut engine = engine(&mut random, context);
            let (steps, before) = (random.between(1, 60), outputs.len());
            engine.add_request(Request { params, ..request.clone() }).unwrap();
            let mut ended = None;
            for _ in 0..steps {
                engine.step().unwrap();
                let outbox = engine.core_mut().outbox();
                for output in outbox.iter() {
                    assert_eq!(output.event.first as usize, outputs.len(), "seed {seed}");
                    outputs.extend_from_slice(output.tokens);
                }
                ended = ended.or(outbox.ended.first().copied());
                outbox.clear();
            }
            assert_eq!(engine.executor().violations().first(), None, "seed {seed}");
            moved += u32::from(before > 0);
            if let Some(ended) = ended {
                break ended;
            }
        };
        assert_eq!(outputs, whole.tokens, "seed {seed}");
        let facts = |summary: &Summary| (summary.finish, summary.prompt, summary.outputs, summary.dropped);
        assert_eq!(facts(&summary), facts(&whole.summary), "seed {seed}");
        assert_eq!(summary.timings.arrived, 3);
    }
    assert!(moved > 200 && shifted > 30, "{moved}, {shifted}");
}

#[test]
fn siblings_resume_one_by_one() {
    let params = Params { resumption: Some(Box::default()), ..Params::default() };
    let mut engine = engine(&mut Random::new(1), 50);
    let refused = engine.core_mut().add_siblings(Request { tag: 0, prompt: vec![100], params }, 2, 0);
    assert_eq!(refused, Err(Refusal::BadParameter(Parameter::N)));
}
