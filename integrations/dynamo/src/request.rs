//! Dynamo's preprocessed request as parameters of the engine. What the engine cannot do is refused by
//! name.

use crate::failure::invalid;
use dynamo_backend_common::{DynamoError, GuidedDecodingOptions, PreprocessedRequest};
use kvasir::{Model, Params, Shape};
use std::iter;

/// The parameters of a request, and the shape of its answer if that is constrained.
pub(crate) fn parameters(
    request: &PreprocessedRequest,
    model: &Model,
) -> Result<(Params, Option<Shape>), DynamoError> {
    let unsupported = unsupported(request);
    if let Some(what) = unsupported {
        return Err(invalid(format!("{what} is not supported by Kvasir")));
    }
    let (stop, sampling, output) =
        (&request.stop_conditions, &request.sampling_options, &request.output_options);
    let defaults = model.default_params().map_err(invalid)?;
    let mut params = defaults.clone();
    params.max_tokens = stop.max_tokens.unwrap_or(defaults.max_tokens);
    params.min_tokens = stop.min_tokens.unwrap_or(0).min(params.max_tokens);
    params.ignore_eos = stop.ignore_eos.unwrap_or(false);
    let hidden = stop.stop_token_ids_hidden.iter().flatten();
    params.eos = request.eos_token_ids.iter().chain(hidden).copied().collect();
    if params.eos.is_empty() {
        params.eos.clone_from(&model.eos);
    }
    let visible = stop.stop_token_ids_visible.iter().flatten();
    params.stop_ids = stop.stop_token_ids.iter().flatten().chain(visible).copied().collect();
    let chosen = &mut params.sampling;
    let set = |place: &mut f32, value: Option<f32>| value.into_iter().for_each(|value| *place = value);
    set(&mut chosen.temperature, sampling.temperature);
    set(&mut chosen.top_p, sampling.top_p);
    set(&mut chosen.min_p, sampling.min_p);
    set(&mut chosen.repetition_penalty, sampling.repetition_penalty);
    set(&mut chosen.presence_penalty, sampling.presence_penalty);
    set(&mut chosen.frequency_penalty, sampling.frequency_penalty);
    if let Some(top_k) = sampling.top_k {
        // -1 keeps all, as 0 does here.
        chosen.top_k = u32::try_from(top_k).unwrap_or(0);
    }
    // Without a seed, requests must not repeat each other.
    chosen.seed = sampling.seed.map_or_else(random_seed, |seed| seed as u64);
    chosen.logprobs = output.logprobs;
    params.check().map_err(invalid)?;
    let shape = sampling.guided_decoding.as_ref().map(shape).transpose()?.flatten();
    Ok((params, shape))
}

/// Names what the request needs and the engine lacks.
fn unsupported(request: &PreprocessedRequest) -> Option<&'static str> {
    let (sampling, output) = (&request.sampling_options, &request.output_options);
    let wanted = [
        (request.prompt_embeds.is_some(), "prompt_embeds"),
        (request.multi_modal_data.is_some(), "multi_modal_data"),
        (request.prefill_result.is_some(), "a prefill on another worker"),
        (sampling.n.is_some_and(|n| n > 1), "n > 1"),
        (sampling.best_of.is_some_and(|n| n > 1), "best_of > 1"),
        (sampling.use_beam_search == Some(true), "beam search"),
        (output.prompt_logprobs.is_some(), "prompt_logprobs"),
        (request.stop_conditions.max_thinking_tokens.is_some(), "max_thinking_tokens"),
    ];
    wanted.into_iter().find_map(|(is_wanted, what)| is_wanted.then_some(what))
}

/// The shape that a guided answer must have.
fn shape(guided: &GuidedDecodingOptions) -> Result<Option<Shape>, DynamoError> {
    if guided.structural_tag.is_some() {
        return Err(invalid("structural_tag is not supported by Kvasir"));
    }
    if guided.whitespace_pattern.is_some() {
        return Err(invalid("whitespace_pattern is not supported by Kvasir"));
    }
    let schema = match &guided.json {
        Some(serde_json::Value::String(text)) => {
            let schema = serde_json::from_str(text);
            Some(schema.map_err(|error| invalid(format!("guided_decoding.json: {error}")))?)
        }
        schema => schema.clone(),
    };
    let shapes = iter::empty()
        .chain(schema.map(Shape::JsonSchema))
        .chain(guided.regex.clone().map(Shape::Regex))
        .chain(guided.choice.clone().map(Shape::Choice))
        .chain(guided.grammar.clone().map(Shape::Grammar));
    let mut shapes: Vec<Shape> = shapes.collect();
    let shape = shapes.pop();
    if shapes.is_empty() { Ok(shape) } else { Err(invalid("guided_decoding: more than one constraint")) }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_backend_common::{OutputOptions, SamplingOptions, StopConditions};
    use kvasir::{Kvasir, Options};
    use std::sync::Arc;

    fn model() -> Arc<Model> {
        Kvasir::built_in(Options::default()).unwrap().model().clone()
    }

    fn request(change: impl FnOnce(&mut PreprocessedRequest)) -> PreprocessedRequest {
        let mut request = PreprocessedRequest::builder()
            .model("m".to_owned())
            .token_ids(vec![1, 2, 3])
            .stop_conditions(StopConditions::default())
            .sampling_options(SamplingOptions::default())
            .output_options(OutputOptions::default())
            .build()
            .unwrap();
        change(&mut request);
        request
    }

    #[test]
    fn options_become_parameters() {
        let request = request(|request| {
            request.stop_conditions.max_tokens = Some(9);
            request.stop_conditions.min_tokens = Some(20);
            request.stop_conditions.stop_token_ids = Some(vec![5]);
            request.stop_conditions.stop_token_ids_hidden = Some(vec![6]);
            request.sampling_options.temperature = Some(0.5);
            request.sampling_options.top_k = Some(-1);
            request.sampling_options.seed = Some(-1);
            request.output_options.logprobs = Some(2);
            request.eos_token_ids = vec![7];
        });
        let (params, shape) = parameters(&request, &model()).unwrap();
        assert_eq!((params.max_tokens, params.min_tokens), (9, 9));
        assert_eq!((params.eos, params.stop_ids), (vec![7, 6], vec![5]));
        let sampling = params.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.5, 0, u64::MAX));
        assert_eq!((sampling.logprobs, shape), (Some(2), None));
    }

    #[test]
    fn what_the_engine_lacks_is_refused_by_name() {
        type Change = fn(&mut PreprocessedRequest);
        let cases: [(Change, &str); 5] = [
            (|request| request.sampling_options.n = Some(2), "n > 1"),
            (|request| request.sampling_options.temperature = Some(f32::NAN), "temperature"),
            (|request| request.output_options.prompt_logprobs = Some(1), "prompt_logprobs"),
            (|request| request.prompt_embeds = Some("x".into()), "prompt_embeds"),
            (
                |request| {
                    let both = GuidedDecodingOptions {
                        regex: Some("a".into()),
                        grammar: Some("b".into()),
                        ..GuidedDecodingOptions::default()
                    };
                    request.sampling_options.guided_decoding = Some(both);
                },
                "more than one constraint",
            ),
        ];
        let model = model();
        for (change, name) in cases {
            let error = parameters(&request(change), &model).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
